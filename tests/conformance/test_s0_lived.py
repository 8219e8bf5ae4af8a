"""S0 and S1 in sessions of ten windows with a worker that keeps up, under the preset `timeline`."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.agent import WAIT_MS, Json, evicted_seqs, request_text
from tests.conformance.session_course import (
    TURN_EVENTS,
    WAYS,
    SessionCourse,
    check_accounted,
    first_words,
    requested_seqs,
    run_sessions,
)

pytestmark = pytest.mark.slow

WINDOW = 12_000
TURNS = 126
LINES = 42
ASKS = {"wait_ms": WAIT_MS, "format": "openai"}


@pytest.fixture(scope="module")
async def sessions(postgres: str, template: str) -> AsyncIterator[dict[str, SessionCourse]]:
    yield await run_sessions(postgres, template, "timeline", window=WINDOW, turns=TURNS, lines=LINES, **ASKS)


@pytest.fixture(params=WAYS)
def lived(request: pytest.FixtureRequest, sessions: dict[str, SessionCourse]) -> SessionCourse:
    """The session of one of the ways."""
    return sessions[request.param]


def test_s0_01_no_call_is_above_nine_tenths_and_nothing_is_lost(lived: SessionCourse) -> None:
    check_accounted(lived)
    for seen in lived.all_contexts:
        assert seen.estimate <= 0.9 * WINDOW
        assert not evicted_seqs(seen.context, "dropped")
        assert seen.context["compaction"]["state"] != "stalled"
    assert lived.calls[-1].context["summaries"]


def test_s0_03_pruning_then_compaction_then_the_slice_from_the_latest_summary(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        folded = seen.folded_to
        assert evicted_seqs(seen.context, "summarized") >= set(range(1, folded + 1)) - _current(seen.head)
        words = first_words(seen.context["request"]["messages"])
        if folded:
            assert words[0] == "[The"
            behind = [w for w in words if w.startswith(("question-", "answer-"))]
            assert int(behind[-1].split("-")[1].rstrip(".")) == (seen.head - 1) // TURN_EVENTS


def test_s0_05_and_s0_28_what_follows_a_summary_is_never_a_result(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        if seen.folded_to:
            assert seen.context["request"]["messages"][1]["role"] in ("user", "assistant")


def test_s0_06_the_newest_six_turns_are_never_summarized(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        assert seen.folded_to < max(1, lived.seq((seen.head - 1) // TURN_EVENTS - 5))
    for number in range(TURNS - 6, TURNS):
        assert all(
            f"{word}-{number}." in request_text(lived.first.context) for word in ("question", "result", "answer")
        )


def test_s0_10_one_summary_stands_before_the_cut(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        assert len(seen.context["summaries"]) <= 1
        assert all(row["from_seq"] == 1 for row in seen.context["summaries"])
    for made in lived.summaries:
        assert made["turns"] == list(range(1, (made["to_seq"] - 1) // TURN_EVENTS + 2))
        assert made["digest"]["events"] == made["events"]


def model_text(made: Json) -> str:
    """Return the model's part of a summary, without the lists appended to it."""
    return str(made["text"]).partition("\n\n<")[0]


def test_s0_11_each_tells_of_what_has_come_since_the_last_and_is_given_that(lived: SessionCourse) -> None:
    asked = list(lived.asked)
    for number, made in enumerate(lived.summaries):
        last = lived.summaries[number - 1] if number else None
        assert (made["from_seq"], made["sources"]) == (1, [last["id"]] if last else [])
        since = last["to_seq"] if last else 0
        assert made["to_seq"] > since
        seqs, limits = [], []
        expected = [seq for seq in lived.texts if since < seq <= made["to_seq"]]
        while asked and len(limits) < 2 and sorted(seqs) != expected:  # the requests for a split turn come in any order
            one = asked.pop(0)
            previous = one.prompt.partition("</conversation>")[2]
            seqs += requested_seqs(lived, one)
            limits.append(one.max_tokens)
            assert one.temperature == 0.2
            if limits.count(640) > 1:  # a span over the model's window is sent in pieces
                assert "<previous-summary>" in previous
            elif last and one.max_tokens == 640:
                assert f"<previous-summary>\n{model_text(last)}\n" in previous
            else:
                assert "<previous-summary>" not in one.prompt
        assert sorted(limits) in ([640], [320, 640], [320], [640, 640])
        assert sorted(seqs) == expected
    assert asked == []


def test_s0_15_the_log_is_whole_whatever_is_shown(lived: SessionCourse) -> None:
    assert [event["seq"] for event in lived.log] == list(range(1, TURN_EVENTS * TURNS + 1))
    for number in range(TURNS):
        assert lived.log[TURN_EVENTS * number]["content"].startswith(f"question-{number}. ")


def test_s1_01_a_view_that_never_asked_before_loads_the_same(lived: SessionCourse) -> None:
    main = lived.calls[-1]
    assert [row["id"] for row in lived.first.context["summaries"]] == [lived.summaries[-1]["id"]]
    assert lived.first.folded_to >= main.folded_to
    assert set(first_words(lived.first.context["request"]["messages"])) <= set(
        first_words(main.context["request"]["messages"])
    )


def test_s4_17_and_s0_16_each_run_has_the_threshold_as_its_reason(lived: SessionCourse) -> None:
    made = [run for run in lived.runs if run["summaries"]]
    assert {run["reason"] for run in made} <= {"pressure", "waited"}
    assert all(run["tokens_after"] <= run["tokens_before"] for run in made)


def _current(head: int) -> set[int]:
    return set(range((head - 1) // TURN_EVENTS * TURN_EVENTS + 1, head + 1))
