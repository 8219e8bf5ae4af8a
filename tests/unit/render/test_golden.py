"""Recorded calls render to the same bytes: the wording of a render version never changes."""

from typing import Any

import pytest

from app.core.plan.state import wording
from app.core.policy.policy import DEFAULT, DOCUMENTS, PRESETS
from app.core.record import UnknownVersion
from app.core.render.formats.fit import PREPARED_BY
from tests.golden.make import Json, again, file_of, rendered, stored

VERSIONS = [version for version in PREPARED_BY if file_of(version).exists()]


def calls() -> list[Any]:
    found = [(version, call) for version in VERSIONS for call in stored(version)["calls"]]
    return [pytest.param(v, call, id=f"v{v} {call['name']} {call['format']}") for v, call in found]


def test_every_render_version_has_its_file() -> None:
    known = list(range(1, wording.RENDER_VERSION + 1))
    assert list(PREPARED_BY) == known, "RENDER_VERSION is the last number in `PREPARED_BY` (fit.py)"
    assert known == VERSIONS, "run `python -m tests.golden.make`, as tests/golden/README.md says"


@pytest.mark.parametrize(("version", "call"), calls())
def test_a_recorded_call_renders_to_the_sent_bytes(version: int, call: Json) -> None:
    request = again(stored(version), call).request
    assert request.sha256.hex() == call["sha256"]
    assert request.prefix_sha256.hex() == call["prefix_sha256"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_equals_the_rendering_of_its_rows(version: int) -> None:
    text = file_of(version).read_text(encoding="utf-8")
    assert rendered(text, version, afresh=True) == text


def test_a_new_file_begins_as_the_one_before() -> None:
    """Version 2's file was made in this way and given no rows of its own."""
    before, after = (file_of(version).read_text(encoding="utf-8") for version in (1, 2))
    assert rendered(before, 2, afresh=True) == after


def test_existing_hashes_stay_and_missing_ones_are_added() -> None:
    text = file_of(1).read_text(encoding="utf-8")
    assert rendered(text, 2, afresh=False) == text
    last = stored(1)["calls"][-1]
    bare = text.replace(f', "sha256": "{last["sha256"]}", "prefix_sha256": "{last["prefix_sha256"]}"', "")
    assert bare != text
    assert rendered(bare, 1, afresh=False) == text


def test_every_breakpoint_is_carried() -> None:
    for call in stored(1)["calls"]:
        done = again(stored(1), call)
        assert done.request.body.count(b'"cache_control"') == len(call["breakpoints"])


def test_an_unknown_version_is_named() -> None:
    call = stored(1)["calls"][0] | {"render_version": 99}
    with pytest.raises(UnknownVersion, match="version 99"):
        again(stored(1), call)


def test_a_stored_policys_rendering_knobs_keep_their_meaning() -> None:
    """A knob that was missing when a policy was stored keeps its default of that time; presets stay at version 1."""
    assert (DEFAULT.authors, DEFAULT.summarize.view, DEFAULT.summarize.role) == (None, "all", "user")
    said = {name: (p.authors, p.summarize.view, p.summarize.role) for name, p in PRESETS.items() if name in DOCUMENTS}
    assert said == {
        "default": (None, "all", "user"),
        "unattended": (None, "all", "user"),
        "timeline": (None, "latest", "user"),
        "pipeline": (None, "latest", "system"),
        "clip": (None, "clip", "system"),
        "threshold": (None, "latest", "user"),
    }
