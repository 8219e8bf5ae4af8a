"""`palimpsest` as a process of its own that has nothing to import: forked from one that has imported everything.

To import is most of what a command takes. What is forked is a process in all else: it has its own environment and
output, and is signalled and killed as any other.
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
    "app.cli",
    "app.main",
    "app.providers.anthropic",
    "app.providers.openai",
    "app.providers.poster",
    "app.services.tenants",
    "app.store.embedded",
    "app.store.migrate",
    "app.store.walls",
    "app.wiring",
    "app.worker.run",
    "palimpsest_tools.commands",
    "palimpsest_tools.explain",
    "palimpsest_tools.replay.play",
    "palimpsest_tools.transfer.exporting",
    "palimpsest_tools.transfer.importing",
    "palimpsest_tools.verify",
    "sqlalchemy.ext.asyncio",
    "tests.support.loaded",
    "tests.support.processes",
    "uvloop",
]
PIECE_BYTES: Final = 65_536
_forking: Final = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(IMPORTED)


class Forked:
    """A process as `asyncio.subprocess.Process` is one: `returncode` is None until it has ended."""

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
        """Its exit status, negative if a signal ended it, once it has ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    @staticmethod
    def _take(connection: Connection, reader: asyncio.StreamReader) -> None:
        """Take what was written to a pipe, and close it at its end."""
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
    """The variables of a command: ours without any of Palimpsest's, and these settings, named without the prefix."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
    return ours | {f"PALIMPSEST_{key}": value for key, value in settings.items()} | {"COLUMNS": "200"}


async def palimpsest(*arguments: str, settings: Mapping[str, str], fresh: bool = False) -> Process:
    """Run a command; `settings` are its variables, without the prefix. A `fresh` one starts with an interpreter."""
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
    """What a command that has ended said."""

    returncode: int
    stdout: str
    stderr: str


async def outcome(process: Process, seconds_max: float = 180) -> Result:
    """What a command says, once it has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(seconds_max):
        out, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return Result(await process.wait(), out.decode(), errors.decode())


def _run(arguments: tuple[str, ...], variables: Mapping[str, str], out: Connection, err: Connection) -> None:
    """What the forked process does."""
    from app import cli

    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    for descriptor, connection in ((1, out), (2, err)):
        os.dup2(connection.fileno(), descriptor)
        connection.close()
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    sys.argv = ["palimpsest", *arguments]
    cli.main()


def runs(process: psutil.Process) -> bool:
    """Whether a process runs: it is neither gone, at whatever moment, nor left for its parent to collect."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
