"""The cost of a rewrite and of append-only, against their definitions computed item by item."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.log.event import Event
from app.core.log.events import ASSISTANT_SIDE, EventType
from app.core.plan.reducers.earnings import baseline_cost, earnings_so_far, last_unit_seq, rewrite_cost
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.projection import project
from app.core.plan.update import grow
from app.core.tokens.models import CacheProfile
from tests.support.examples import examples
from tests.unit.builders import COUNTER, Log

caches = st.builds(
    CacheProfile,
    ttl_seconds=st.sampled_from([30, 50, 3_600]),
    minimum_tokens=st.sampled_from([0, 0, 90]),
    step_tokens=st.sampled_from([1, 128]),
    lookback_blocks=st.sampled_from([None, 3, 20]),
)


STUBS = ((), (Stub(2, 0, 3, 40, "economics", "old"), Stub(4, 0, 3, 9, "economics", "old")))
steps = st.lists(
    st.tuples(st.sampled_from(["user", "says", "call", "call", "result", "result"]), st.integers(0, 9)),
    min_size=5,
    max_size=30,
)


@settings(max_examples=examples(900), database=None, deadline=None)
@given(
    steps=steps,
    size=st.integers(1, 8),
    cache=caches,
    outside=st.sampled_from([0, 70]),
    state=st.builds(
        Frontier,
        began=st.sampled_from([0, 2]),
        earned=st.just(7),
        earned_to=st.sampled_from([0, 1, 12]),
        stubs=st.sampled_from(STUBS),
    ),
)
def test_new_and_grown_contexts_have_the_defined_costs(
    steps: list[tuple[str, int]], size: int, cache: CacheProfile, outside: int, state: Frontier
) -> None:
    log = log_of(steps)
    grown = None
    for end in range(size, len(log.events) + size, size):
        events = log.events[:end]
        turn = events[-1].turn
        anew = project(events, state, COUNTER, turn=turn)
        grown = grown and grow(grown, events[end - size :], turn=turn, ephemeral_tokens=0)
        for context in filter(None, (anew, grown)):
            assert_as_defined(context, state, cache, outside)
        grown = grown or anew


@settings(max_examples=examples(500), database=None, deadline=None)
@given(
    steps=steps, stubbed=st.lists(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12)), max_size=4), max_size=3)
)
def test_a_context_with_stubs_equals_one_made_of_its_items(
    steps: list[tuple[str, int]], stubbed: list[list[tuple[int, int]]]
) -> None:
    log = log_of(steps)
    context = project(log.events, Frontier(), COUNTER, turn=log.events[-1].turn)
    for stubs in stubbed:
        # Both are known now, so they are kept up to date.
        assert len(context.paired_results) <= len(context.rounds.firsts) * len(log.events)
        context = context.with_stubs({seq: Stub(seq, 0, tokens, 3, "economics", "old") for seq, tokens in stubs})
        anew = replace(context)
        assert {"units", "paired_results", "rounds_before"} <= vars(context).keys()
        assert vars(anew).keys().isdisjoint({"units", "paired_results", "rounds_before"})
        assert computed(context) == computed(anew)
        assert (context.by_source, context.open_calls) == (anew.by_source, anew.open_calls)


def computed(context: Context) -> tuple[object, ...]:
    return context.units, context.paired_results, context.rounds


def log_of(steps: list[tuple[str, int]]) -> Log:
    """Return a log with ten seconds between its events; results answer any open call, so that some are late."""
    log, open_calls = Log(), []
    for what, number in steps:
        at = 10.0 * len(log.events)
        if what == "result" and open_calls:
            log.result(open_calls.pop(number % len(open_calls)), 20 + number, at=at)
        elif what == "call":
            open_calls.append(log.call(tokens=number, at=at))
        elif what == "says":
            log.assistant(number, at=at)
        else:
            log.user(number, at=at)
    return log


def assert_as_defined(context: Context, state: Frontier, cache: CacheProfile, outside: int) -> None:
    answers = answers_of(context)
    assert last_unit_seq(context) == last_response(context)
    costs = rewrite_cost(context, state, cache, outside, None)
    expected = rewrite_costs(context, state, cache, outside)
    assert {seq: costs(item) for seq, (item, _) in expected.items()} == {s: cost for s, (_, cost) in expected.items()}
    calls = max(0, sum(event.seq > state.earned_to for event in answers) - 1)
    paid = calls * (cache.read_price * state.saved - (cache.write_price - cache.read_price) * (cache.step_tokens - 1))
    assert earnings_so_far(context, state, cache) == (state.earned + paid if state.saved else state.earned)
    shown = sum(item.tokens for unit in context.units for item in unit.all_items)
    fixed = outside + context.tokens - shown
    read = sum(
        item.tokens
        for unit in context.units
        for a in answers
        if unit.items[0].event.seq < a.seq
        for item in unit.all_items
    )
    price = cache.write_price * (fixed + shown + state.saved) + cache.read_price * (read + fixed * len(answers))
    assert baseline_cost(context, state, cache, outside) == price


def answers_of(context: Context) -> list[Event]:
    """Return the first events of the model's responses; adjacent messages are one response."""
    before = [None, *context.units]
    return [
        unit.items[0].event
        for last, unit in zip(before, context.units, strict=False)
        if of_model(unit) and not (last and of_model(last) and not last.results)
    ]


def last_response(context: Context) -> int:
    return max((unit.items[0].event.seq for unit in context.units if of_model(unit)), default=0)


def of_model(unit: Unit) -> bool:
    return unit.items[0].event.type in ASSISTANT_SIDE


def rewrite_costs(context: Context, state: Frontier, cache: CacheProfile, outside: int) -> dict[int, tuple[Item, int]]:
    """Return each item of a unit that was sent, by seq, with the tokens to be rewritten if it changes."""
    answers, end = answers_of(context), last_response(context)
    cold = [new.seq - 1 for old, new in pairwise(answers) if new.at - old.at >= cache.ttl_seconds]
    whole_to = max([state.began, state.earned_to, 0, *cold])
    sent = [[item for item in unit.all_items if item.event.seq < end] for unit in context.units]
    everything = sum(item.tokens for item in context.items if item.event.seq < end)
    if outside and not context.prefix:
        everything = outside + context.tokens
    found = {}
    for index, (unit, members) in enumerate(zip(context.units, sent, strict=True)):
        blocks = sum(item.event.type is not EventType.TOOL_CALL for item in unit.all_items)
        for place, item in enumerate(members):
            behind = sum(one.tokens for later in sent[index:] for one in later)
            if cache.lookback_blocks is None:
                behind -= sum(one.tokens for one in members[:place])
            elif unit.items[0].event.seq <= whole_to or blocks >= cache.lookback_blocks - 1:
                behind = everything
            behind += cache.step_tokens - 1
            total = outside + context.tokens
            found[item.event.seq] = item, behind if total - behind >= cache.minimum_tokens else total
    return found
