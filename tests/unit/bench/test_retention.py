"""The retention benchmark: its parts of a session, and its count of users' messages that stand out of order."""

import pytest

from bench.retention.__main__ import PARTS, parts_of
from bench.retention.statements import StatementCounts
from tests.unit.builders import Log

FIRST, SECOND, THIRD = "Sort the table of the harbour.", "Is it sorted by name?", "Print the table of the gauges."


@pytest.mark.parametrize(
    ("lines", "misplaced"),
    [
        ((f"First request: {FIRST}", f'{SECOND} (asked: "By what?")', f"Later request: {THIRD}"), 0),
        ((f"First request: {FIRST}", f"Later request: {THIRD}", SECOND), 1),
        ((THIRD, SECOND, FIRST), 2),
        (("Sort the table… harbour.", "Words of nobody.", "Print the table…"), 0),
    ],
)
def test_messages_out_of_the_order_of_the_log_are_counted(lines: tuple[str, ...], misplaced: int) -> None:
    log = Log()
    for text in (FIRST, SECOND, THIRD):
        log.user(body={"content": text})
    counts = StatementCounts()
    first, *others = lines
    said = "\n".join(f"- {line}" for line in others)
    counts.add(f"## Goal\n- {first}\n## User Messages\n{said}\n## Progress\n### Done\n- {FIRST}", log.events)
    assert counts.misplaced == misplaced


def test_no_part_of_a_session_ends_between_a_call_and_its_result() -> None:
    log = Log()
    for _ in range(PARTS * 3):
        calls = [log.call("TaskUpdate", body={"arguments": {"taskId": "1"}}) for _ in range(3)]
        for call in calls:
            log.result(call)
    parts = list(parts_of(log.events))
    assert sum(parts, ()) == tuple(log.events) and len(parts) == PARTS
    assert all({e.seq for e in part if not e.call_seq} == {e.call_seq for e in part if e.call_seq} for part in parts)
