"""`make bench NAME=audit`: the audit query over five million records of calls, by filter (needs 10 GB of disk).

A scratch database is filled and deleted again. Times are of whole pages of 50, at random arguments and places, through
the same code as the API's: p50, p99 and the longest of ROUNDS, after as many to warm up.
"""

import argparse
import asyncio
import hashlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg

from app.store import embedded, migrate
from app.store.dsn import for_asyncpg
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT
from app.wings.audit.search import CallSearch, Filters
from bench.audit.fill import AT_ONCE, CALLS_PER_SESSION, DAYS, MODELS, Filled, fill

CALLS: Final = 5_000_000
ROUNDS: Final = 100
PAGE: Final = 50
GOAL_MS: Final = 50.0


def moment(within: random.Random) -> datetime:
    """Return a random time within the period of the calls."""
    return datetime.now(UTC) - timedelta(days=within.uniform(0.1, DAYS - 0.1))


def questions(filled: Filled, within: random.Random) -> dict[str, Callable[[], Filters]]:
    """Return the audit questions by name."""

    def session() -> str:
        return f"bench-{within.randrange(filled.sessions)}"

    def summary() -> UUID:
        return UUID(md5(f"s{within.randrange(filled.sessions)}"))

    def day() -> tuple[datetime, datetime]:
        first = moment(within)
        return first, first + timedelta(days=1)

    def least() -> int:
        return int(10 ** within.uniform(3, 5.9))

    def during(**more: object) -> Filters:
        since, until = day()
        return Filters(since=since, until=until, **more)  # type: ignore[arg-type]  # fields of Filters, named below

    return {
        "nothing": Filters,
        "since and until, a day": during,
        "model": lambda: Filters(model=within.choice(MODELS)),
        "model and a day": lambda: during(model=within.choice(MODELS)),
        "overflow": lambda: Filters(overflow=True),
        "overflow and model": lambda: Filters(overflow=True, model=within.choice(MODELS)),
        "min_evicted_tokens": lambda: Filters(min_evicted_tokens=least()),
        "min_evicted_tokens and a day": lambda: during(min_evicted_tokens=least()),
        "min_evicted_tokens and model": lambda: Filters(min_evicted_tokens=least(), model=within.choice(MODELS)),
        "session": lambda: Filters(session=session()),
        "session and evicted_seq": lambda: Filters(session=session(), evicted_seq=within.randint(1, 900)),
        "session, model, overflow": lambda: Filters(session=session(), model=within.choice(MODELS), overflow=True),
        "summary": lambda: Filters(summary=summary()),
    }


def md5(text: str) -> str:
    """Return the digest as Postgres' `md5` does."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


async def measure(database: Database, filled: Filled, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each page, by filter."""
    search, within = CallSearch(database), random.Random(5)
    times: dict[str, list[float]] = {}
    for name, ask in questions(filled, within).items():
        times[name] = []
        for number in range(2 * rounds):
            asked = ask()
            deep = number % 2 == 1
            before = (moment(within), UUID(int=within.getrandbits(128))) if deep and asked.session is None else None
            if asked.summary is not None:
                before = None
            started = time.perf_counter()
            await search.calls(DEFAULT_TENANT, replace(asked, before=before), PAGE)
            if number >= rounds:
                times[name].append(1000 * (time.perf_counter() - started))
    return times


def print_table(filled: Filled, times: dict[str, list[float]]) -> None:
    """Print the results as Markdown."""
    table, indexes = filled.table_bytes / 1024**3, filled.index_bytes / 1024**3
    print(
        f"{filled.calls:,} calls in {filled.sessions:,} sessions of {CALLS_PER_SESSION}, {AT_ONCE} at once, over {DAYS}"
        f" days; {filled.row_bytes} bytes a row, {table:.1f} GB and {indexes:.1f} GB of indexes; written in"
        f" {filled.seconds:.0f} s.\n"
    )
    print("| filter | p50 ms | p99 ms | longest ms |\n|---|---:|---:|---:|")
    for name, found in times.items():
        p99 = sorted(found)[int(0.99 * (len(found) - 1))]
        print(f"| {name} | {statistics.median(found):.1f} | {p99:.1f} | {max(found):.1f} |")
    worst = max(max(found) for found in times.values())
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"\nThe longest took {worst:.1f} ms; the goal is {GOAL_MS:.0f} ms. Load: {busy:.1f} a core.")


async def run(url: str, calls: int, rounds: int) -> None:
    """Fill the database, measure, and print."""
    await migrate.upgrade(url)
    connection = await asyncpg.connect(for_asyncpg(url), timeout=60, command_timeout=3600)
    try:
        filled = await fill(connection, calls)
    finally:
        await connection.close()
    database = Database(url, pool_size=1)
    try:
        with acting_for(DEFAULT_TENANT):
            times = await measure(database, filled, rounds)
    finally:
        await database.close()
    print_table(filled, times)


def main() -> None:
    """Run on a scratch database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        server = embedded.start(Path(folder) / "data")
        try:
            asyncio.run(run(server.url, asked.calls, asked.rounds))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
