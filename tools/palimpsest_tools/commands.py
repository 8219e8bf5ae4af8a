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
        help="The running server (PALIMPSEST_URL), else the one of PALIMPSEST_HOST and PALIMPSEST_PORT.",
    ),
]
Key = Annotated[str | None, typer.Option(help="The key to send (PALIMPSEST_API_KEY).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a session and a total line.")]


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
        FormatName | None, typer.Option(help="Format of the contexts; default: the recording's own, else openai.")
    ] = None,
    server: Server = None,
    key: Key = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the sessions on the server, to look into; else they are erased.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="The policy to use: its name, or a JSON file.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Replay under two policies, names or JSON files, and show them side by side."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N sessions of the file.")] = None,
    json: Json = False,
) -> None:
    """Feed recorded agent sessions through a real server, call by call, and show what each context held and cost.

    Where no server runs and none is named, one is started in a temporary folder and stopped at the end. Exits with 1 if
    any request or check failed, with 2 if the file is no recording (then nothing was sent).
    """
    from palimpsest_tools.replay.play import play
    from palimpsest_tools.server import address

    asked = address(server, key)
    play(file, max_tokens, share, model, format, asked, session, policy, compare, limit, keep=keep, json=json)


def explain(
    session: Annotated[
        str, typer.Argument(help="Your own id of the session, or the id of one of its lines, such as demo@line.1.")
    ],
    seq: Annotated[int, typer.Argument(min=1, help="Which event.")],
    view: Annotated[str | None, typer.Option(help="Only calls of this view.")] = None,
    server: Server = None,
    key: Key = None,
    every: Annotated[
        bool, typer.Option("--every", help="A line for every call, not only where something changed.")
    ] = False,
) -> None:
    """Say of one event what the model saw of it, from call to call, and which decision changed that.

    A session's id means its current line; if it has others, they are listed with the command that reads them. Exits
    with 1 when there is no such event.
    """
    from palimpsest_tools import explain as command
    from palimpsest_tools.server import address

    command.explain(address(server, key), session, seq, view, every=every)


def verify(server: Server = None, key: Key = None) -> None:
    """Check that every recorded call renders again, byte for byte as it was sent: after a restore, say.

    Looks at all sessions of the key's tenant. Exits with 1 if a call does not come out as it was, and names it.
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
            help="All that replay reads, and folders of such JSONL files, as ~/.claude/projects is one.",
        ),
    ],
    session: Annotated[
        str | None, typer.Option(help="Session id of the one file named; default: as the file says, or its name.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="What all session ids begin with.")] = "",
    model: Annotated[
        str | None, typer.Option(help="The model of new sessions; default: the one in the file, if it names one.")
    ] = None,
    server: Server = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Append recorded sessions to the log of a running server, with the times at which they happened.

    Sub-agents become sessions of their own. Importing a file again appends only what has been added to it since. A file
    that is no recording, or that the server refuses, is named and the others go on; the exit status is then 1.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.importing import import_all

    import_all(files, session, prefix, model, address(server, key), as_json=json)


def export_sessions(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...", help="Your own ids of the sessions.")],
    format: Annotated[
        Literal["neutral", NativeFormat],
        typer.Option(help="neutral (JSONL, the whole log), or a provider's: the conversation as one request."),
    ] = "neutral",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", dir_okay=False, help="A file to write; default: standard output.")
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Write sessions to a file, whole: what a context would leave out is in it.

    Importing a neutral export gives the same log again. What a provider's format has no place for is named on standard
    error.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.exporting import export_all

    export_all(sessions, format, out, address(server, key))
