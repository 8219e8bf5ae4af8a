"""`make bench NAME=storage RECORDINGS=folder`: bytes on disk and in Postgres' log (WAL), by operation.

Agents replay recorded sessions in turn, as in `bench/agents`: at every call one appends what happened since its last
call, requests the context and reports the call's outcome. The worker is suspended meanwhile and runs between two
calls, so that each operation's share of the log can be measured. Sessions of clients that send their whole
conversations follow, in a database of their own. Nothing is vacuumed manually before tables are measured.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
import uvloop

from app.store import embedded
from bench.agents.sides import ContextParameters, Ours, WholeListClient, ours
from bench.agents.traffic import Life, lives_of, load
from bench.http import Http
from bench.quality.servers import temporary_folder
from bench.speed.servers import dsn

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
_CALL: Final = re.compile(rb'"call_id":"([0-9a-f-]{36})"')
_TOKENS: Final = re.compile(rb'"tokens":\{"estimate":(\d+)')
_TABLES: Final = """
SELECT c.relname AS name, pg_table_size(c.oid) AS heap, pg_indexes_size(c.oid) AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY pg_total_relation_size(c.oid) DESC
"""
_INDEXES: Final = """
SELECT c.relname AS name, t.relname AS of, pg_relation_size(c.oid) AS bytes
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = 'public' ORDER BY 3 DESC
"""
LEAST_SHARE: Final = 0.01
"""Share of all bytes below which tables and indexes are summed up in one line."""


@dataclass(slots=True)
class Written:
    """Bytes of the log, and the number of operations, by operation."""

    log: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Measured:
    """A database under a side of ours; `database` is a connection of the benchmark's own."""

    side: Ours
    database: asyncpg.Connection
    written: Written = field(default_factory=Written)
    _at: int = 0

    async def take(self, what: str, number: int = 1) -> None:
        """Attribute the log written since the last call to an operation."""
        at = int(await self.database.fetchval("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"))
        self.written.log[what] += at - self._at
        self.written.done[what] += number
        self._at = at

    async def work(self) -> None:
        """Let the worker run its queued jobs."""
        if await self.database.fetchval("SELECT count(*) FROM pgqueuer"):
            self.side.resume_worker()
            await self.side.idle()
            self.side.suspend_worker()
        await self.take("worker", 0)

    async def live(self, life: Life, session: str) -> None:
        """Replay one session to its end."""
        http = await Http.connect(self.side.port)
        await self.take("other", 0)
        await self.side.open(http, session, life)
        await self.take("session")
        for step in life.steps:
            await self.side.append(http, session, step.messages)
            await self.take("events", 0)  # counted at the end, because several can be one message
            answer = await self.side.context(http, session)
            await self.take("contexts")
            call, tokens = _CALL.search(answer), _TOKENS.search(answer)
            assert call is not None and tokens is not None, answer[:300]
            usage = {"usage": {"input_tokens": int(tokens[1]), "output_tokens": 100}}
            path = f"/v1/sessions/{session}/calls/{call[1].decode()}/outcome"
            await http.request("POST", path, json.dumps(usage).encode())
            await self.take("outcomes")
            await self.work()
        http.close()


async def measured(side: Ours, lives: Sequence[Life], title: str) -> None:
    """Replay all sessions, and print their bytes."""
    database = await asyncpg.connect(dsn(side.stack.environment["PALIMPSEST_DATABASE_URL"]))
    try:
        one = Measured(side, database)
        await side.idle()
        images = await database.fetchval("SELECT wal_fpi FROM pg_stat_wal")
        side.suspend_worker()
        for number, life in enumerate(lives):
            await one.live(life, f"s{number}")
        side.resume_worker()
        await database.execute("CHECKPOINT")
        events = int(await database.fetchval("SELECT count(*) FROM events"))
        one.written.done["events"] = events
        images = await database.fetchval("SELECT wal_fpi FROM pg_stat_wal") - images
        text = sum(len(message.encode()) for life in lives for step in life.steps for message in step.messages)
        print(
            f"### {title}\n\n{len(lives)} sessions, {events:,} events, {one.written.done['contexts']:,} calls; "
            f"an event's JSON as it was posted has {text / events:,.0f} bytes on average.\n\n"
            f"{await _disk(database, events)}\n\n{await _log(database, one.written)}\n\n"
            f"{images:,} full-page images are in the log.\n",
            flush=True,
        )
    finally:
        await database.close()


