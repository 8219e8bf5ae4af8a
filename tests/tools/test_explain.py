"""The words of an explanation: of an event over all calls, and of a text at one call."""

from dataclasses import replace
from typing import Any

import pytest
from palimpsest._model import decode
from palimpsest.types import CallBlockOut, CallItem, EventOut, HistoryItem, LineOut, Manifest, SummaryWhole

from palimpsest_tools.look.at_call import CallStory, EventAtCall, block_text, describe_story, is_whole, story_json
from palimpsest_tools.look.calls import NumberedCall
from palimpsest_tools.look.explain import about_lines
from palimpsest_tools.look.story import describe_call, describe_event, story


def item(number: int, disposition: str, **more: Any) -> HistoryItem:
    about = {"call_id": f"call-{number}", "created_at": f"2026-01-01T00:00:{number:02}.5+00:00", "view": "main"}
    made: HistoryItem = decode(HistoryItem, {**about, "epoch": 1, "cause": "start", "disposition": disposition, **more})
    return made


def event(seq: int, type: str, turn: int, tokens: int, **more: Any) -> EventOut:
    made: EventOut = decode(EventOut, {"seq": seq, "type": type, "turn": turn, "tokens": tokens, **more})
    return made


EVENT = event(7, "tool.result", 2, 1234, tool="read", content="a\n b " + "c" * 99)


def test_an_event_is_named_in_a_line() -> None:
    line = describe_event(EVENT)
    assert line.startswith('Event 7, tool.result of read, turn 2, 1,234 tokens: "a b ccc')
    assert line.endswith('…"')
    assert describe_event(event(1, "turn.end", 1, 0)) == "Event 1, turn.end, turn 1, 0 tokens"
    parts = [{"type": "image"}, {"type": "text", "text": "look"}]
    assert describe_event(event(1, "user.message", 1, 3, content=parts)).endswith(': "[image] look"')


def test_only_changes_and_the_last_call_are_listed() -> None:
    stub = {"reducer": "retention", "reason": "older_than_5_turns", "epoch": 3, "cause": "budget"}
    items = [item(1, "verbatim"), item(2, "verbatim"), item(3, "stubbed", **stub), item(4, "stubbed", **stub)]
    lines = story(items, {"call-1": 4, "call-3": 6})
    assert lines == [
        "View main, 4 calls:",
        "  2026-01-01 00:00:01  call 4 call-1  epoch 1 (start): shown whole",
        "  2026-01-01 00:00:03  call 6 call-3  epoch 3 (budget): shown as a stub, by retention: older_than_5_turns",
        "  and so it was in the last call, call-4",
    ]
    assert len(story(items, {}, every=True)) == 5
    assert story([], {}) == ["No recorded call has been made since."]


def test_views_are_distinguished() -> None:
    lines = story([item(1, "verbatim"), item(2, "dropped", reducer="cut", view="title")], {})
    assert [line for line in lines if line.startswith("View")] == ["View main, 1 call:", "View title, 1 call:"]
    assert any(line.endswith("left out, by cut") for line in lines)


def test_a_summary_is_named_once() -> None:
    for reason in ("summary s1", None):
        call = item(1, "summarized", reducer="fold", reason=reason, summary="s1")
        assert describe_call(call) == "replaced by a summary, by fold: summary s1"


def line(number: int, head: int, parent: int | None = None, at: int | None = None, **more: Any) -> LineOut:
    own = None if parent is None else f"s@line.{parent}"
    about = {"id": f"s@line.{number}", "head": head, "parent": own, "at": at, "current": False}
    made: LineOut = decode(LineOut, {**about, **more})
    return made


