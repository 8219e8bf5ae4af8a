"""The server that a command uses, its client, and the end of a command that cannot continue."""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

import httpx2
import typer
from palimpsest import (
    AsyncPalimpsest,
    AsyncSession,
    ConnectionFailed,
    NotFoundError,
    PalimpsestError,
    StatusError,
)
from palimpsest.types import AppendedEvent, PolicyDocument

from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages

PAGE: Final = 500
"""Number of items in a page of a list."""
_REQUEST_SECONDS_MAX: Final = 120.0
_READY_SECONDS_MAX: Final = 90.0
_STOP_SECONDS_MAX: Final = 20.0
_PROBE_SECONDS_MAX: Final = 2.0
_PROBE_INTERVAL_SECONDS: Final = 0.1
_OUTPUT_LINES: Final = 15
_CREATED: Final = 201
_TOO_MANY_REQUESTS: Final = 429

_T = TypeVar("_T")


class NoServer(Exception):
    """No server could be reached or started; the message says why."""


class CheckFailed(Exception):
    """A check of the tools themselves failed. `type` names it in reports, as a slug names a problem of the server."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type
        self.detail = detail


def stop(message: str, status: int = 1) -> NoReturn:
    """End the command with a line on standard error."""
    typer.echo(f"palimpsest: {message}", err=True)
    raise typer.Exit(status)


def run(work: Coroutine[Any, Any, _T], interrupted: str = "interrupted") -> _T:
    """Run the requests of a command; stop with one line if there is no server, or if it refuses one of them."""
    try:
        return asyncio.run(work)
    except NoServer as error:
        stop(str(error))
    except PalimpsestError as error:
        stop(reason_of(error)[1])
    except KeyboardInterrupt:
        stop(interrupted, 130)


def reason_of(error: PalimpsestError | CheckFailed) -> tuple[str, str]:
    """Return the type of a failure (the server's slug, `unreachable` or `unreadable`) and its detail."""
    if isinstance(error, CheckFailed):
        return error.type, error.detail
    if isinstance(error, StatusError):
        return error.slug or f"http-{error.status}", error.detail or error.title
    return "unreachable" if isinstance(error, ConnectionFailed) else "unreadable", str(error)


class PatientClient(httpx2.AsyncClient):
    """An HTTP client that repeats a request after the delay that the server names, however often it is too early."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send the request until the server has room for it."""
        while True:
            response = await super().send(request, **options)
            delay = response.headers.get("retry-after", "")
            if response.status_code != _TOO_MANY_REQUESTS or not delay.isdecimal():
                return response
            await response.aclose()
            await asyncio.sleep(float(delay))


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. `named` means that the user chose it; otherwise it is where `serve` would listen."""

    url: str
    key: str | None = field(default=None, repr=False)
    named: bool = False

    def client(self) -> AsyncPalimpsest:
        """Return a client of the server."""
        return AsyncPalimpsest(
            base_url=self.url, api_key=self.key, timeout=_REQUEST_SECONDS_MAX, http_client=PatientClient()
        )


def address(url: str | None, key: str | None) -> Address:
    """Return the server of the command's options, else of the environment; stop if the key's file cannot be read."""
    named = url or os.environ.get("PALIMPSEST_URL")
    return Address(named or _local_url(), key or os.environ.get("PALIMPSEST_API_KEY") or _key_in_file(), bool(named))


def _local_url() -> str:
    """Return the URL at which a server of this machine listens by these settings."""
    host, port = os.environ.get("PALIMPSEST_HOST", "127.0.0.1"), os.environ.get("PALIMPSEST_PORT", "8700")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a client connects to loopback)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _key_in_file() -> str | None:
    path = os.environ.get("PALIMPSEST_API_KEY_FILE")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n") if path else None
    except (OSError, UnicodeDecodeError) as error:
        stop(f"PALIMPSEST_API_KEY_FILE: cannot read {path}: {getattr(error, 'strerror', error)}")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server; `origin` tells the user where it comes from. A `temporary` one ends with the command."""

    address: Address
    origin: str
    temporary: bool = False

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.address.url


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[AsyncPalimpsest]:
    """Connect to the server at an address. Raises NoServer if none answers there."""
    await _require_server(address)
    async with address.client() as client:
        yield client


@asynccontextmanager
async def running_server(address: Address) -> AsyncIterator[RunningServer]:
    """Find or start a server; a started one has a temporary data folder and is stopped at the end.

    A server that the user named is never started. Raises NoServer.
    """
    if address.named or await is_palimpsest(address.url):
        await _require_server(address)
        yield RunningServer(address, "given" if address.named else "already running")
    else:
        async with _start(address.key) as server:
            yield server


async def _require_server(address: Address) -> None:
    if not await is_palimpsest(address.url):
        how = "" if address.named else "; start it with `palimpsest serve`, or name it with --server or PALIMPSEST_URL"
        raise NoServer(f"{address.url} does not answer /healthz as Palimpsest{how}")


async def is_palimpsest(url: str) -> bool:
    """Return whether a Palimpsest server answers at `url`."""
    try:
        async with AsyncPalimpsest(base_url=url, timeout=_PROBE_SECONDS_MAX, max_retries=0) as client:
            answer: object = await client.healthz()
    except (PalimpsestError, httpx2.InvalidURL):
        return False
    return isinstance(answer, dict) and answer.get("service") == "palimpsest"


async def append(session: AsyncSession, step: AppendEvents | AppendMessages) -> list[AppendedEvent]:
    """Append one step of a recording; return its events in log order."""
    if isinstance(step, AppendEvents):
        return (await session.append_events(events=cast(Any, step.events))).events
    return (await session.append_messages(format=cast(Any, step.format), messages=step.messages)).events


@asynccontextmanager
async def new_session(
    client: AsyncPalimpsest,
    id: str,
    *,
    policy: str | PolicyDocument | None,
    model: str | None,
    recording: str | None = None,
    keep: bool = False,
) -> AsyncIterator[AsyncSession]:
    """Create a session and, unless it is to be kept, erase it at the end.

    Its metadata names the recording. A session that existed before is not erased. Raises CheckFailed if it already
    holds events, or PalimpsestError.
    """
    session = client.session(id)
    metadata = None if recording is None else {"recording": recording}
    answer = await session.put_session.raw(policy=policy, model=model, metadata=metadata)
    if head := answer.parse().head:
        raise CheckFailed("session-not-new", f"session {id} already holds {head} events")
    try:
        yield session
    finally:
        if answer.status_code == _CREATED and not keep:
            try:
                with suppress(NotFoundError):
                    await session.delete_session()
            except PalimpsestError as error:
                typer.echo(f"session {id} stays on the server: {error}", err=True)


@asynccontextmanager
async def own_server() -> AsyncIterator[RunningServer]:
    """Start a server with the default settings and a temporary data folder; stop it at the end.

    It has none of the user's settings, so that it calls no model and sends nothing anywhere. Raises NoServer.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PALIMPSEST_", "OTEL_"))}
    async with _start(None, plain) as server:
        yield server


@asynccontextmanager
async def _start(key: str | None, environment: Mapping[str, str] = os.environ) -> AsyncIterator[RunningServer]:
    with _temporary_folder() as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        output = folder / "output.log"
        with output.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.cli", "serve"),
                env=server_environment(environment, folder / "data", port, key),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C stops the replay, which then stops its server in good order
            )
        try:
            await _ready(url, process, output)
            origin = "started for this replay, in a temporary data folder"
            yield RunningServer(Address(url, key), origin, temporary=True)
        finally:
            await _stop(process)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-replay-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Postgres refuses to run as root; the account it runs under must be able to enter this folder.
        folder.chmod(0o711)
        yield folder


def server_environment(environment: Mapping[str, str], data: Path, port: int, key: str | None) -> dict[str, str]:
    """Return the environment of a temporary server: the user's, without their databases, key, address and data folder.

    The server accepts `key`.
    """
    theirs = ("PALIMPSEST_API_KEY", "PALIMPSEST_DATABASE", "PALIMPSEST_READ_DATABASE")
    ours = ({} if key is None else {"PALIMPSEST_API_KEY": key}) | {
        "PALIMPSEST_DATA_DIR": str(data),
        "PALIMPSEST_HOST": "127.0.0.1",
        "PALIMPSEST_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }
    return {name: value for name, value in environment.items() if not name.startswith(theirs)} | ours


def free_port() -> int:
    """Return a TCP port that is free on the loopback address."""
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
