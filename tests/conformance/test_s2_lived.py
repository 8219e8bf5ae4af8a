"""S2 in sessions of ten windows with a worker between turns, under the preset `pipeline`."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from tests.conformance.agent import evicted_seqs, request_text
from tests.conformance.session_course import (
    TURN_EVENTS,
    WAYS,
    SessionCourse,
    check_accounted,
    requested_seqs,
    run_sessions,
)
from tests.support import validators

pytestmark = pytest.mark.slow

WINDOW = 5_000
TURNS = 124
LINES = 20
"""Result lines for a turn of about 550 tokens, so that results expire before they are summarized."""


@pytest.fixture(scope="module")
async def sessions(postgres: str, template: str) -> AsyncIterator[dict[str, SessionCourse]]:
    yield await run_sessions(postgres, template, "pipeline", window=WINDOW, turns=TURNS, lines=LINES, format="openai")


@pytest.fixture(params=WAYS)
def lived(request: pytest.FixtureRequest, sessions: dict[str, SessionCourse]) -> SessionCourse:
    """The session of one of the ways."""
    return sessions[request.param]


def test_s2_01_the_log_is_never_changed_and_nothing_is_lost(lived: SessionCourse) -> None:
    check_accounted(lived)
    assert [event["seq"] for event in lived.log] == list(range(1, TURN_EVENTS * TURNS + 1))
    assert all(event["content"].startswith(lived.texts[seq]) for seq, event in enumerate(lived.log, 1) if seq % 4 != 2)


def test_s2_06_and_s2_08_only_results_of_older_turns_expire_and_pairs_stay_whole(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        validators.check_openai(seen.context["request"])
        stubbed = evicted_seqs(seen.context, "stubbed")
        assert all(seq < lived.seq((seen.head - 1) // TURN_EVENTS - 5) for seq in stubbed)
    expired = any(evicted_seqs(seen.context, "stubbed") for seen in lived.all_contexts)
    assert expired is (len(lived.calls) > TURNS)  # posted in bulk, all events that old are summarized at the first call


def test_s2_10_and_s2_11_one_cumulative_summary_of_all_but_the_newest_two_turns(lived: SessionCourse) -> None:
    for number, made in enumerate(lived.summaries):
        last = lived.summaries[number - 1] if number else None
        assert (made["from_seq"], made["sources"]) == (1, [last["id"]] if last else [])
        asked = lived.asked[number]
        since = last["to_seq"] if last else 0
        assert requested_seqs(lived, asked) == [seq for seq in lived.texts if since < seq <= made["to_seq"]]
        assert ("<previous-summary>" in asked.prompt) is bool(last)
        assert "[Tool result]: " in asked.prompt
    assert len(lived.asked) == len(lived.summaries)
    assert lived.summaries[-1]["to_seq"] % TURN_EVENTS == 0
    for seen in lived.all_contexts:
        assert seen.covered_to <= max(0, lived.seq((seen.head - 1) // TURN_EVENTS - 1) - 1)


def test_s2_12_every_context_is_a_summary_and_all_events_behind_it(lived: SessionCourse) -> None:
    """A context has the summary with the greatest `to_seq` that its budget requires, also in a new view."""
    assert lived.first.context["summaries"]
    for seen in lived.all_contexts:
        summaries = seen.context["summaries"]
        assert len(summaries) <= 1
        assert not evicted_seqs(seen.context, "dropped")
        behind = [seq for seq in lived.texts if seen.folded_to < seq <= seen.head]
        stubbed = evicted_seqs(seen.context, "stubbed")
        text = request_text(seen.context)
        assert all((lived.texts[seq] in text) or seq in stubbed for seq in behind)
        assert evicted_seqs(seen.context, "summarized") == set(range(1, seen.folded_to + 1))
        if summaries:
            assert seen.context["request"]["messages"][0]["role"] == "system"


def test_s2_12_a_view_that_never_asked_before_is_given_the_summary_that_there_is(lived: SessionCourse) -> None:
    assert lived.first.folded_to in [row["to_seq"] for row in lived.summaries]
    assert lived.first.folded_to >= lived.calls[-1].folded_to - 40 * TURN_EVENTS


def test_s2_17_epochs_are_few_and_between_two_the_request_only_grows(lived: SessionCourse) -> None:
    for before, after in pairwise(lived.calls):
        if before.context["epoch"] == after.context["epoch"]:
            sent = before.context["request"]["messages"]
            assert after.context["request"]["messages"][: len(sent)] == sent
    assert len(lived.epochs) <= len(lived.calls) // 4 + 1


def test_s2_19_the_budget_holds_for_what_is_sent(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        assert seen.estimate == sum(seen.context["tokens"]["by_source"].values())
        assert seen.estimate <= seen.context["tokens"]["target"]
