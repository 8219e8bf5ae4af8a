"""The command `bench`."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import typer

from app.core.render.formats import FormatName
from palimpsest_tools.bench.find import NoSessions, Sources, default_paths, known_places
from palimpsest_tools.bench.play import SessionOutcome, play_session
from palimpsest_tools.bench.show import lines, session_json, total_json
from palimpsest_tools.output import print_json, print_lines
from palimpsest_tools.recordings.recording import Recording
from palimpsest_tools.replay.options import Options
from palimpsest_tools.server import own_server, run, stop

_EXIT_USAGE: Final = 2
_CALLS_BETWEEN_LINES: Final = 50


def bench(
    paths: Sequence[Path],
    limit: int,
    calls_min: int,
    minutes: float,
    window: int | None,
    model: str | None,
    format: FormatName | None,
    agent: str | None,
    *,
    json: bool,
) -> None:
    """Run the command; exit with 1 if no session could be compared, and with 2 if there is none."""
    try:
        sources = Sources(paths or default_paths(), calls_min)
        recordings = list(islice(sources.sessions(), limit))
    except NoSessions as error:
        stop(str(error), _EXIT_USAGE)
    if not recordings:
        named = " ".join(map(str, sources.paths))
        stop("\n".join((f"no session to compare in {named}", *sources.notes(), known_places())), _EXIT_USAGE)
    recordings = [replace(one, agent=one.agent or agent) for one in recordings]
    options = Options(format=format, max_tokens=window, model=model)
    outcomes = run(_play(recordings, options, minutes))
    notes = sources.notes()
    if len(outcomes) < len(recordings):
        notes.append(f"{len(recordings) - len(outcomes)} sessions were not played: {minutes:g} minutes (--minutes)")
    if json:
        for one in outcomes:
            print_json(session_json(one))
        print_json(total_json(outcomes, notes))
    else:
        print_lines(lines(outcomes, notes))
    if not any(one.outcomes for one in outcomes):
        raise typer.Exit(1)


async def _play(recordings: Sequence[Recording], options: Options, minutes: float) -> list[SessionOutcome]:
    """Play the sessions one after another; none is begun after the time is over."""
    outcomes: list[SessionOutcome] = []
    end = time.monotonic() + 60 * minutes
    async with own_server() as server, server.address.client() as client:
        typer.echo(f"server: {server.url} (started for this, without your settings, in a temporary folder)", err=True)
        for number, recording in enumerate(recordings, start=1):
            if outcomes and time.monotonic() > end:
                break
            name = f"session {number} of {len(recordings)}, {recording.id}"

            def on_call(call: int, name: str = name, calls: int = recording.calls) -> None:
                if call % _CALLS_BETWEEN_LINES == 0 or call == calls:
                    typer.echo(f"{name}: call {call:,} of {calls:,}", err=True)

            id = f"bench-{secrets.token_hex(4)}"
            outcomes.append(await play_session(client, recording, id, options, on_call))
    return outcomes
