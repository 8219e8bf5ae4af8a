"""The least growth of a log before a summary of it is due."""

from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st

from app.core.compaction.next_span import least_growth, next_span, sizes, verbatim_start
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy, parse_policy
from app.core.tokens.budget import Budget
from tests.unit.builders import COUNTER, Log

BUDGET: Final = Budget(4_000, 0, 0, 4_000, 2_800, threshold=4_000, low_water=0.7)
POLICIES: Final[list[dict[str, Any]]] = [
    {},
    {"summarize": {"chunk_tokens": 300, "max_tokens": 100}},
    {"cut": {"keep_tokens": 900, "split_turn": "prefix"}, "summarize": {"chunk_tokens": 400}},
    {"cut": {"keep_ratio": 0.5, "keep_recent_turns": 2, "split_turn": "prefix"}},
    {"cut": {"keep_tokens": 1_500, "split_turn": "prefix"}, "summarize": {"view": "latest"}},
    {"cut": {"keep_tokens": 900, "split_turn": "advance"}},
    {"cut": {"keep_ratio": 0.3, "lean": "forward", "split_turn": "prefix"}, "summarize": {"view": "latest"}},
    {"cut": {"keep_messages": 4}, "summarize": {"chunk_events": 6}},
]
STEPS: Final = st.tuples(st.sampled_from(["user", "assistant", "round", "call", "late"]), st.integers(1, 500))


def follow(log: Log, steps: list[tuple[str, int]], most: float = float("inf")) -> None:
    """Append events, as long as they take less than `most` tokens."""
    begun = sum(event.tokens for event in log.events)
    for kind, tokens in steps:
        if sum(event.tokens for event in log.events) - begun + tokens + 20 >= most:
            return
        answered = {event.call_seq for event in log.events}
        waiting = [event.seq for event in log.events if event.call_id and not event.call_seq]
        match kind:
            case "user":
                log.user(tokens)
            case "assistant":
                log.assistant(tokens)
            case "call":
                log.call(tokens=tokens)
            case "late" if set(waiting) - answered:
                log.result(min(set(waiting) - answered), tokens)
            case _:
                log.round(tokens=tokens)


def span_and_growth(log: Log, policy: Policy) -> tuple[bool, int]:
    """Return whether a span is due, and the least growth."""
    context: Context = project(log.events, START, COUNTER, turn=log.turn)
    size = sizes(policy, BUDGET)
    stop = verbatim_start(context, BUDGET, policy)
    if stop is None:
        return False, 0
    span = next_span(context, 0, stop, policy, size, requested=False)
    return span is not None, least_growth(context, stop, policy, BUDGET, size)


@given(st.sampled_from(POLICIES), st.lists(STEPS, min_size=1, max_size=25), st.lists(STEPS, max_size=8))
@example(POLICIES[0], [("user", 100), ("round", 400), ("round", 400), ("round", 900)], [("assistant", 300)])
def test_no_span_is_due_before_the_least_growth(
    document: dict[str, Any], before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    policy, log = parse_policy(document), Log()
    log.system()
    for number in range(len(before)):
        follow(log, before[number : number + 1])
        due, growth = span_and_growth(log, policy)
        if due:
            return
        longer = Log(list(log.events), log.turn)
        follow(longer, after, growth)
        assert not span_and_growth(longer, policy)[0]


def test_a_span_is_due_when_the_log_has_grown_by_the_least_growth() -> None:
    document = {"cut": {"keep_tokens": 1_000, "split_turn": "prefix"}, "summarize": {"chunk_tokens": 400}}
    policy, log = parse_policy(document), Log()
    for _ in range(6):
        log.user(200)
    assert span_and_growth(log, policy) == (False, 200)
    log.user(199)
    assert span_and_growth(log, policy) == (False, 1)
    log.user(1)
    assert span_and_growth(log, policy)[0]
