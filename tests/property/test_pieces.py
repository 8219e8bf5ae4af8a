"""The portions of a conversation for a summarizing model: each within its limit, and together the whole."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.compaction.prompt import (
    ROOM_TOKENS_MIN,
    TURN_START,
    Portion,
    Prompt,
    Remainder,
    history_prompt,
    make_measure,
)
from app.core.compaction.transcript import Paragraph, paragraphs
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import HEURISTIC, TextKind

PROMPTS = {"prefix.v2": "Write it.\n## Original Request"}
MEASURE = make_measure(lambda text: HEURISTIC.count(text, TextKind.PROSE))
TURN = 7
REQUEST = "the request of the turn"
BARE = 60
"""A limit above the tokens of the instructions."""


def form(portion: Portion) -> Prompt:
    text, rules = "\n\n".join(portion.texts), portion.constraints
    return history_prompt(PROMPTS, text, portion.previous, 400, style=TURN_START, constraints=rules, cumulative=True)


def event(seq: int, kind: EventType, text: str) -> Event:
    body = {"content": text, "arguments": {"text": text}}
    return Event(seq, kind, TURN, len(text), call_seq=seq - 1, tool="run", body=body)


KINDS = st.sampled_from(
    [EventType.ASSISTANT_MESSAGE, EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.USER_MESSAGE]
)
TEXTS = st.builds(lambda word, times: word * times, st.text(min_size=1, max_size=9), st.integers(1, 3_000))
EVENTS = st.lists(st.tuples(KINDS, TEXTS), min_size=1, max_size=40).map(
    lambda found: [event(seq, kind, text) for seq, (kind, text) in enumerate(found, start=2)]
)


@given(
    EVENTS,
    st.integers(ROOM_TOKENS_MIN + BARE, 8_000),
    st.text(max_size=20_000),
    st.lists(st.text(min_size=1, max_size=300), max_size=30),
)
def test_every_piece_fits_and_holds_the_request_and_all_of_it_is_asked_about(
    events: list[Event], limit: int, answer: str, constraints: list[str]
) -> None:
    parts = paragraphs([(one, None) for one in events])
    request = Paragraph("[User]: ", REQUEST, turn=TURN, user=True)
    remainder, previous, asked = Remainder(parts, form, MEASURE, constraints, (request,)), "", ""
    while remainder.paragraphs:
        found = remainder.take(previous, limit, is_continuation=bool(previous))
        assert found is not None
        ask, rest = found
        assert remainder.size(ask) <= limit
        assert REQUEST in ask.prompt
        assert rest.paragraphs != remainder.paragraphs
        remainder, previous = rest, answer
        asked += ask.prompt.split("left out here.]\n\n", 1)[-1].split("\n</conversation>", 1)[0]
    fences = r"\[(?:User|Assistant|Assistant tool calls|Tool result)\]: |<tool-output[^>]*>|</tool-output>|\s"
    assert re.sub(fences, "", asked) == re.sub(fences, "", "".join(part.text for part in parts))


@given(EVENTS, st.integers(ROOM_TOKENS_MIN + BARE, 100_000))
def test_refused_portions_are_split_until_none_is_left(events: list[Event], limit: int) -> None:
    remainder = Remainder(paragraphs([(one, None) for one in events]), form, MEASURE)
    sizes: list[int] = []
    while (found := remainder.take("a previous summary " * 300, limit, is_continuation=True)) is not None:
        sizes.append(remainder.size(found[0]))
        limit = remainder.halved_limit(found[0])
    assert sizes == sorted(set(sizes), reverse=True)
    assert len(sizes) <= 20


def test_a_limit_below_the_floor_asks_for_nothing() -> None:
    remainder = Remainder(paragraphs([(event(2, EventType.USER_MESSAGE, "hello"), None)]), form, MEASURE)
    assert remainder.take("", ROOM_TOKENS_MIN, is_continuation=False) is None


def test_pieces_are_about_equal() -> None:
    events = [event(seq, EventType.ASSISTANT_MESSAGE, f"{seq:03} " * 100) for seq in range(2, 32)]
    remainder = Remainder(paragraphs([(one, None) for one in events]), form, MEASURE)
    counts = []
    while remainder.paragraphs:
        found = remainder.take("", 1_900, is_continuation=False)
        assert found is not None
        counts.append(len(remainder.paragraphs) - len(found[1].paragraphs))
        remainder = replace(found[1], user_paragraphs=())
    assert counts == [10, 10, 10]
