"""S3 in sessions of ten windows with batches written as needed, under the preset `clip`."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.conformance.agent import WAIT_MS, Json, evicted_seqs
from tests.conformance.session_course import WAYS, SessionCourse, check_accounted, requested_seqs, run_sessions

pytestmark = pytest.mark.slow

WINDOW = 6_000
TURNS = 90
LINES = 56
ASKS = {"wait_ms": WAIT_MS, "format": "openai"}
HEADER = re.compile(r"— (\d+) messages compressed across (\d+) compaction")


@pytest.fixture(scope="module")
async def sessions(postgres: str, template: str) -> AsyncIterator[dict[str, SessionCourse]]:
    yield await run_sessions(postgres, template, "clip", window=WINDOW, turns=TURNS, lines=LINES, **ASKS)


@pytest.fixture(params=WAYS)
def lived(request: pytest.FixtureRequest, sessions: dict[str, SessionCourse]) -> SessionCourse:
    """The session of one of the ways."""
    return sessions[request.param]


def test_s3_01_no_call_is_above_eight_tenths_and_nothing_is_lost(lived: SessionCourse) -> None:
    check_accounted(lived)
    for seen in lived.all_contexts:
        assert seen.estimate <= 0.8 * WINDOW
        assert not evicted_seqs(seen.context, "dropped")
    assert lived.first.context["summaries"]


def test_s3_02_the_newest_five_are_never_summarized(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        assert seen.folded_to <= max(0, seen.head - 5)


def test_s3_04_each_chunk_is_sent_once_and_sees_the_summary_before_it(lived: SessionCourse) -> None:
    of_events = [asked for asked in lived.asked if "</conversation>" in asked.prompt]
    sent = [requested_seqs(lived, asked) for asked in of_events]
    assert [seq for seqs in sent for seq in seqs] == [seq for seq in lived.texts if seq <= sent[-1][-1]]
    assert ["<previous-summary>" in asked.prompt for asked in of_events] == [False] + [True] * (len(of_events) - 1)
    assert {asked.temperature for asked in lived.asked} == {0.0}


def test_s3_04_the_first_chunk_of_a_compaction_sees_the_archive_of_all_earlier_batches(
    lived: SessionCourse,
) -> None:
    of_events = [asked for asked in lived.asked if "</conversation>" in asked.prompt]
    batches = sorted((row for row in lived.summaries if not row["sources"]), key=lambda row: int(row["from_seq"]))
    first = {min(found) for run in lived.runs if (found := batch_indexes(run["summaries"], batches))}
    assert len(of_events) == len(batches) and len(first) > 1
    for place, (asked, batch) in enumerate(zip(of_events, batches, strict=True)):
        previous = asked.prompt.partition("<previous-summary>\n")[2]
        archived = [int(events) for events, _ in HEADER.findall(previous)]
        assert archived == ([int(batch["from_seq"]) - 1] if place and place in first else [])


def batch_indexes(ids: list[str], batches: list[Json]) -> list[int]:
    """Return the indexes of the batches that a run has written."""
    return [place for place, batch in enumerate(batches) if batch["id"] in ids]


def test_s3_09_merged_batches_are_a_level_up_and_stand_for_all_of_their_sources(lived: SessionCourse) -> None:
    known = {row["id"]: row for row in lived.summaries}
    merged = [row for row in lived.summaries if row["sources"]]
    for one in merged:
        sources = sorted((known[id] for id in one["sources"]), key=lambda row: int(row["from_seq"]))
        assert one["depth"] == max(row["depth"] for row in sources) + 1
        assert one["events"] == sum(row["events"] for row in sources)
        assert (one["from_seq"], one["to_seq"]) == (sources[0]["from_seq"], sources[-1]["to_seq"])
        assert {row["superseded_by"] for row in sources} == {one["id"]}
    assert merged


def test_s3_11_and_s3_18_the_archive_is_one_message_and_no_batch_stands_in_it_twice(lived: SessionCourse) -> None:
    for seen in lived.all_contexts:
        rows = seen.context["summaries"]
        if not rows:
            continue
        spans = [(row["from_seq"], row["to_seq"]) for row in rows]
        assert spans[0][0] == 1
        assert [first for first, _ in spans[1:]] == [last + 1 for _, last in spans[:-1]]
        archive = seen.context["request"]["messages"][0]
        assert archive["role"] == "system"
        events, cycles = map(int, HEADER.findall(archive["content"])[0])
        assert (events, cycles) == (seen.folded_to, max(row["depth"] for row in rows) + 1)
        assert archive["content"].count("[Batch ") == len(rows)


def test_s3_12_what_is_archived_stays_in_the_log(lived: SessionCourse) -> None:
    assert [event["seq"] for event in lived.log] == list(range(1, len(lived.log) + 1))
    assert all(text in str(lived.log[seq - 1]["content"]) for seq, text in lived.texts.items())
