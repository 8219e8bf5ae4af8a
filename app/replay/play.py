"""Replaying recordings on a server, and showing what came of it."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import typer
from rich.console import Console

from app.core.render.formats import FormatName
from app.recordings.load import decode, parse
from app.recordings.recording import MalformedRecording, Recording
from app.remote.address import Address
from app.remote.client import Client
from app.remote.server import NoServer, RunningServer, running_server
from app.remote.stopping import stop
from app.replay.compare import Comparison, compare_session
from app.replay.compare_show import CompareJson, CompareShow, CompareTable
from app.replay.options import NamedPolicy, Options, named_policy
from app.replay.report import SessionReport
from app.replay.run import replay_session
from app.replay.show import JsonLines, LiveTable, Show

_REQUEST_SECONDS_MAX: Final = 120.0
_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2

_T = TypeVar("_T")


def play(
    file: Path,
    max_tokens: int | None,
    share: float | None,
    model: str | None,
    format: FormatName | None,
    address: Address,
    session: str | None,
    policy: str | None,
    compare: tuple[str, str] | None,
    limit: int | None,
    *,
    keep: bool,
    json: bool,
) -> None:
    """Do what the command's arguments ask for."""
    if max_tokens is not None and share is not None:
        stop("--max-tokens and --share exclude each other", _EXIT_USAGE)
    if policy is not None and compare is not None:
        stop("--policy and --compare exclude each other", _EXIT_USAGE)
    recordings = _read(file, lambda: parse(decode(file.read_bytes()), file.stem)[:limit])
    own = None if policy is None else _policy(policy).policy
    options = Options(format, max_tokens, share, model, own)
    ids = session_ids(session, len(recordings))
    if compare is None:
        _run(_replay(recordings, ids, options, address, keep=keep, json=json))
    else:
        policies = (_policy(compare[0]), _policy(compare[1]))
        _run(_compare(recordings, ids, options, address, policies, keep=keep, json=json))


def _run(work: Coroutine[None, None, bool]) -> None:
    """Run `work` to the end, and exit with 1 if it returns that anything failed."""
    try:
        failed = asyncio.run(work)
    except NoServer as error:
        stop(str(error))
    except KeyboardInterrupt:
        stop("interrupted", 130)
    if failed:
        raise typer.Exit(_EXIT_FAILED)


def _policy(given: str) -> NamedPolicy:
    return _read(Path(given), lambda: named_policy(given))


def _read(file: Path, reading: Callable[[], _T]) -> _T:
    """The result of `reading`; stop with one line that names the file if it cannot be read."""
    try:
        return reading()
    except MalformedRecording as malformed:
        line = "" if malformed.line is None else f":{malformed.line}"
        stop(f"{file.name}{line}: {malformed.detail}", _EXIT_USAGE)
    except OSError as error:
        stop(f"{file}: {error.strerror}", _EXIT_USAGE)


def session_ids(wanted: str | None, count: int) -> tuple[str, ...]:
    """An id for each recording, numbered if there are several; random if `wanted` is None."""
    base = wanted or f"replay-{secrets.token_hex(4)}"
    return (base,) if count == 1 else tuple(f"{base}.{number}" for number in range(1, count + 1))


async def _replay(
    recordings: Sequence[Recording], ids: Sequence[str], options: Options, address: Address, *, keep: bool, json: bool
) -> bool:
    """Replay all recordings; return whether anything failed."""
    reports: list[SessionReport] = []
    async with running_server(address) as server, _client(server, address, keep=keep) as client:
        with _show(server, recordings, json=json) as show:
            for recording, id in zip(recordings, ids, strict=True):
                show.begins(recording)
                report = await replay_session(client, recording, id, options, show.called)
                show.ended(report)
                reports.append(report)
            show.summary(reports)
    return any(report.failures for report in reports)


async def _compare(
    recordings: Sequence[Recording],
    ids: Sequence[str],
    options: Options,
    address: Address,
    policies: tuple[NamedPolicy, NamedPolicy],
    *,
    keep: bool,
    json: bool,
) -> bool:
    """Replay all recordings under both policies; return whether anything failed."""
    comparisons: list[Comparison] = []
    names = (policies[0].name, policies[1].name)
    async with running_server(address) as server, _client(server, address, keep=keep) as client:
        with _compare_show(server, recordings, names, json=json) as show:
            for recording, id in zip(recordings, ids, strict=True):
                show.begins(recording)
                comparison = await compare_session(client, recording, id, options, policies, show.called)
                show.ended(comparison)
                comparisons.append(comparison)
            show.summary(comparisons)
    return any(comparison.failures for comparison in comparisons)


@asynccontextmanager
async def _client(server: RunningServer, address: Address, *, keep: bool) -> AsyncIterator[Client]:
    """A client of the server; unless they are to be kept, the sessions that it made are erased at the end."""
    async with address.http(_REQUEST_SECONDS_MAX, server.url) as http:
        client = Client(http)
        try:
            yield client
        finally:
            if not keep and not server.temporary:
                for left in await client.erase_made():
                    typer.echo(left, err=True)


def _show(server: RunningServer, recordings: Sequence[Recording], *, json: bool) -> Show:
    if json:
        _print_server(server)
        return JsonLines(sys.stdout, server)
    return LiveTable(Console(), server, recordings)


def _compare_show(
    server: RunningServer, recordings: Sequence[Recording], names: tuple[str, str], *, json: bool
) -> CompareShow:
    if json:
        _print_server(server)
        return CompareJson(sys.stdout, server, names)
    return CompareTable(Console(), server, recordings, names)


def _print_server(server: RunningServer) -> None:
    Console(stderr=True).print(f"server: {server.url} ({server.origin})", highlight=False, soft_wrap=True)
