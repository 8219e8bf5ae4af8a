"""The commands `palimpsest replay` and `explain` as they are typed.

What they do is imported when they run, so that no other command takes the time and no server the memory.
"""

from pathlib import Path
from typing import Annotated

import typer

from app.core.render.formats import FormatName
from app.replay.options import DEFAULT_URL


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
    url: Annotated[
        str | None, typer.Option(help="A running server; default: the one on port 8700, else one of its own.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Session id on the server (several recordings: ID.1, ID.2, ...); default: new.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The policy to use: its name, or a JSON file.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Replay under two policies, names or JSON files, and show them side by side."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N sessions of the file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a session and a total line.")] = False,
) -> None:
    """Feed recorded agent sessions through a real server, call by call, and show what each context held and cost.

    Exits with 1 if any request or check failed, with 2 if the file is no recording (then nothing was sent).
    A server that asks for a key gets the one in PALIMPSEST_API_KEY.
    """
    from app.replay.play import play

    play(file, max_tokens, share, model, format, url, session, policy, compare, limit, json=json)


def explain(
    session: Annotated[str, typer.Argument(help="Your own id of the session.")],
    seq: Annotated[int, typer.Argument(min=1, help="Which event.")],
    view: Annotated[str | None, typer.Option(help="Only calls of this view.")] = None,
    url: Annotated[str, typer.Option(help="The running server.")] = DEFAULT_URL,
    every: Annotated[
        bool, typer.Option("--every", help="A line for every call, not only where something changed.")
    ] = False,
) -> None:
    """Say of one event what the model saw of it, from call to call, and which decision changed that.

    A server that asks for a key gets the one in PALIMPSEST_API_KEY. Exits with 1 when there is no such event.
    """
    from app.replay.explain import tell

    tell(url, session, seq, view, every=every)
