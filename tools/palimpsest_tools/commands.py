"""The commands and their options. Each imports its own modules when it runs, so that the help is shown quickly."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.core.render.formats import FormatName
from app.core.render.formats.tools import NativeFormat

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "--url",
        help="URL of the running server (PALIMPSEST_URL); default: that of PALIMPSEST_HOST and PALIMPSEST_PORT.",
    ),
]
Key = Annotated[str | None, typer.Option(help="API key to send (PALIMPSEST_API_KEY).")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object for each session, then a total.")]


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Messages of OpenAI, Anthropic or Gemini (JSON), a coding agent's log, or neutral sessions (JSONL).",
        ),
    ],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Context window of every call; default: the model's.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Instead: room for this share of each session's tokens, in addition to its system prompt and tools.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the contexts.")] = None,
    format: Annotated[
        FormatName | None, typer.Option(help="Format of the contexts; default: the recording's, else openai.")
    ] = None,
    server: Server = None,
    key: Key = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the sessions on the server; else they are erased.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="Policy of the sessions: a name or a JSON file.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Replay under two policies, names or JSON files, and show them side by side."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N sessions of the file.")] = None,
    json: Json = False,
) -> None:
    """Replay recorded agent sessions on a server, call by call, and show the size and the bill of each context.

    If no server runs and none is named, one is started in a temporary folder and stopped at the end. Exits with 1 if
    any request or check failed, with 2 if the file is not a recording (then nothing was sent).
    """
    from palimpsest_tools.replay.play import play
    from palimpsest_tools.server import address

    asked = address(server, key)
    play(file, max_tokens, share, model, format, asked, session, policy, compare, limit, keep=keep, json=json)


def explain(
    session: Annotated[str, typer.Argument(help="Id of the session, or of one of its lines, such as demo@line.1.")],
    seq: Annotated[int, typer.Argument(min=1, help="Seq of the event.")],
    view: Annotated[str | None, typer.Option(help="Only calls of this view.")] = None,
    server: Server = None,
    key: Key = None,
    every: Annotated[bool, typer.Option("--every", help="Print a line for every call, not only for changes.")] = False,
) -> None:
    """Show what the model saw of an event in each call, and which decision changed it.

    A session's id means its current line; its other lines are listed with the command that reads them. Exits with 1 if
    there is no such event.
    """
    from palimpsest_tools import explain as command
    from palimpsest_tools.server import address

    command.explain(address(server, key), session, seq, view, every=every)


def verify(server: Server = None, key: Key = None) -> None:
    """Check that every recorded call renders again to the bytes that were sent, for example after a restore.

    Checks all sessions of the key's tenant. Exits with 1 if a call differs, and names it.
    """
    from palimpsest_tools import verify as command
    from palimpsest_tools.server import address

    command.verify(address(server, key))


def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            exists=True,
            help="Files in any format of replay, and folders of such JSONL files, such as ~/.claude/projects.",
        ),
    ],
    session: Annotated[
        str | None,
        typer.Option(help="Session id for a single file; default: the id in the file, else the file's name."),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of all session ids.")] = "",
    model: Annotated[
        str | None, typer.Option(help="Model of new sessions; default: the model in the file, if it names one.")
    ] = None,
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Append recorded sessions to a running server's log, with their recorded times.

    Sub-agents become separate sessions. A repeated import appends only events that the server does not have yet. A file
    that is not a recording, or that the server refuses, is named, the other files are imported, and the command exits
    with 1.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.importing import import_all

    import_all(files, session, prefix, model, address(server, key), as_json=json)


def export_sessions(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of the sessions.")],
    format: Annotated[
        Literal["neutral", NativeFormat],
        typer.Option(help="neutral (JSONL, the whole log), or a provider's: the conversation as a single request."),
    ] = "neutral",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", dir_okay=False, help="File to write; default: standard output.")
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Write complete sessions to a file, including everything that a context would leave out.

    An imported neutral export gives the same log again. Content that a provider's format cannot hold is named on
    standard error.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.exporting import export_all

    export_all(sessions, format, out, address(server, key))
