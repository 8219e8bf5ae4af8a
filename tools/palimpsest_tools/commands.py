"""The commands and their options. Each imports its implementation when it runs, so that the help is shown quickly."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.core.log.events import EventType
from app.core.render.formats import FormatName
from app.core.render.formats.tools import NativeFormat
from palimpsest_tools.wrap.agents import AgentName

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

Lines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, as the API has it.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number to show.")]
SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help="Id of the session, or of one of its lines, such as demo@line.1.")
]


def sessions(
    find: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only sessions with this text in their id, model or metadata.")
    ] = None,
    limit: Limit = 20,
    server: Server = None,
    key: Key = None,
    json: Lines = False,
) -> None:
    """List the sessions of the server, the last changed ones first.

    LOG is the size of all events, CONTEXT that of the main view's context as it is now, both in tokens.
    """
    from palimpsest_tools.look import sessions as command
    from palimpsest_tools.server import address

    command.show_sessions(address(server, key), find, limit, as_json=json)


def context(
    session: SessionId,
    view: Annotated[str | None, typer.Option(help="View of the session; default: main.")] = None,
    call: Annotated[
        str | None, typer.Option(metavar="CALL", help="The call's number or its id; default: the last call.")
    ] = None,
    server: Server = None,
    key: Key = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how full the window of a call is, what fills it, and what the next call leaves out.

    Nothing is recorded or changed.
    """
    from palimpsest_tools.look import context as command
    from palimpsest_tools.server import address

    command.show_context(address(server, key), session, view, call, as_json=json)


def calls(
    session: SessionId,
    view: Annotated[str | None, typer.Option(help="View whose calls to list; default: main.")] = None,
    limit: Limit = 20,
    server: Server = None,
    key: Key = None,
    json: Lines = False,
) -> None:
    """List the recorded calls of a session, numbered in the order of time, the newest last.

    Other commands take a call's number or its id. ESTIMATE and TARGET are the size of the request and its maximum,
    REPORTED is the size that the provider counted, and LEFT OUT the tokens that evictions saved. An epoch is named with
    its cause at its first call. A narrow terminal has no room for the ids; --json has them.
    """
    from palimpsest_tools.look import calls as command
    from palimpsest_tools.server import address

    command.show_calls(address(server, key), session, view, limit, as_json=json)


def events(
    session: SessionId,
    find: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only events in which this text occurs, in upper or lower case.")
    ] = None,
    type: Annotated[EventType | None, typer.Option(help="Only events of this type.")] = None,
    after: Annotated[
        int | None,
        typer.Option(metavar="SEQ", min=0, help="The first events after this one; default: the last events."),
    ] = None,
    limit: Limit = 20,
    server: Server = None,
    key: Key = None,
    json: Lines = False,
) -> None:
    """List the events of a session with their seqs, in the order of the log.

    A search reads 20,000 events: the last ones, or those after SEQ.
    """
    from palimpsest_tools.look import events as command
    from palimpsest_tools.server import address

    command.show_events(address(server, key), session, find, type, after, limit, as_json=json)


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Log of Claude Code, Codex, Gemini CLI or opencode; messages for OpenAI, Anthropic or Gemini; neutral"
            " sessions.",
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
    model: Annotated[
        str | None, typer.Option(help="Model that the contexts are made for; default: the recorded one of each call.")
    ] = None,
    format: Annotated[
        FormatName | None, typer.Option(help="Format of the contexts; default: the recording's own, else openai.")
    ] = None,
    server: Server = None,
    key: Key = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the sessions on the server, with recorded usage as outcomes; else they are erased."
        ),
    ] = False,
    open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Keep the sessions and open their page in a browser. A server started for this runs until Ctrl-C.",
        ),
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
    from palimpsest_tools.replay.play import play
    from palimpsest_tools.server import address

    asked = address(server, key)
    play(
        *(file, max_tokens, share, model, format, asked, session, policy, compare, limit),
        keep=keep,
        show_page=open,
        json=json,
    )


