"""`palimpsest` commands as processes that start fast, forked from one that has imported everything.

Imports are most of a command's start time. A forked process has its own environment and output, and is signalled and
killed like any other.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import psutil

from tests.support import pooler

ROOT: Final = Path(__file__).parents[2]
IMPORTED: Final = [
    "alembic.command",
    "anyio._backends._asyncio",
    "app.cli.main",
    "app.main",
    "app.wings.summarizers.anthropic",
    "app.wings.summarizers.openai",
    "app.wings.telemetry.metrics",
    "app.wings.telemetry.routes",
    "app.wings.webhooks.jobs",
    "app.tenants",
    "app.store.embedded",
    "app.store.migrate",
    "app.runtime.wiring",
    "app.worker",
    "httpcore2",
    "markdown_it",
    "palimpsest_tools.bench.command",
    "palimpsest_tools.commands",
    "palimpsest_tools.look.calls",
    "palimpsest_tools.look.context",
    "palimpsest_tools.look.events",
    "palimpsest_tools.look.explain",
    "palimpsest_tools.look.sessions",
    "palimpsest_tools.replay.play",
    "palimpsest_tools.transfer.exporting",
    "palimpsest_tools.transfer.importing",
    "palimpsest_tools.verify",
    "sqlalchemy.ext.asyncio",
    "tests.support.processes",
    "uvloop",
    "tests.support.preload",
]
PIECE_BYTES: Final = 65_536
_forking: Final = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(IMPORTED)


class Forked:
    """A process with the interface of `asyncio.subprocess.Process`; `returncode` is None until it has ended."""

    def __init__(self, process: multiprocessing.process.BaseProcess, out: Connection, err: Connection) -> None:
        assert process.pid is not None
        self.pid: Final = process.pid
        self.returncode: int | None = None
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._process, self._ended = process, asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._reap)
        for connection, reader in ((out, self.stdout), (err, self.stderr)):
            loop.add_reader(connection.fileno(), self._take, connection, reader)

    async def wait(self) -> int:
        """Return the exit status once the process has ended, negative if a signal ended it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @staticmethod
    def _take(connection: Connection, reader: asyncio.StreamReader) -> None:
        """Read what was written to a pipe, and close the pipe at its end."""
        taken = os.read(connection.fileno(), PIECE_BYTES)
        if taken:
            reader.feed_data(taken)
        else:
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()
            reader.feed_eof()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self.returncode = self._process.exitcode
        self._process.close()
        self._ended.set()


Process = Forked | asyncio.subprocess.Process


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the current variables without Palimpsest's, plus these settings, which are named without the prefix."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
    return ours | {f"PALIMPSEST_{key}": value for key, value in settings.items()} | {"COLUMNS": "200"}


async def palimpsest(*arguments: str, settings: Mapping[str, str], fresh: bool = False) -> Process:
    """Start a command with `settings`, named without their prefix; a `fresh` one starts a new interpreter."""
    pooler_url = pooler.address(settings["DATABASE_URL"]) if settings.get("DATABASE_URL") else None
    if pooler_url:
        settings = {"DATABASE_POOLER_URL": pooler_url, **settings}
    variables = environment(settings)
    if fresh:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", *arguments),
            env=variables,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    (out, out_there), (err, err_there) = (_forking.Pipe(duplex=False) for _ in range(2))
    process = _forking.Process(target=_run, args=(arguments, variables, out_there, err_there), daemon=True)
    await asyncio.to_thread(process.start)
    out_there.close()
    err_there.close()
    return Forked(process, out, err)


@dataclass(frozen=True)
class Result:
    """The exit status and output of a finished command."""

    returncode: int
    stdout: str
    stderr: str


async def outcome(process: Process, seconds_max: float = 180) -> Result:
    """Wait for a command to end and return its result."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(seconds_max):
        out, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return Result(await process.wait(), out.decode(), errors.decode())


def _run(arguments: tuple[str, ...], variables: Mapping[str, str], out: Connection, err: Connection) -> None:
    """Run the command in the forked process."""
    from app.cli import main as cli

    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    for descriptor, connection in ((1, out), (2, err)):
        os.dup2(connection.fileno(), descriptor)
        connection.close()
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    sys.argv = ["palimpsest", *arguments]
    cli.main()


def is_running(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
