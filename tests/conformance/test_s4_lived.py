"""S4 in sessions of ten windows with compactions requested by contexts, under the preset `threshold`."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.agent import WAIT_MS, evicted_seqs
from tests.conformance.session_course import WAYS, SessionCourse, check_accounted, requested_seqs, run_sessions
from tests.support import validators

pytestmark = pytest.mark.slow

WINDOW = 16_000
THRESHOLD = 12_000
KEEP = 5_600
TURNS = 105
LINES = 125
ASKS = {"wait_ms": WAIT_MS, "format": "openai"}


@pytest.fixture(scope="module")
async def sessions(postgres: str, template: str) -> AsyncIterator[dict[str, SessionCourse]]:
    yield await run_sessions(postgres, template, "threshold", window=WINDOW, turns=TURNS, lines=LINES, **ASKS)


@pytest.fixture(params=WAYS)
def lived(request: pytest.FixtureRequest, sessions: dict[str, SessionCourse]) -> SessionCourse:
    """The session of one of the ways."""
    return sessions[request.param]


def test_s4_01_no_call_is_above_the_window_less_the_reserve_and_nothing_is_lost(lived: SessionCourse) -> None:
    check_accounted(lived)
    for seen in lived.all_contexts:
        assert seen.estimate <= THRESHOLD
        assert not evicted_seqs(seen.context, "dropped")
    assert lived.first.context["summaries"]


def test_s4_02_what_is_kept_is_never_summarized(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        if seen.folded_to:
            parts = seen.context["tokens"]["by_source"]
            assert parts["history"] + parts["current_turn"] >= KEEP


def test_s4_08_and_s4_16_the_view_is_a_summary_of_the_users_and_what_is_kept(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        validators.check_openai(seen.context["request"])
        if seen.folded_to:
            first, second = seen.context["request"]["messages"][:2]
            assert first["role"] == "user"
            assert second["role"] in ("user", "assistant")


def test_s4_09_each_starts_from_the_last_one_with_its_text(lived: SessionCourse) -> None:
    for number, made in enumerate(lived.summaries):
        last = lived.summaries[number - 1] if number else None
        assert (made["from_seq"], made["sources"]) == (1, [last["id"]] if last else [])
    sent = [seq for asked in lived.asked for seq in requested_seqs(lived, asked)]
    assert sorted(sent) == [seq for seq in lived.texts if seq <= lived.summaries[-1]["to_seq"]]  # each event once
    first, *others = [asked for asked in lived.asked if "Early Progress" not in asked.system]
    assert "<previous-summary>" not in first.prompt
    assert all("<previous-summary>" in asked.prompt for asked in others)


def test_s4_13_it_begins_by_saying_that_it_was_compacted(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        if seen.folded_to:
            assert "was compacted" in seen.context["request"]["messages"][0]["content"]


def test_s4_15_and_s4_17_what_is_recorded(lived: SessionCourse) -> None:
    made = [run for run in lived.runs if run["summaries"]]
    assert made
    for run in made:
        assert run["reason"] in ("pressure", "waited")
        assert run["tokens_before"] > run["tokens_after"] > 0
        assert run["to_seq"] > 0
