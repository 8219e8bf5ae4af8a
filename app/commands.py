"""The command-line interface of the commands that call a running server: `replay`, `explain`, `verify`, `import`,
`export`.

Each imports its implementation when it runs, which saves other commands the time and the server the memory. All find
the server by the same settings (`app/settings.py`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.core.render.formats import FormatName
from app.core.render.formats.tools import NativeFormat
from app.remote.stopping import stop
from app.settings import InvalidSetting, load

if TYPE_CHECKING:
    from app.remote.address import Address

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "--url",
        help="Address of the server (PALIMPSEST_URL); default: from PALIMPSEST_HOST and PALIMPSEST_PORT.",
    ),
]
Key = Annotated[str | None, typer.Option(help="The key to send (PALIMPSEST_API_KEY).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per session and one for the totals.")]


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Messages for OpenAI, Anthropic or Gemini (JSON), a coding agent's log, or neutral sessions (JSONL).",
        ),
    ],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Window for every call, in tokens; default: the server's for the model.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Instead of --max-tokens: a window for this share of each session's tokens, plus its system prompt"
            " and tools.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that the contexts are made for.")] = None,
    format: Annotated[
        FormatName | None, typer.Option(help="Format of the contexts; default: the recording's own, else openai.")
    ] = None,
    server: Server = None,
    key: Key = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the sessions on the server for inspection; else they are erased.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="Policy to use: a name, or a JSON file.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Replay with two policies (names or JSON files) and compare the results."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N sessions of the file.")] = None,
    json: Json = False,
) -> None:
    """Replay recorded agent sessions on a real server, call by call, and show what each context held and cost.

    If no server is named and none is running, one is started in a temporary folder and stopped at the end. Exits with 1
    if a request or check failed, and with 2 if the file is not a recording (then nothing was sent).
    """
    from app.replay.play import play

    address = _address(server, key)
    play(file, max_tokens, share, model, format, address, session, policy, compare, limit, keep=keep, json=json)


def explain(
    session: Annotated[str, typer.Argument(help="Id of the session, or of one of its lines, such as demo@line.1.")],
    seq: Annotated[int, typer.Argument(min=1, help="Seq of the event.")],
    view: Annotated[str | None, typer.Option(help="Only calls of this view.")] = None,
    server: Server = None,
    key: Key = None,
    every: Annotated[bool, typer.Option("--every", help="Print a line for every call, not only for changes.")] = False,
) -> None:
    """Show how each call presented one event to the model, and which decision changed that.

    A session's id means its current line; other lines are listed with the command for them. Exits with 1 if there is no
    such event.
    """
    from app.replay.explain import tell

    tell(_address(server, key), session, seq, view, every=every)


def verify(server: Server = None, key: Key = None) -> None:
    """Check that every recorded call can be rendered again to the same bytes, for example after a restore.

    Checks all sessions of the key's tenant. Prints each call that differs, and exits with 1 if there is one.
    """
    from app.replay.again import verify as verify_calls

    verify_calls(_address(server, key))


def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            exists=True,
            help="Any file that replay reads, or a folder of such JSONL files, such as ~/.claude/projects.",
        ),
    ],
    session: Annotated[
        str | None, typer.Option(help="Session id, for a single file; default: the id in the file, or its name.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Prefix for all session ids.")] = "",
    model: Annotated[
        str | None, typer.Option(help="Model of new sessions; default: the one in the file, if it names one.")
    ] = None,
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Append recorded sessions to the logs of a running server, with the times at which the events happened.

    Sub-agents become sessions of their own. Importing a file again appends only what was added to it since. Files that
    are not recordings or that the server refuses are reported, the others are imported, and the exit status is 1.
    """
    from app.transfer.importing import import_all

    import_all(files, session, prefix, model, _address(server, key), as_json=json)


def export_sessions(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of the sessions.")],
    format: Annotated[
        Literal["neutral", NativeFormat],
        typer.Option(help="neutral (JSONL of the whole log), or a provider's: the conversation as one request."),
    ] = "neutral",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", dir_okay=False, help="File to write; default: standard output.")
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Write complete sessions to a file, including everything that contexts leave out.

    Importing a neutral export restores the same log. Events that a provider's format cannot express are listed on
    standard error.
    """
    from app.transfer.exporting import export_all

    export_all(sessions, format, out, _address(server, key))


def _address(server: str | None, key: str | None) -> "Address":
    """Return the address of the server; stop with a line that names the variable of an invalid setting."""
    from app.remote.address import Address

    try:
        settings = load(url=server, api_key=key)
    except InvalidSetting as error:
        stop(str(error))
    return Address(settings.server_url, settings.api_key, named=settings.url is not None)
