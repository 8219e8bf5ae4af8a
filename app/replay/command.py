"""The command `palimpsest replay`."""

import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import httpx
import typer
from rich.console import Console

from app.replay.client import Client
from app.replay.load import decode, parse
from app.replay.options import Options
from app.replay.recording import MalformedRecording, Recording
from app.replay.report import SessionReport
from app.replay.run import replay_session
from app.replay.server import NoServer, Server, a_server
from app.replay.show import JsonLines, LiveTable, Show

_REQUEST_SECONDS_MAX: Final = 120.0
_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2


class Format(StrEnum):
    """What contexts are rendered as."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    BLOCKS = "blocks"


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="OpenAI or Anthropic messages (JSON), a coding agent's session log, or neutral sessions (JSONL).",
        ),
    ],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The model's window for every call; default: the server's for the model.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Instead: room for this part of each session's own tokens, beside its system prompt and tools.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model the contexts are for.")] = None,
    format: Annotated[
        Format | None, typer.Option(help="Format of the contexts; default: the recording's own, else openai.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running server; default: the one on port 8700, else one of its own.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Name of the policy to use.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N sessions of the file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a session and a total line.")] = False,
) -> None:
    """Feed recorded agent sessions through a real server, call by call, and show what each context held and cost.

    Exits with 1 if any request or check failed, with 2 if the file is no recording (then nothing was sent).
    A server that asks for a key gets the one in PALIMPSEST_API_KEY.
    """
    if max_tokens is not None and share is not None:
        _stop("--max-tokens and --share exclude each other", _EXIT_USAGE)
    try:
        recordings = parse(decode(file.read_bytes()), file.stem)[:limit]
    except MalformedRecording as malformed:
        line = "" if malformed.line is None else f":{malformed.line}"
        _stop(f"{file.name}{line}: {malformed.detail}", _EXIT_USAGE)
    except OSError as error:
        _stop(f"{file}: {error.strerror}", _EXIT_USAGE)
    options = Options(None if format is None else format.value, max_tokens, share, model, policy)
    try:
        reports = asyncio.run(_replay(recordings, session_ids(session, len(recordings)), options, url, json=json))
    except NoServer as error:
        _stop(str(error), _EXIT_FAILED)
    except KeyboardInterrupt:
        _stop("interrupted", 130)
    if any(report.failures for report in reports):
        raise typer.Exit(_EXIT_FAILED)


def session_ids(wanted: str | None, count: int) -> tuple[str, ...]:
    """An id for each recording: numbered if there are several, new by chance if none is wanted."""
    base = wanted or f"replay-{secrets.token_hex(4)}"
    return (base,) if count == 1 else tuple(f"{base}.{number}" for number in range(1, count + 1))


async def _replay(
    recordings: Sequence[Recording], ids: Sequence[str], options: Options, url: str | None, *, json: bool
) -> list[SessionReport]:
    key = os.environ.get("PALIMPSEST_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reports: list[SessionReport] = []
    async with a_server(url) as server, _http(server, headers) as http:
        with _show(server, recordings, json=json) as show:
            for recording, id in zip(recordings, ids, strict=True):
                show.begins(recording)
                report = await replay_session(Client(http), recording, id, options, show.called)
                show.ended(report)
                reports.append(report)
            show.summary(reports)
    return reports


def _http(server: Server, headers: dict[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, headers=headers, timeout=_REQUEST_SECONDS_MAX)


def _show(server: Server, recordings: Sequence[Recording], *, json: bool) -> Show:
    if json:
        Console(stderr=True).print(f"server: {server.url} ({server.origin})", highlight=False, soft_wrap=True)
        return JsonLines(sys.stdout, server)
    return LiveTable(Console(), server, recordings)


def _stop(message: str, status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status)