def bench(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            exists=True,
            help="Folders or files with sessions; default: where the agents on this machine keep theirs.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of sessions, the last changed ones first.")] = 10,
    min_calls: Annotated[int, typer.Option(min=1, help="Leave out sessions with fewer model calls.")] = 10,
    minutes: Annotated[float, typer.Option(min=0, help="Begin no further session after this time.")] = 10,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Window of every session, in tokens; default: the recorded model's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that counts and prices; default: the recorded one.")] = None,
    format: Annotated[
        FormatName | None, typer.Option(help="Format of the contexts; default: the recording's own, else openai.")
    ] = None,
    agent: Annotated[
        Literal["claude", "codex", "gemini", "opencode"] | None,
        typer.Option(help="Agent whose own rule is compared where the file does not name its agent."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare on your own sessions: the bill and the lost values under Palimpsest, under your agent's own rule, and
    under others.

    Reads the logs of Claude Code, Codex, Gemini CLI and opencode. A server is started on this machine for it and
    stopped at the end. No model is called, no key is needed, and nothing leaves this machine. Exits with 1 if no
    session could be compared, and with 2 if there is none.
    """
    from palimpsest_tools.bench import command

    command.bench(paths or [], limit, min_calls, minutes, max_tokens, model, format, agent, json=json)


def explain(
    session: SessionId,
    seq: Annotated[
        int | None, typer.Argument(metavar="SEQ", min=1, help="Seq of an event, as palimpsest events lists it.")
    ] = None,
    find: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instead of SEQ: explain the events in which this text occurs.")
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            metavar="CALL", help="Explain only this call: its number or its id. Default with --find: the last call."
        ),
    ] = None,
    view: Annotated[
        str | None, typer.Option(help="Only calls of this view. With --call or --find the default is main.")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Print a line for every call, not only for changes.")] = False,
    server: Server = None,
    key: Key = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how calls presented an event or a text to the model, and which decision changed that.

    palimpsest explain demo 4: event 4 in all calls since it was logged.

    palimpsest explain demo --find "port 5432" --call 57: whether the request of call 57 held this text, which events
    have it, which decisions had left them out, and whether the summary in their place has it.

    A session's id means its current line; other lines are listed with the command for them. Exits with 1 if there is no
    such event or call.
    """
    from palimpsest_tools.look import explain as command
    from palimpsest_tools.server import address

    if find is not None and not find.strip():
        raise typer.BadParameter("the text is empty", param_hint="--find")
    if (seq is None) == (find is None):
        raise typer.BadParameter("name an event by its SEQ, or give a text with --find", param_hint="SEQ")
    if seq is not None and call is None:
        command.explain(address(server, key), session, seq, view, every=every, as_json=json)
    elif every:
        raise typer.BadParameter("--every lists all calls; --call and --find are about one", param_hint="--every")
    else:
        command.explain_call(address(server, key), session, seq, find, call, view, as_json=json)


def verify(server: Server = None, key: Key = None) -> None:
    """Check that every recorded call can be rendered again to the same bytes, for example after a restore.

    Checks all sessions of the key's tenant. Prints each call that differs, and exits with 1 if there is one.
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
            help="Any file that replay reads, or a folder with agents' logs, such as ~/.claude/projects.",
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
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.importing import import_all

    import_all(files, session, prefix, model, address(server, key), as_json=json)


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
    from palimpsest_tools.server import address
    from palimpsest_tools.transfer.exporting import export_all

    export_all(sessions, format, out, address(server, key))


def wrap(
    agent: Annotated[AgentName, typer.Argument(help="The agent to start.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the agent, after two dashes.")
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Start a coding agent with Palimpsest between it and its provider.

    If no server runs, one is started, with its data where the command serve has it, and stopped when the last agent
    has ended. Only the environment of the agent's process is changed: no file of the agent, and nothing to undo.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.wrap import run as command

    command.wrap(agent, arguments or (), address(server, key))


def doctor(
    agent: Annotated[AgentName | None, typer.Argument(help="Check the setup of this agent, too.")] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Check that agents work with the server: providers, keys, windows, recall, and calls that were not reduced.

    The exit status is 1 if something must be repaired.
    """
    from palimpsest_tools.server import address
    from palimpsest_tools.wrap import doctor as command

    command.doctor(agent, address(server, key))
