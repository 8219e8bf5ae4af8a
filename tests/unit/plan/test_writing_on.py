"""The text of a new epoch reuses that of the previous one up to the first change."""

from dataclasses import replace
from operator import is_

import pytest

from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START, Frontier, Stub
from app.core.plan.state.projection import project
from app.core.render.formats import FORMATS
from app.core.render.request import MARK_UNITS, WrittenContext, write_text
from tests.unit.builders import COUNTER, Log

ROUNDS = 60


def a_log() -> Log:
    log = Log()
    log.user()
    for _ in range(ROUNDS):
        log.assistant()
        log.round()
    log.user()
    return log


def with_stub(context: Context, state: Frontier, seq: int) -> tuple[Context, Frontier]:
    stub = Stub(seq, 0, 20, 480, "economics", "superseded")
    return context.with_stubs({seq: stub}), replace(state, stubs=(*state.stubs, stub))


def same_messages(one: WrittenContext, other: WrittenContext) -> int:
    """Return the number of leading messages that are the same objects."""
    pairs = zip(one.settled.writer.texts, other.settled.writer.texts, strict=False)
    return next((number for number, pair in enumerate(pairs) if not is_(*pair)), len(one.settled.writer.texts))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("number", [0, 1, ROUNDS // 2, ROUNDS - 1])
def test_text_before_a_change_is_not_written_again(form: str, number: int) -> None:
    context = project(a_log().events, START, COUNTER, turn=2)
    before = write_text(form, context, START)
    results = [item.event.seq for item in context.items if item.event.call_seq is not None]
    assert len(results) == ROUNDS
    after, state = with_stub(context, START, results[number])
    continued, anew = write_text(form, after, state, before=before.settled), write_text(form, after, state)
    assert continued.request(()) == anew.request(())
    assert (continued.places, continued.layout) == (anew.places, anew.layout)
    assert continued.settled.chars == anew.settled.chars
    changed = next(n for n, unit in enumerate(context.units) if unit is not after.units[n])
    assert changed > number
    most = 3 * MARK_UNITS  # messages of that number of units
    assert changed - most <= same_messages(continued, before) < len(before.settled.writer.texts)


@pytest.mark.parametrize("form", FORMATS)
def test_a_third_epoch_is_written_on_from_the_second(form: str) -> None:
    context = project(a_log().events, START, COUNTER, turn=2)
    written = write_text(form, context, START)
    results = [item.event.seq for item in context.items if item.event.call_seq is not None]
    state = START
    for seq in (results[50], results[20], results[40], results[2]):
        context, state = with_stub(context, state, seq)
        written = write_text(form, context, state, ["now"], written.settled)
        assert written.request(()) == write_text(form, context, state, ["now"]).request(())


def test_with_another_note_the_request_is_as_if_written_from_scratch() -> None:
    context = project(a_log().events, START, COUNTER, turn=2)
    before = write_text("anthropic", context, START)
    state = replace(START, floor=1, note="[something was left out]")
    continued = write_text("anthropic", context, state, before=before.settled)
    assert continued.request(()) == write_text("anthropic", context, state).request(())
