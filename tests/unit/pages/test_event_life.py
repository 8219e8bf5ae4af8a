"""The life of an event in runs of calls, the lines that hold it, and excerpts of its text."""

from typing import Any
from uuid import UUID

import pytest

from app.core.record.over_time import StateRun, event_text, holders, life_of, pattern, pieces, run_at


def run(first: int, last: int, **item: Any) -> tuple[StateRun, dict[str, Any]]:
    """Return calls first..last, and their item of the history: shown whole unless `item` says otherwise."""
    whole = {"disposition": "verbatim", "summary": None, "reducer": None, "reason": None}
    return StateRun(UUID(int=first), None, first, last), whole | item


def test_neighbours_that_show_an_event_alike_are_one_run() -> None:
    stub = {"disposition": "stubbed", "reducer": "retention", "reason": "not_among_last_1"}
    life = life_of([run(3, 4), run(5, 6), run(7, 9, **stub), run(10, 10), (run(11, 12)[0], None)])
    assert [(one.first, one.last, one.item["disposition"]) for one in life] == [
        (3, 6, "verbatim"),
        (7, 9, "stubbed"),
        (10, 10, "verbatim"),
    ]
    assert run_at(life, 8) == life[1] and run_at(life, 2) is None


@pytest.mark.parametrize(("seq", "others"), [(3, ["s@line.1", "s@line.3"]), (5, ["s@line.3"]), (8, [])])
def test_a_line_holds_the_events_up_to_where_it_parted(seq: int, others: list[str]) -> None:
    lines = [
        {"id": "s@line.1", "head": 9, "parent": None, "at": None},
        {"id": "s@line.2", "head": 9, "parent": "s@line.1", "at": 4},
        {"id": "s@line.3", "head": 6, "parent": "s@line.2", "at": 5},
    ]
    assert holders(lines, "s@line.2", seq) == others


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "user.message", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, "a\n[image]"),
        ({"type": "tool.call", "arguments": '{"path": "a \\"b\\"", "n": 2}'}, 'path: a "b"\nn: 2'),
        ({"type": "tool.call", "arguments": "no { json"}, "no { json"),
        ({"type": "tools", "content": [{"name": "é"}]}, '[{"name": "é"}]'),
        ({"type": "turn.end"}, ""),
    ],
)
def test_the_text_of_an_event_has_its_content_and_arguments(event: dict[str, Any], text: str) -> None:
    assert event_text(event) == text


def test_an_excerpt_begins_near_the_first_match() -> None:
    found = pieces("x" * 100 + "Two\n words" + "y" * 300, pattern("two words"))
    assert found[0] == ("…", False) and found[2] == ("Two\n words", True) and found[-1][0].endswith("…")
    assert pieces("nothing", pattern("two")) == [("nothing", False)] and pattern(" \n") is None


def test_a_text_of_millions_of_characters_is_searched_in_a_moment() -> None:
    pieces("a " * 1_000_000, pattern("a a a a a a a b"))
    pieces(" " * 2_000_000, pattern("a b"))
