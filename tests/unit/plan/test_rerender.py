"""The text in place of an event that is not shown whole depends only on data that a later render has."""

from dataclasses import replace

import pytest

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.state.context import units
from app.core.plan.state.frontier import Fold, Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.projection import project
from app.core.record import NO_COUNT, seqs_in_request

THOUGHT = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}]
NATIVE = {"format": "openai", "head": {"name": "read"}, "part": {"x": 1}}


def event(seq: int, kind: EventType, content: object = "said", **more: object) -> Event:
    body = {"type": kind.value, "content": content, "native": NATIVE}
    return Event(seq, kind, 1, 500, body=body, **more)  # type: ignore[arg-type]  # fields of Event, by name


@pytest.mark.parametrize(
    "stub",
    [
        Stub(2, 0, 20, 480, "retention", "older", keeps=("a.py",)),
        Stub(2, 0, 20, 480, "expiry", "ttl_turns", "[gone]"),
    ],
    ids=["stub", "words of its own"],
)
def test_a_stub_looks_the_same_with_and_without_the_body(stub: Stub) -> None:
    result = event(2, EventType.TOOL_RESULT, call_id="c", tool="read", call_seq=1, gist="first line")
    recounted = replace(result, tokens=9_999, body=None)
    assert Item(result, stub.tokens, stub).block() == Item(recounted, stub.tokens, stub).block()
    if not stub.text:
        assert "about 500 tokens" in str(Item(recounted, stub.tokens, stub).block().content)


def test_reasoning_that_is_not_shown_ties_nothing_together() -> None:
    thought, said = event(1, EventType.ASSISTANT_MESSAGE, THOUGHT), event(2, EventType.ASSISTANT_MESSAGE)
    stub = Stub(1, 0, 5, 495, "expiry", "ttl_turns", "[gone]")
    assert len(units([Item(thought, 500), Item(said, 500)])) == 1
    for body in (thought.body, None):
        assert len(units([Item(replace(thought, body=body), 5, stub), Item(said, 500)])) == 2


def test_events_that_a_call_refers_to() -> None:
    """A call refers to shown events and to spans of shown summaries, not to dropped events or unshown summaries."""
    state = Frontier(
        floor=9,
        kept=(8,),
        folds=(Fold("a", 1, 3, 0, 1, 1, shown=False), Fold("b", 4, 6, 0, 1, 1)),
        stubs=(Stub(10, 0, 5, 495, "retention", "older"),),
    )
    log = [event(seq, EventType.USER_MESSAGE) for seq in range(1, 12)]
    context = project(log, state, NO_COUNT, turn=1)
    assert seqs_in_request(range(1, 13), context, state) == [4, 5, 6, 8, 10, 11]
