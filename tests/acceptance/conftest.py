"""Fixtures that run the real command as a process and read its output."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.folders import data_folder
from tests.support.processes import Process, palimpsest

SECONDS_MAX = 120
ADDRESS = re.compile(r"^palimpsest: serving on (http://\S+)$")


class Command:
    """A running `palimpsest`. Its standard error is read continuously, so that it never blocks on us."""

    def __init__(self, process: Process) -> None:
        assert process.stderr is not None
        self.process = process
        self._errors = asyncio.create_task(process.stderr.read())

    async def line(self) -> str:
        """Return the next line of its standard output; empty after its end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS_MAX):
            return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def expect_line(self, what: str) -> None:
        """Wait for a line with its prefix."""
        line = await self.line()
        assert line == f"palimpsest: {what}", (line, await self.wait())

    async def url(self) -> str:
        """Return its base URL, as soon as it serves."""
        await self.expect_line("starting")
        line = await self.line()
        if line.startswith("palimpsest: data in "):
            line = await self.line()
        found = ADDRESS.match(line)
        assert found, (line, await self.wait())
        return found[1]

    async def wait(self) -> tuple[int, list[str]]:
        """Return its exit status and its lines of standard error, once it has ended."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS_MAX):
            await self.process.stdout.read()
            return await self.process.wait(), (await self._errors).decode().splitlines()

    async def kill(self) -> None:
        """Kill it if it still runs."""
        if self.process.returncode is None:
            self.process.kill()
        await self.wait()

    async def stop(self) -> tuple[int, list[str]]:
        """Send it SIGTERM, and wait for its end."""
        self.process.terminate()
        return await self.wait()


class Commands:
    """Starts `palimpsest` with a data folder and settings of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Command] = []

    async def start(self, *arguments: str, **settings: str) -> Command:
        """Run it on a free port with warnings logged, unless variables in `settings`, without prefix, override that."""
        return await self._start(arguments, settings, fresh=False)

    async def start_fresh(self, *arguments: str, **settings: str) -> Command:
        """Run it in an interpreter without prior imports, like an installed command."""
        return await self._start(arguments, settings, fresh=True)

    async def _start(self, arguments: Sequence[str], settings: Mapping[str, str], *, fresh: bool) -> Command:
        ours = {"DATA_DIR": str(self.folder), "PORT": "0", "LOG_LEVEL": "warning", **settings}
        command = Command(await palimpsest(*arguments, settings=ours, fresh=fresh))
        self._started.append(command)
        return command

    async def refusal(self, *arguments: str, **settings: str) -> str:
        """Return the one line that it prints before it fails."""
        status, errors = await (await self.start(*arguments, **settings)).wait()
        assert status != 0
        assert len(errors) == 1, errors
        return errors[0]

    def postmaster(self) -> psutil.Process | None:
        """Return the Postgres of the data folder, if it runs."""
        try:
            pid = int((self.folder / "postgres" / "postmaster.pid").read_text().split()[0])
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (FileNotFoundError, NotADirectoryError, psutil.NoSuchProcess):
            return None

    async def kill_all(self) -> None:
        """Kill all processes that still run, Postgres last."""
        for command in self._started:
            await command.kill()
        postmaster = self.postmaster()
        if postmaster is not None:
            victims = [*postmaster.children(recursive=True), postmaster]
            for victim in victims:
                with suppress(psutil.NoSuchProcess):  # some end when others are gone
                    victim.kill()
            psutil.wait_procs(victims, timeout=SECONDS_MAX)


def _processes(command: Command) -> tuple[list[psutil.Process], list[psutil.Process]]:
    children = [one for one in psutil.Process(command.process.pid).children() if one.name() != "postgres"]
    apis = [one for one in children if one.net_connections("inet")]
    return apis, [one for one in children if one not in apis]


async def processes(
    command: Command, *, apis: int = 1, workers: int = 1
) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return a command's listening processes and its workers, once it has `apis` and `workers` of them."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with suppress(psutil.NoSuchProcess):
                found = await asyncio.to_thread(_processes, command)
                if tuple(map(len, found)) == (apis, workers):
                    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a path for a data folder."""
    with data_folder() as place:
        yield place / "data"


@pytest.fixture
async def commands(folder: Path) -> AsyncIterator[Commands]:
    """Return a starter of commands; all are killed at the end."""
    running = Commands(folder)
    yield running
    await running.kill_all()
