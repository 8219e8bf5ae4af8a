"""The retention benchmark's count of users' messages that stand out of order."""

import pytest

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