async def _disk(database: asyncpg.Connection, events: int) -> str:
    tables = await database.fetch(_TABLES)
    total = sum(row["heap"] + row["indexes"] for row in tables)
    lines = ["| table | rows | bytes a row | of its indexes, a row | bytes an event |", "|---|---:|---:|---:|---:|"]
    shown = [row for row in tables if row["heap"] + row["indexes"] >= LEAST_SHARE * total]
    for row in shown:
        heap, indexes = row["heap"], row["indexes"]
        rows = await database.fetchval(f'SELECT greatest(1, count(*)) FROM "{row["name"]}"')
        each = f"{heap / rows:,.0f} | {indexes / rows:,.0f} | {(heap + indexes) / events:,.0f}"
        lines.append(f"| `{row['name']}` | {rows:,} | {each} |")
    rest = total - sum(row["heap"] + row["indexes"] for row in shown)
    lines += [f"| all others | | | | {rest / events:,.0f} |", f"| **all** | | | | **{total / events:,.0f}** |"]
    indexes = [row for row in await database.fetch(_INDEXES) if row["bytes"] >= LEAST_SHARE * total]
    names = ", ".join(f"`{row['name']}` {row['bytes'] / events:,.0f}" for row in indexes)
    return "\n".join(lines) + f"\n\nThe largest indexes, in bytes an event: {names}."


async def _log(database: asyncpg.Connection, written: Written) -> str:
    summaries = int(await database.fetchval("SELECT count(*) FROM summaries"))
    epochs = int(await database.fetchval("SELECT count(*) FROM epochs"))
    done = written.done | Counter({"worker": summaries})
    names = {
        "events": "an event, appended",
        "contexts": f"a context, {epochs:,} of them with an epoch",
        "outcomes": "a reported outcome",
        "worker": "a summary, with the queue",
    }
    lines = ["| what | number | bytes of log each | bytes an event |", "|---|---:|---:|---:|"]
    for what, name in names.items():
        if not written.log[what]:
            continue
        each = written.log[what] / max(1, done[what])
        lines.append(f"| {name} | {done[what]:,} | {each:,.0f} | {written.log[what] / done['events']:,.0f} |")
    total = sum(written.log[what] for what in names) / done["events"]
    return "\n".join([*lines, f"| **all** | | | **{total:,.0f}** |"])


async def run(folder: Path, files: Iterable[str], sessions: int | None) -> None:
    """Measure both kinds of clients."""
    lives = lives_of(load(folder, tuple(files)), ContextParameters().form, 0)[:sessions]
    async with AsyncExitStack() as stack:
        data = stack.enter_context(temporary_folder())
        postgres = await asyncio.to_thread(embedded.start, data / "data")
        stack.callback(postgres.stop)
        side = await ours(postgres, data, ContextParameters(), "steps")
        stack.push_async_callback(side.stack.stop)
        await measured(side, lives, "Clients that append what happened")
        await side.stack.stop()
        other = await ours(postgres, data, ContextParameters(), "whole")
        stack.push_async_callback(other.stack.stop)
        whole = WholeListClient(other.name, other.url, other.stack, other.ask)
        await measured(whole, lives, "Clients that send their whole conversation")


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(
        prog="bench.storage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--files", nargs="+", default=(), help="names of its files, by default the coding sessions")
    parser.add_argument("--sessions", type=int, help="number of sessions, by default all")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(given.data, given.files, given.sessions))


if __name__ == "__main__":
    main()
