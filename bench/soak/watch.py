"""Samples taken while the load runs: memory, files, connections, the queue, and the sizes of the tables."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

EVERY_SECONDS: Final = 5.0
TABLES_EVERY: Final = 12
"""Samples between two measurements of the tables."""
CONNECTIONS: Final = "connections"
WAITING_JOBS: Final = "jobs waiting"
DEAD_JOBS: Final = "jobs dead"
OVERDUE_JOBS: Final = "jobs overdue"
WAITING: Final = "statements waiting for a connection"
SESSION: Final = "posted to a living session, mean KB"
POSTGRES: Final = "Postgres, private MB"
JOBS: Final = {
    "palimpsest_jobs waiting": WAITING_JOBS,
    "palimpsest_jobs dead": DEAD_JOBS,
    "palimpsest_jobs_overdue": OVERDUE_JOBS,
}
_PRIVATE: Final = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
_BUSY: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
_TABLES: Final = """
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes FROM pg_class c JOIN pg_namespace n
ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'
"""


@dataclass(slots=True)
class Watch:
    """All samples by quantity: seconds since the beginning, and the value. Tables are in MB."""

    pids: Mapping[str, int]
    postmaster: int
    dsn: str
    apis: tuple[httpx2.AsyncClient, ...]
    mean_kb: Callable[[], float]
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    tables: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    scrapes: int = 0
    scrapes_without_jobs: int = 0
    """Scrapes without the queue's figures: a process leaves them out if the database is too slow."""
    begun: float = field(default_factory=time.perf_counter)

    async def run(self) -> None:
        """Sample until cancelled."""
        raw = await asyncpg.connect(self.dsn)
        number = 0
        try:
            while True:
                await self._sample(raw, tables=number % TABLES_EVERY == 0)
                number += 1
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            raw.terminate()

    async def _sample(self, raw: asyncpg.Connection, *, tables: bool) -> None:
        for role, pid in self.pids.items():
            process = psutil.Process(pid)
            self._add(f"{role}, MB", process.memory_info().rss / 2**20)
            self._add(f"{role}, open files", process.num_fds())
        self._add(SESSION, self.mean_kb())
        self._add(POSTGRES, private_mb(self.postmaster))
        self._add(CONNECTIONS, await raw.fetchval(_BUSY))
        scraped = [await metrics(http) for http in self.apis]
        self._add(WAITING, sum(one.get("palimpsest_pool_waiting", 0.0) for one in scraped))
        complete = [one for one in scraped if JOBS.keys() <= one.keys()]
        self.scrapes += len(scraped)
        self.scrapes_without_jobs += len(scraped) - len(complete)
        for metric, name in JOBS.items() if complete else ():
            self._add(name, complete[-1][metric])  # all processes report the same figures
        if tables:
            at = time.perf_counter() - self.begun
            for row in await raw.fetch(_TABLES):
                self.tables.setdefault(row["name"], []).append((at, row["bytes"] / 2**20))

    def _add(self, name: str, value: float) -> None:
        self.series.setdefault(name, []).append((time.perf_counter() - self.begun, float(value)))


async def metrics(http: httpx2.AsyncClient) -> dict[str, float]:
    """Return the gauges of `/metrics`, summed over kinds; a `state` label is appended to the name after a space."""
    text = (await http.get("/metrics")).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.type == "gauge" else ():
            name = " ".join(filter(None, (sample.name, sample.labels.get("state"))))
            found[name] = found.get(name, 0.0) + sample.value
    return found


def private_mb(postmaster: int) -> float:
    """Return the private memory of all Postgres processes; the shared cache has a fixed size and is left out."""
    process = psutil.Process(postmaster)
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            found = _PRIVATE.search(Path(f"/proc/{one.pid}/status").read_text(encoding="ascii", errors="replace"))
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        total += int(found[1]) if found else 0
    return total / 1024
