"""A server of the benchmark's own: API and worker as processes on one embedded Postgres, loopback only."""

import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from app.replay.client import Client
from app.replay.server import free_port, is_palimpsest
from app.store import embedded, migrate

READY_SECONDS: Final = 90.0
IDLE_SECONDS: Final = 300.0
STOP_SECONDS: Final = 45.0
POLL_SECONDS: Final = (0.01, 0.1)
"""Between two looks at the queue: at first, and at most."""
_JOBS: Final = re.compile(r'^palimpsest_jobs\{kind="compact",state="\w+"\} (\S+)$', re.MULTILINE)


class Stack:
    """The processes, and a client that talks to the API among them."""

    def __init__(self, database_url: str, folder: Path) -> None:
        port = free_port()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
        self._environment = kept | {
            "PALIMPSEST_DATABASE_URL": database_url,
            "PALIMPSEST_HOST": "127.0.0.1",
            "PALIMPSEST_PORT": str(port),
            "PALIMPSEST_SUMMARIZER": "extractive",
            "PALIMPSEST_LOG_LEVEL": "warning",
        }
        self._output = folder / "output.log"
        self._url = f"http://127.0.0.1:{port}"
        self._api: Process | None = None
        self._worker: Process | None = None
        self.http = httpx.AsyncClient(base_url=self._url, timeout=120)
        self.client = Client(self.http)

    async def start(self) -> None:
        """Start API and worker; return when the API answers."""
        self._worker = await self._run("worker")
        await self._start_api()

    async def restart_api(self) -> None:
        """End the API's process and start another one, which remembers nothing but what is stored."""
        await _end(self._api)
        await self._start_api()

    async def stop(self) -> None:
        """End both processes."""
        await self.http.aclose()
        await asyncio.gather(_end(self._api), _end(self._worker))

    async def idle(self) -> None:
        """Wait until no job waits for the worker and none is under way."""
        pause, most = POLL_SECONDS
        async with asyncio.timeout(IDLE_SECONDS):
            while await self._jobs():
                await asyncio.sleep(pause)
                pause = min(most, pause * 1.5)

    async def all(self, path: str, **params: str | int) -> list[dict[str, Any]]:
        """Every item of a list that is paged."""
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = {"limit": 500, **params} | ({} if cursor is None else {"cursor": cursor})
            answer = (await self.http.get(path, params=page)).raise_for_status().json()
            items += answer["items"]
            cursor = answer["next_cursor"]
            if cursor is None:
                return items

    async def _jobs(self) -> float:
        text = (await self.http.get("/metrics")).raise_for_status().text
        found = _JOBS.findall(text)
        if not found:
            raise RuntimeError("the server does not say how many jobs wait")
        return sum(map(float, found))

    async def _start_api(self) -> None:
        self._api = await self._run("api")
        async with asyncio.timeout(READY_SECONDS):
            while not await is_palimpsest(self._url):
                if self._api.returncode is not None:
                    raise RuntimeError(f"the API ended while starting:\n{self._output.read_text(errors='replace')}")
                await asyncio.sleep(POLL_SECONDS[1])

    async def _run(self, role: str) -> Process:
        with self._output.open("ab") as sink:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.cli", role),
                env=self._environment,
                stdin=DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C stops the benchmark, which then stops its processes in good order
            )


@asynccontextmanager
async def a_stack() -> AsyncIterator[Stack]:
    """A server on a data folder of its own; everything is stopped and removed at the end."""
    with _temporary_folder() as folder:
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        try:
            await migrate.upgrade(postgres.url)
            stack = Stack(postgres.url, folder)
            try:
                await stack.start()
                yield stack
            finally:
                await stack.stop()
        finally:
            await asyncio.to_thread(postgres.stop)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-quality-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # run by root, Postgres has an account of its own, which must be able to walk in here
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
