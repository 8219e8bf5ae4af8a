"""Recorded calls as they are stored here, rendered again; and the file that holds those of a new render version.

`python -m tests.golden.make` writes the file of the newest version: at first the rows of the file before it, rendered
by the new version; afterwards only rows that have no `sha256` yet. A hash that is there is never changed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.plan.state.frontier import from_json
from app.core.plan.state.wording import RENDER_VERSION
from app.core.policy.policy import parse_policy
from app.core.record import ReplayedCall, ReplayInputs, breakpoints_of, replay_call
from app.core.record import from_json as manifest_of

FOLDER = Path(__file__).parent
HASHES = ("sha256", "prefix_sha256")
Json = dict[str, Any]


def file_of(version: int) -> Path:
    """Return the file with the calls of a render version."""
    return FOLDER / f"render_v{version}.json"


def stored(version: int) -> Json:
    """The events, summaries and calls of a version's file."""
    found: Json = json.loads(file_of(version).read_text(encoding="utf-8"))
    return found


def again(rows: Json, call: Json) -> ReplayedCall:
    """One call of the rows, rendered by the version it names."""
    state, made_with = from_json(call["frontier"]), manifest_of(call["manifest"])
    events = [Event(**{**row, "type": EventType(row["type"])}) for row in rows["events"]]
    visible = [e for e in events if e.seq <= call["head"] and (e.seq > state.floor or e.seq in state.kept)]
    summaries = {row["id"]: Summary(**row) for row in rows["summaries"]}
    inputs = ReplayInputs(
        events=visible,
        frontier=state,
        policy=parse_policy(call["policy"]),
        summaries=tuple(summaries[fold.id] for fold in state.folds),
        format=call["format"],
        render_version=call["render_version"],
        breakpoints=breakpoints_of(call["breakpoints"], made_with),
        notice=made_with.notice,
        injections=made_with.injections,
    )
    return replay_call(inputs)


def rendered(text: str, version: int, *, afresh: bool) -> str:
    """The text of a file with its calls rendered by `version`: all of them if `afresh`, else those without a hash.

    Every other character stays. A call is one line that begins with its name.
    """
    return "".join(_lines(text, json.loads(text), version, afresh=afresh))


def _lines(text: str, rows: Json, version: int, *, afresh: bool) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        if not line.startswith('{"name": '):
            yield line
            continue
        call, end = json.JSONDecoder().raw_decode(line)
        if afresh or "sha256" not in call:
            call = {name: value for name, value in call.items() if name not in HASHES} | {"render_version": version}
            request = again(rows, call).request
            call |= {"sha256": request.sha256.hex(), "prefix_sha256": request.prefix_sha256.hex()}
        yield json.dumps(call, ensure_ascii=line.isascii()) + line[end:]


def main() -> None:
    """Write the newest version's file."""
    file = file_of(RENDER_VERSION)
    there = file.exists()
    source = file if there else file_of(RENDER_VERSION - 1)
    text = source.read_text(encoding="utf-8")
    file.write_text(rendered(text, RENDER_VERSION, afresh=not there), encoding="utf-8")


if __name__ == "__main__":
    main()
