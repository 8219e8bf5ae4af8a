"""A server of the benchmark's own: API and worker as processes on one embedded Postgres, loopback only."""

import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
from palimpsest import AsyncPalimpsest

from app.store import embedded, migrate
from palimpsest_tools.server import free_port, is_palimpsest

READY_SECONDS: Final = 90.0
IDLE_SECONDS: Final = 300.0
STOP_SECONDS: Final = 45.0
POLL_SECONDS: Final = (0.01, 0.1)
"""Interval between two polls of the queue: at first, and at most."""
_JOBS: Final = re.compile(r'^palimpsest_jobs\{kind="compact",state="\w+"\} (\S+)$', re.MULTILINE)


class Stack:
    """The server's processes, and a client of its API.

    `roles` are the commands that run, the API last. `checkout` is another checkout of the code to run.
    """

    def __init__(
        self,
        database_url: str,
        folder: Path,
        roles: Sequence[str] = ("worker", "api"),
        checkout: Path | None = None,
        **settings: str,
    ) -> None:
        self.port = port = free_port()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
        self.environment = kept | {
            "PALIMPSEST_DATABASE_URL": database_url,
            "PALIMPSEST_HOST": "127.0.0.1",
            "PALIMPSEST_PORT": str(port),
            "PALIMPSEST_SUMMARIZER": "extractive",
            "PALIMPSEST_LOG_LEVEL": "warning",
            **{f"PALIMPSEST_{name}": value for name, value in settings.items()},
        }
        self._output = folder / f"output.{port}.log"
        self._url = f"http://127.0.0.1:{port}"
        self._roles, self._checkout = roles, checkout
        self._running: dict[str, Process] = {}
        self.http = httpx2.AsyncClient(base_url=self._url, timeout=120)
        self.client = AsyncPalimpsest(base_url=self._url, timeout=120, http_client=self.http)

    async def start(self) -> None:
        """Start all roles; return when the API responds."""
        for role in self._roles[:-1]:
            self._running[role] = await self.run(role)
        await self._start_api()

    async def restart_api(self) -> None:
        """Replace the API process by a new one, whose memory is empty."""
        await _end(self._running.get(self._roles[-1]))
        await self._start_api()

    async def migrate(self) -> None:
        """Migrate the database to the schema of the code that runs."""
        if await (await self.run("migrate")).wait():
            raise RuntimeError(f"cannot migrate:\n{self._log()}")

    def pid(self, role: str) -> int:
        """Return the pid of the process that runs a role."""
        return self._running[role].pid

    async def stop(self) -> None:
        """Stop all processes."""
        await self.http.aclose()
        await asyncio.gather(*map(_end, self._running.values()))

    async def idle(self) -> None:
        """Wait until no job is queued or running."""
        pause, most = POLL_SECONDS
        async with asyncio.timeout(IDLE_SECONDS):
            while await self.jobs():
                await asyncio.sleep(pause)
                pause = min(most, pause * 1.5)

    async def all(self, path: str, **params: str | int) -> list[dict[str, Any]]:
        """Return every item of a paged list."""
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = {"limit": 500, **params} | ({} if cursor is None else {"cursor": cursor})
            answer = (await self.http.get(path, params=page)).raise_for_status().json()
            items += answer["items"]
            cursor = answer["next_cursor"]
            if cursor is None:
                return items

    async def run(self, role: str) -> Process:
        """Start a process that runs a command."""
        own = None if self._checkout is None else self._checkout / ".venv" / "bin" / "python"
        with self._output.open("ab") as sink:
            return await asyncio.create_subprocess_exec(
                *(str(own) if own is not None and own.exists() else sys.executable, "-m", "app.cli", role),
                env=self.environment,
                cwd=self._checkout,
                stdin=DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C stops the benchmark, which then stops its processes
            )

    async def jobs(self) -> float:
        """Return the number of jobs that wait or run."""
        text = (await self.http.get("/metrics")).raise_for_status().text
        found = _JOBS.findall(text)
        if not found:
            raise RuntimeError("the server does not say how many jobs wait")
        return sum(map(float, found))

    async def _start_api(self) -> None:
        api = self._running[self._roles[-1]] = await self.run(self._roles[-1])
        async with asyncio.timeout(READY_SECONDS):
            while not await is_palimpsest(self._url):
                if api.returncode is not None:
                    raise RuntimeError(f"the API ended while starting:\n{self._log()}")
                await asyncio.sleep(POLL_SECONDS[1])

    def _log(self) -> str:
        return self._output.read_text(errors="replace")


@asynccontextmanager
async def a_stack(**settings: str) -> AsyncIterator[Stack]:
    """Start a server on a data folder of its own; stop and remove everything at the end.

    `settings` are named without the prefix `PALIMPSEST_`.
    """
    with temporary_folder() as folder:
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        try:
            await migrate.upgrade(postgres.url)
            stack = Stack(postgres.url, folder, checkout=None, **settings)
            try:
                await stack.start()
                yield stack
            finally:
                await stack.stop()
        finally:
            await asyncio.to_thread(postgres.stop)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder for data, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-quality-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # if run by root, Postgres has an account of its own, which must be able to enter
        yield folder


async def _end(process: Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
