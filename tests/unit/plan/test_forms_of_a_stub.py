"""The table of docs/guides/add-a-reducer.md on the forms of a tool result, cell by cell."""

from dataclasses import replace

import pytest

from app.core.log.event import Event
from app.core.plan.reducers.retention import candidates
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START, Stub
from app.core.plan.state.projection import project
from app.core.plan.state.stubs import apply_stubs, replaced_by, shortened_for, stub_for
from app.core.render.formats.parts import is_own, native_of, result_text
from tests.unit.builders import COUNTER, Log, simple_retention

FORMAT = "openai-chat"
SAYS = "words of a reducer"
FORMS = ("line", "shortened", "text")


def context_of(text: str, *, is_error: bool = False) -> tuple[Context, Event]:
    """Return a context with a result of an earlier turn, and this result."""
    log = Log()
    log.user()
    native = {"format": FORMAT, "head": {"name": "read"}}
    seq = log.result(log.call(), 2_000, body={"content": text, "native": native}, is_error=is_error)
    log.user()
    context = project(log.events, START, COUNTER, turn=log.turn)
    return context, next(event for event in log.events if event.seq == seq)


def stub_of(form: str, event: Event, context: Context) -> Stub:
    made = {
        "line": stub_for(event, context, "mine", "old"),
        "shortened": shortened_for(event, 1_000, COUNTER, "mine", "old"),
        "text": replaced_by(event, SAYS, COUNTER, "mine", "old"),
    }[form]
    assert made is not None
    return made


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_and_stored(form: str) -> None:
    context, event = context_of("word " * 2_000)
    stub = stub_of(form, event, context)
    assert (stub.chars > 0) == (form == "shortened")
    assert stub.text == (SAYS if form == "text" else "")
    item = apply_stubs(context, START, [stub]).context.item(event.seq)
    assert item is not None
    assert (item.without_unshown().event.body is None) == (form != "shortened")
    assert item.stub is not None


@pytest.mark.parametrize("form", FORMS)
def test_only_a_shortened_result_can_be_evicted_by_retention(form: str) -> None:
    context, event = context_of("word " * 2_000)
    retention = simple_retention(keep_last=None, age_turns=1)
    assert [one.item.event.seq for one in candidates(context, retention)] == [event.seq]
    after = apply_stubs(context, START, [stub_of(form, event, context)]).context
    found = [one.item.event.seq for one in candidates(after, retention)]
    assert found == ([event.seq] if form == "shortened" else [])


@pytest.mark.parametrize("form", FORMS)
def test_the_mark_of_an_error_and_native_fields(form: str) -> None:
    context, event = context_of("word " * 2_000, is_error=True)
    whole = context.item(event.seq)
    assert whole is not None
    assert result_text(replace(whole.block(), native=None)).startswith("[error] ")
    item = apply_stubs(context, START, [stub_of(form, event, context)]).context.item(event.seq)
    assert item is not None
    block = item.block()
    assert block.is_error
    assert result_text(block).startswith("[error result of ") == (form == "line")
    assert not result_text(block).startswith("[error] ")
    assert bool(native_of(block, FORMAT)) == (form == "shortened")
    assert is_own(whole.block(), FORMAT)
    assert not is_own(block, FORMAT)


@pytest.mark.parametrize("form", FORMS)
def test_a_stub_repeats_nothing(form: str) -> None:
    log = Log()
    log.user()
    old, new = (
        log.result(log.call(body={"arguments": {"path": "/a.py"}}), 2_000, body={"content": "word " * 2_000})
        for _ in range(2)
    )
    context = project(log.events, START, COUNTER, turn=log.turn)
    assert context.repeats.newer == {old: new}
    event = next(event for event in log.events if event.seq == new)
    state = apply_stubs(context, START, [stub_of(form, event, context)]).state
    assert project(log.events, state, COUNTER, turn=log.turn).repeats.newer == {}