def test_other_lines_of_the_session_are_listed_with_how_to_read_them() -> None:
    lines = [line(1, 30), line(2, 26, 1, 10), line(3, 9, 2, 8), line(4, 12, 2, 11, current=True)]
    assert about_lines(lines, "s", 9) == [
        "Read on s@line.4 (events 1 to 12), the current line of s. Other lines of the session:",
        "  s@line.3 (events 1 to 9): its own event 9: palimpsest explain s@line.3 9",
        "  s@line.2 (events 1 to 26): the same event; its calls: palimpsest explain s@line.2 9",
        "  s@line.1 (events 1 to 30): the same event; its calls: palimpsest explain s@line.1 9",
    ]
    read = about_lines(lines, "s@line.1", 11)
    assert read[0] == "Read on s@line.1 (events 1 to 30), not the current line of s. Other lines of the session:"
    assert read[1].startswith("  s@line.4 (events 1 to 12, current): its own event 11")
    assert read[2].endswith("s@line.3 (events 1 to 9): no such event")
    assert about_lines([line(1, 30, current=True)], "s", 9) == []


def test_only_the_newest_of_many_lines_are_listed() -> None:
    said = about_lines([line(number, 5, current=number == 40) for number in range(1, 41)], "s", 5)
    assert (len(said), said[-1]) == (12, "  and 29 older ones: GET /v1/sessions/s/lines")


def block(seq: int, kind: str, text: str, mark: str = "verbatim", **more: Any) -> CallBlockOut:
    made: CallBlockOut = decode(CallBlockOut, {"seq": seq, "kind": kind, "text": text, "mark": mark, **more})
    return made


def told(text: str | None, *events: EventAtCall, **more: Any) -> CallStory:
    about = {"call_id": "call-57", "created_at": "2026-01-01T00:00:57Z", "view": "main", "line": "s@line.1"}
    call: CallItem = decode(CallItem, {**about, "epoch": 3, "head": 40})
    record: Manifest = decode(Manifest, {**about, "cause": "budget", "tokens": {"estimate": 900, "target": 1000}})
    return CallStory(NumberedCall(57, call, False), record, text, more.pop("held_by", ()), events, **more)


HISTORY = (
    item(1, "verbatim"),
    item(2, "stubbed", reducer="retention", reason="superseded", epoch=2, cause="budget"),
    item(57, "summarized", reducer="fold", reason="summary s1", summary="s1", epoch=3, cause="budget"),
)
SUMMARY: SummaryWhole = decode(
    SummaryWhole,
    {"id": "s1", "from_seq": 2, "to_seq": 30, "tokens": 120, "text": "## Goal\nFind the port of the database."},
)
HEAD = "Call 57 of view main, 2026-01-01 00:00:57, epoch 3 (budget): 900 of 1,000 tokens"


def test_a_forgotten_text_is_followed_through_the_decisions_to_the_summary() -> None:
    found = event(7, "tool.result", 2, 1234, tool="read", content="the port is 5432")
    lines = describe_story(
        told("port is 5432", EventAtCall(found, HISTORY, SUMMARY), partial=(7,)), {"call-1": 31, "call-2": 44}
    )
    assert lines == [
        HEAD,
        'Its request did not hold "port is 5432".',
        "Of the 40 events before it, 1 has it, not shown whole:",
        "",
        'Event 7, tool.result of read, turn 2, 1,234 tokens: "the port is 5432"',
        "  2026-01-01 00:00:01  from call 31 on, epoch 1 (start): shown whole",
        "  2026-01-01 00:00:02  from call 44 on, epoch 2 (budget): shown as a stub, by retention: superseded",
        "  2026-01-01 00:00:57  from call call-57 on, epoch 3 (budget): replaced by a summary, by fold: summary s1",
        "  Summary s1 of events 2 to 30, 120 tokens, does not have the text; it begins: "
        '"## Goal Find the port of the database."',
    ]
    has = describe_story(told("the port OF", EventAtCall(found, HISTORY, SUMMARY), partial=(7,)), {})
    assert "has the text:" in has[-1]


def test_a_text_that_the_request_held_is_located() -> None:
    held = (
        block(7, "result", "x", "shortened"),
        block(8, "user", "x"),
        block(6, "note", "x", "summary"),
        block(9, "note", "x", "layer", name="sources"),
        block(9, "note", "x", "note"),
        block(9, "note", "x"),
    )
    places = (
        "in event 7 (result, shortened), in event 8 (user), in its summaries, in the layer 'sources', "
        "in the note on what was left out, in 1 block more"
    )
    assert describe_story(told("x", held_by=held), {}) == [
        HEAD,
        f'Its request held "x": {places}.',
        "None of the 40 events before it has it.",
    ]


