"""The server that a command asks: the one named, the one already running here, or one started for it."""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from app.remote.address import Address

_READY_SECONDS_MAX: Final = 90.0
_STOP_SECONDS_MAX: Final = 20.0
_PROBE_INTERVAL_SECONDS: Final = 0.1
_OUTPUT_LINES: Final = 15


class NoServer(Exception):
    """No server could be reached or started; the message says why."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers; `origin` tells a person where it comes from. A `temporary` one ends with the command."""

    url: str
    origin: str
    temporary: bool = False


async def found_server(address: Address) -> RunningServer:
    """The server at an address. Raises NoServer if none answers there."""
    if not await is_palimpsest(address.url):
        how = "" if address.named else "; start it with `palimpsest serve`, or name it with --server or PALIMPSEST_URL"
        raise NoServer(f"{address.url} does not answer /healthz as Palimpsest{how}")
    return RunningServer(address.url, "given" if address.named else "already running")


@asynccontextmanager
async def running_server(address: Address) -> AsyncIterator[RunningServer]:
    """Find or start a server; one started here has a temporary data folder and is stopped at the end.

    One that a person named is never started. Raises NoServer.
    """
    if address.named or await is_palimpsest(address.url):
        yield await found_server(address)
    else:
        async with _start(address.key) as server:
            yield server


async def is_palimpsest(url: str) -> bool:
    """Whether a Palimpsest server answers at `url`."""
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=2.0) as http:
            answer = await http.get("/healthz")
            body = answer.json() if answer.is_success else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return False
    return isinstance(body, dict) and body.get("service") == "palimpsest"


@asynccontextmanager
async def _start(key: str | None) -> AsyncIterator[RunningServer]:
    with _temporary_folder() as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        output = folder / "output.log"
        with output.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.cli", "serve"),
                env=own_environment(os.environ, folder / "data", port, key),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C stops the replay, which then stops its server in good order
            )
        try:
            await _ready(url, process, output)
            yield RunningServer(url, "started for this replay, in a temporary data folder", temporary=True)
        finally:
            await _stop(process)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-replay-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Postgres refuses to run as root; the account it runs under must be able to enter this folder.
        folder.chmod(0o711)
        yield folder


def own_environment(environment: Mapping[str, str], data: Path, port: int, key: str | None) -> dict[str, str]:
    """The environment of a server that is started here, without the user's database, address or data folder.

    It accepts the `key` that it will be sent.
    """
    ours = ({} if key is None else {"PALIMPSEST_API_KEY": key}) | {
        "PALIMPSEST_DATA_DIR": str(data),
        "PALIMPSEST_HOST": "127.0.0.1",
        "PALIMPSEST_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }
    return {name: value for name, value in environment.items() if name != "PALIMPSEST_DATABASE_URL"} | ours


def free_port() -> int:
    """A TCP port that is free on the loopback address right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(url: str, process: asyncio.subprocess.Process, output: Path) -> None:
    try:
        async with asyncio.timeout(_READY_SECONDS_MAX):
            while process.returncode is None:
                if await is_palimpsest(url):
                    return
                await asyncio.sleep(_PROBE_INTERVAL_SECONDS)
    except TimeoutError:
        raise NoServer(f"the server did not become ready within {_READY_SECONDS_MAX:.0f} s{_output(output)}") from None
    raise NoServer(f"the server ended with status {process.returncode} while starting{_output(output)}")


def _output(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()[-_OUTPUT_LINES:]
    return ":\n" + "\n".join(lines) if lines else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
