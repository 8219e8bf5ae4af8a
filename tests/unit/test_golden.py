"""Calls that an earlier process recorded come out the same: the wording of a render version is settled for good."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.audit import manifest
from app.core.audit.manifest import UnknownVersion
from app.core.audit.replay_call import ReplayedCall, ReplayInputs, breakpoints_of, replay_call
from app.core.cover.summaries import Summary
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.context import wording
from app.core.plan.context.frontier import from_json
from app.core.policy.policy import DEFAULT, parse_policy
from app.core.policy.presets import DOCUMENTS, PRESETS

FOLDER = Path(__file__).parent.parent / "golden"
Json = dict[str, Any]


def stored(version: int) -> Json:
    found: Json = json.loads((FOLDER / f"render_v{version}.json").read_text())
    return found


def again(rows: Json, call: Json) -> ReplayedCall:
    """One call of the rows, rendered again."""
    state, made_with = from_json(call["frontier"]), manifest.from_json(call["manifest"])
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


def calls() -> list[Any]:
    found = [(version, call) for version in range(1, wording.RENDER_VERSION + 1) for call in stored(version)["calls"]]
    return [pytest.param(v, call, id=f"v{v} {call['name']} {call['format']}") for v, call in found]


@pytest.mark.parametrize(("version", "call"), calls())
def test_a_recorded_call_comes_out_as_it_was_sent(version: int, call: Json) -> None:
    request = again(stored(version), call).request
    assert request.sha256.hex() == call["sha256"]
    assert request.prefix_sha256.hex() == call["prefix_sha256"]


def test_every_breakpoint_is_carried() -> None:
    for call in stored(1)["calls"]:
        done = again(stored(1), call)
        assert done.request.text.count('"cache_control"') == len(call["breakpoints"])


def test_a_version_that_is_not_there_is_named() -> None:
    call = stored(1)["calls"][0] | {"render_version": 99}
    with pytest.raises(UnknownVersion, match="version 99"):
        again(stored(1), call)


def test_what_a_stored_policy_says_of_rendering_stays() -> None:
    """A knob that was not given when a policy was stored means what it meant then; presets are version 1 for good."""
    assert (DEFAULT.authors, DEFAULT.summarize.view, DEFAULT.summarize.role) == (None, "all", "user")
    said = {name: (p.authors, p.summarize.view, p.summarize.role) for name, p in PRESETS.items() if name in DOCUMENTS}
    assert said == {
        "default": (None, "all", "user"),
        "timeline": (None, "latest", "user"),
        "pipeline": (None, "latest", "system"),
        "clip": (None, "clip", "system"),
        "threshold": (None, "latest", "user"),
    }
