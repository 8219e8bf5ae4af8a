"""A Citus cluster on loopback: a coordinator and its workers, each a Postgres on a port of its own.

`python -m tests.citus.nodes --workers 2` starts one and prints its URL, until it is interrupted.
"""

import argparse
import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from tests.support.folders import data_folder

BINARIES: Final = Path("/usr/lib/postgresql/15/bin")
LIBRARY: Final = Path("/usr/lib/postgresql/15/lib/citus.so")
OWNER: Final = "palimpsest"
ROOTS_USER: Final = "postgres"
"""User made by Debian's package, since Postgres does not run as root."""
OPTIONS: Final = {
    "shared_preload_libraries": "citus",
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",  # shards move between nodes by replication
    "max_connections": "200",
    "max_prepared_transactions": "200",  # writes to several nodes commit in two phases
    "shared_buffers": "64MB",
    "jit": "off",
    "citus.node_conninfo": "sslmode=disable",
    "citus.enable_statistics_collection": "off",
    "fsync": "off",
    "full_page_writes": "off",
}


def missing() -> str | None:
    """Return why no cluster can be started here, None if one can."""
    return None if LIBRARY.exists() else "Citus is not installed for PostgreSQL 15: tests/citus/build.sh folder"


@dataclass(frozen=True)
class Cluster:
    """The ports of a running cluster's nodes, the coordinator's first, and the folder with their data."""

    ports: tuple[int, ...]
    folder: Path

    @contextmanager
    def without(self, node: int) -> Iterator[None]:
        """Stop a node while the block lasts."""
        folder, user = self.folder / f"node{node}", _user()
        _call(user, "pg_ctl", "stop", "-w", "-m", "fast", "-D", folder)
        try:
            yield
        finally:
            _call(user, "pg_ctl", "start", "-w", "-D", folder, "-l", folder / "log")

    def url(self, database: str, node: int = 0) -> str:
        """Return the URL of a database on a node."""
        return f"postgresql://{OWNER}@127.0.0.1:{self.ports[node]}/{database}?sslmode=disable"

    def urls(self, database: str) -> list[str]:
        """Return the URLs of a database on every node."""
        return [self.url(database, node) for node in range(len(self.ports))]

    async def make(self, database: str) -> str:
        """Create a database on every node, with Citus and its workers registered; return its URL."""
        for url in self.urls("postgres"):
            await _run(url, f"CREATE DATABASE {database}")
        await self.join(database)
        return self.url(database)

    async def join(self, database: str) -> None:
        """Install Citus in a database that exists on every node, and register the workers."""
        for url in self.urls(database):
            await _run(url, "CREATE EXTENSION citus; CREATE EXTENSION btree_gist")
        coordinator, *workers = self.ports
        added = "; ".join(f"SELECT citus_add_node('127.0.0.1', {port})" for port in workers)
        await _run(self.url(database), f"SELECT citus_set_coordinator_host('127.0.0.1', {coordinator}); {added}")

    async def drop(self, database: str) -> None:
        """Drop a database on every node."""
        for node in range(len(self.ports)):
            await _run(self.url("postgres", node), f"DROP DATABASE {database} WITH (FORCE)")


@contextmanager
def running(workers: int) -> Iterator[Cluster]:
    """Run a coordinator and `workers` workers in a temporary folder while the block lasts."""
    user = _user()
    with data_folder() as folder, ExitStack() as started:
        if user:
            shutil.chown(folder, user)
        ports = [started.enter_context(_node(folder / f"node{n}", user)) for n in range(workers + 1)]
        yield Cluster(tuple(ports), folder)


def _user() -> str | None:
    """Return the user that runs Postgres, None for the current one."""
    return ROOTS_USER if os.geteuid() == 0 else None


@contextmanager
def _node(folder: Path, user: str | None) -> Iterator[int]:
    """Run one Postgres; return its port."""
    port = _free_port()
    _call(user, "initdb", "-D", folder, "-U", OWNER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
    options = {**OPTIONS, "port": str(port), "unix_socket_directories": str(folder)}
    with (folder / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in options.items())
    _call(user, "pg_ctl", "start", "-w", "-D", folder, "-l", folder / "log")
    try:
        yield port
    finally:
        _call(user, "pg_ctl", "stop", "-m", "immediate", "-D", folder)


def _call(user: str | None, program: str, *arguments: object) -> None:
    command = [str(BINARIES / program), *map(str, arguments)]
    subprocess.run(command, check=True, user=user, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _run(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def main() -> None:
    """Run a cluster until this process is interrupted or terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    if reason := missing():
        parser.error(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running(workers) as cluster:
        try:
            print(asyncio.run(cluster.make("palimpsest")), flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
