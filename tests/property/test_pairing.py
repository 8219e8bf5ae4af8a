"""Pairing of calls and results in lists in which ids repeat and calls or results are missing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.log.appends import FIRST, parse_event, place
from app.core.log.conversation import ADDED, pair_calls
from app.core.log.events import Draft, EventType
from app.core.render.formats import check_native

Event = dict[str, Any]
IDS = st.sampled_from(["x", "y", "x#2", "x" * 256])


def call(call_id: str) -> Event:
    native = {"format": "openai"}
    return {"type": "tool.call", "call_id": call_id, "tool": "look", "arguments": "{}", "native": native}


def result(call_id: str) -> Event:
    native = {"format": "openai", "head": {}}
    return {"type": "tool.result", "call_id": call_id, "content": "seen", "native": native}


SAID: Event = {"type": "user.message", "content": "Go on.", "native": {"format": "openai", "head": {}}}
LISTS = st.lists(st.one_of(st.builds(call, IDS), st.builds(result, IDS), st.just(SAID)), max_size=12)


def drafts(events: Any) -> list[Draft]:
    return [parse_event(event, native=True) for event in events]


@given(LISTS)
def test_the_log_accepts_any_paired_list(events: list[Event]) -> None:
    accepted = drafts(pair_calls(events).events)
    place(accepted, [1] * len(accepted), FIRST)  # raises for an id that is open twice, or a second result
    open_ids: set[str] = set()
    for draft in accepted:
        if draft.native is not None:
            check_native(draft, 0)
        if draft.type is EventType.TOOL_CALL:
            open_ids.add(draft.call_id or "")
        elif draft.type is EventType.TOOL_RESULT:
            open_ids.remove(draft.call_id or "")


@given(LISTS, st.integers(0, 12))
def test_a_list_that_grows_keeps_what_it_began_with(events: list[Event], count: int) -> None:
    whole, first = pair_calls(events), pair_calls(events[:count])
    rest = pair_calls(events[count:], first.open_ids)
    assert [*first.events, *rest.events] == list(whole.events)
    assert rest.open_ids == whole.open_ids
    assert first.added | {len(first.events) + one for one in rest.added} == whole.added


@given(LISTS)
def test_every_event_of_the_list_is_there_once_with_the_id_that_the_client_gave(events: list[Event]) -> None:
    paired = pair_calls(events)
    own = [event for place, event in enumerate(paired.events) if place not in paired.added]
    ids = [event.get("native", {}).get("call_id") or event.get("call_id") for event in own]
    assert ids == [event.get("call_id") for event in events]
    assert [event["type"] for event in own] == [event["type"] for event in events]
    assert all(paired.events[place]["metadata"] == {ADDED: True} for place in paired.added)


@given(LISTS)
def test_a_list_that_the_log_would_take_stays_as_it_is(events: list[Event]) -> None:
    sound = [{**event, "native": {"format": "openai", "head": {}}} for event in pair_calls(events).events]
    paired = pair_calls(sound)
    assert all(new is old for new, old in zip(paired.events, sound, strict=True))
    assert not paired.added