def test_a_text_that_comes_later_or_was_not_searched_for_everywhere_is_told() -> None:
    later = describe_story(told("x", later=(44, 50)), {})
    assert later[2:] == [
        "None of the 40 events before it has it.",
        "Event 44, the first that has it, was appended after this call.",
    ]
    assert describe_story(told("x", searched_from=11), {})[2] == "None of events 11 to 40 has it."


@pytest.mark.parametrize(
    ("whole", "partial", "words"),
    [
        ((9,), (), "1 has it, shown whole:"),
        ((), (3, 4), "2 have it, not shown whole; the last 1 of these:"),
        ((3, 4), (), "2 have it, shown whole; the last 1 of these:"),
        ((3, 4), (9,), "3 have it, 2 shown whole, 1 not:"),
        ((3,), (4, 9), "3 have it, 1 shown whole, 2 not; the last 1 that are not:"),
    ],
)
def test_events_with_a_text_are_counted_by_how_they_were_shown(
    whole: tuple[int, ...], partial: tuple[int, ...], words: str
) -> None:
    one = EventAtCall(event(9, "user.message", 1, 1), HISTORY[:1])
    lines = describe_story(told("x", one, whole=whole, partial=partial), {})
    assert lines[2] == f"Of the 40 events before it, {words}"


def test_a_record_says_which_events_were_shown_whole() -> None:
    runs = [{"from_seq": 1, "to_seq": 3, "disposition": "verbatim"}, {"from_seq": 4, "to_seq": 9, "disposition": "x"}]
    record: Manifest = decode(Manifest, {"dispositions": runs})
    assert [seq for seq in range(1, 12) if is_whole(record, seq)] == [1, 2, 3]


def test_a_calls_arguments_are_searched_without_the_escapes_of_json() -> None:
    assert block_text(block(1, "call", '{"text": "a \\"b\\"\\nc"}')) == 'text: a "b"\nc'
    assert block_text(block(1, "result", '{"text": "a"}')) == '{"text": "a"}'


def test_the_words_in_place_of_an_event_are_quoted() -> None:
    stub = block(7, "result", "[result of read left out]", "stub")
    lines = describe_story(told(None, EventAtCall(EVENT, HISTORY[:2], None, stub)), {})
    assert lines[-1] == '  In its place: "[result of read left out]"'
    assert lines[1] == ""
    whole = describe_story(told(None, EventAtCall(EVENT, HISTORY[:1], None, block(7, "result", "a b"))), {})
    assert not any("In its place" in line for line in whole)


def test_many_changes_are_shortened_to_the_first_and_the_last() -> None:
    history = tuple(
        replace(HISTORY[2], call_id=f"call-{number}", summary=f"s{number}", reason=None) for number in range(1, 12)
    )
    lines = describe_story(told(None, EventAtCall(EVENT, history)), {f"call-{n}": n for n in range(1, 12)})[3:]
    assert len(lines) == 7
    assert lines[2] == "  … 5 changes more: palimpsest explain s@line.1 7"
    assert [line.split(" on,")[0].split("from ")[1] for line in lines if "from" in line] == [
        *("call 1", "call 2", "call 8", "call 9", "call 10", "call 11")
    ]


def test_machines_get_the_verdict_as_fields() -> None:
    found = event(7, "tool.result", 2, 1234, content="the port is 5432")
    told_json = story_json(told("port is 5432", EventAtCall(found, HISTORY, SUMMARY), partial=(3, 7)))
    assert (told_json["held"], told_json["call"]["number"], told_json["partial_events"]) == (False, 57, [3, 7])
    (one,) = told_json["events"]
    assert (one["event"]["seq"], one["summary_has_text"], len(one["history"])) == (7, False, 3)
    assert story_json(told(None, EventAtCall(found, HISTORY[:1])))["held"] is None
