"""The command `replay`: recordings on a server, under one policy or two."""

import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import typer
from palimpsest import AsyncPalimpsest
from rich.console import Console

from app.core.render.formats import FormatName
from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import MalformedRecording, Recording
from palimpsest_tools.replay.compare import compare_session
from palimpsest_tools.replay.compare_show import CompareJson, CompareTable
from palimpsest_tools.replay.opening import open_page
from palimpsest_tools.replay.options import NamedPolicy, Options, named_policy
from palimpsest_tools.replay.run import replay_session
from palimpsest_tools.replay.show import JsonLines, LiveTable, Show
from palimpsest_tools.server import Address, RunningServer, run, running_server, stop

_EXIT_USAGE: Final = 2

_T = TypeVar("_T")


class _Report(Protocol):
    @property
    def failures(self) -> object: ...
    @property
    def session(self) -> str | None: ...


_R = TypeVar("_R", bound=_Report)


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
    show_page: bool,
    json: bool,
) -> None:
    """Run the command; exit with 1 if anything failed."""
    keep = keep or show_page
    if max_tokens is not None and share is not None:
        stop("--max-tokens and --share exclude each other", _EXIT_USAGE)
    if policy is not None and compare is not None:
        stop("--policy and --compare exclude each other", _EXIT_USAGE)
    recordings = _read(file, lambda: parse(decode(file.read_bytes()), file.stem)[:limit])
    own = None if policy is None else _policy(policy).policy
    options = Options(format, max_tokens, share, model, own, keep, outcomes=keep and share is None)
    if compare is None:
        failed = run(
            _play(
                recordings,
                session,
                options,
                address,
                show_page,
                lambda client, one, id, options, show: replay_session(client, one, id, options, show.call),
                lambda server: JsonLines(sys.stdout, server) if json else LiveTable(Console(), server, recordings),
            )
        )
    else:
        a, b = _policy(compare[0]), _policy(compare[1])
        names = (a.name, b.name)
        failed = run(
            _play(
                recordings,
                session,
                options,
                address,
                show_page,
                lambda client, one, id, options, show: compare_session(client, one, id, options, (a, b), show.call),
                lambda server: (
                    CompareJson(sys.stdout, server, names)
                    if json
                    else CompareTable(Console(), server, recordings, names)
                ),
            )
        )
    if failed:
        raise typer.Exit(1)


def _policy(given: str) -> NamedPolicy:
    return _read(Path(given), lambda: named_policy(given))


def _read(file: Path, reading: Callable[[], _T]) -> _T:
    """Return the result of `reading`; stop with one line that names the file if it cannot be read."""
    try:
        return reading()
    except MalformedRecording as malformed:
        line = "" if malformed.line is None else f":{malformed.line}"
        stop(f"{file.name}{line}: {malformed.detail}", _EXIT_USAGE)
    except OSError as error:
        stop(f"{file}: {error.strerror}", _EXIT_USAGE)


def session_ids(wanted: str | None, count: int) -> tuple[str, ...]:
    """Return an id for each recording, numbered if there are several; random if `wanted` is None."""
    base = wanted or f"replay-{secrets.token_hex(4)}"
    return (base,) if count == 1 else tuple(f"{base}.{number}" for number in range(1, count + 1))


async def _play(
    recordings: Sequence[Recording],
    session: str | None,
    options: Options,
    address: Address,
    show_page: bool,
    replay: Callable[[AsyncPalimpsest, Recording, str, Options, Show[_R]], Awaitable[_R]],
    show_on: Callable[[RunningServer], Show[_R]],
) -> bool:
    """Replay all recordings and, if `show_page`, open the page on them; return whether anything failed."""
    reports: list[_R] = []
    async with running_server(address) as server, server.address.client() as client:
        own = replace(options, keep=options.keep or server.temporary)
        ids = session_ids(session, len(recordings))
        with show_on(server) as show:
            for recording, id in zip(recordings, ids, strict=True):
                show.start(recording)
                reports.append(await replay(client, recording, id, own, show))
                show.report(reports[-1])
            show.summary(reports)
        if show_page:
            await open_page(server, [report.session for report in reports])
        if options.keep and ids and not server.temporary:
            name = ids[0].removesuffix(".1")
            typer.echo(f"the sessions are kept; `palimpsest sessions --find {name}` lists them", err=True)
    return any(report.failures for report in reports)
