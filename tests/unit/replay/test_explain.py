"""How the story of an event is told."""

from typing import Any

from app.replay.explain import describe_call, describe_event, story


def item(number: int, disposition: str, **more: Any) -> dict[str, Any]:
    about = {"call_id": f"call-{number}", "created_at": f"2026-01-01T00:00:{number:02}.5+00:00", "view": "main"}
    return {**about, "epoch": 1, "cause": "start", "disposition": disposition, **more}


def test_an_event_is_named_in_a_line() -> None:
    event = {"seq": 7, "type": "tool.result", "tool": "read", "turn": 2, "tokens": 1234, "content": "a\n b " + "c" * 99}
    line = describe_event(event)
    assert line.startswith('Event 7, tool.result of read, turn 2, 1,234 tokens: "a b ccc')
    assert line.endswith('…"')
    assert (
        describe_event({"seq": 1, "type": "turn.end", "turn": 1, "tokens": 0}) == "Event 1, turn.end, turn 1, 0 tokens"
    )
    parts = [{"type": "image"}, {"type": "text", "text": "look"}]
    assert describe_event({"seq": 1, "type": "user.message", "turn": 1, "tokens": 3, "content": parts}).endswith(
        ': "look"'
    )


def test_only_changes_are_told_and_the_last_call() -> None:
    stub = {"reducer": "retention", "reason": "older_than_5_turns", "epoch": 3, "cause": "budget"}
    items = [item(1, "verbatim"), item(2, "verbatim"), item(3, "stubbed", **stub), item(4, "stubbed", **stub)]
    lines = story(items)
    assert lines == [
        "View main, 4 calls:",
        "  2026-01-01 00:00:01  call call-1  epoch 1 (start): shown whole",
        "  2026-01-01 00:00:03  call call-3  epoch 3 (budget): shown as a stub, by retention: older_than_5_turns",
        "  and so it was in the last call, call-4",
    ]
    assert len(story(items, every=True)) == 5
    assert story([]) == ["No recorded call has been made since."]


def test_views_are_told_apart() -> None:
    lines = story([item(1, "verbatim"), {**item(2, "dropped", reducer="cut"), "view": "title"}])
    assert [line for line in lines if line.startswith("View")] == ["View main, 1 call:", "View title, 1 call:"]
    assert any(line.endswith("left out, by cut") for line in lines)


def test_a_summary_is_named_once() -> None:
    told = item(1, "summarized", reducer="fold", reason="summary s1", summary="s1")
    assert describe_call(told) == "told of by a summary, by fold: summary s1"
    assert describe_call({**told, "reason": None}) == "told of by a summary, by fold: summary s1"
