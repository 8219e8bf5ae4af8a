"""The evictions that a growing context weighs, against those of the same context projected from its log."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.log.events import EventType
from app.core.plan.reducers.economics import EconomicReducer
from app.core.plan.reducers.retention import EVICTABLE, Evictable, candidates
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Drop, Frontier, Stub
from app.core.plan.state.projection import project
from app.core.plan.state.results import ranked_files
from app.core.plan.update import grow
from app.core.policy.groups import Economics, Retention, ToolRule
from app.core.tokens.models import CacheProfile
from tests.support.examples import examples
from tests.unit.builders import COUNTER, Log

STUBBED_TO = 5
"""The last event that the states below may stub: stubs are always of events that the context had before it grew."""
counts = st.sampled_from([None, 0, 1, 2, 5])
ages = st.sampled_from([None, 1, 2])
rules = st.builds(
    Retention,
    keep_last=counts,
    per_tool=st.booleans(),
    age_turns=ages,
    superseded=st.booleans(),
    working_set=st.sampled_from([0, 1, 2, 16]),
    min_tokens=st.sampled_from([0, 200]),
    tools=st.dictionaries(
        st.sampled_from(["read", "ask"]), st.builds(ToolRule, keep_last=counts, age_turns=ages), max_size=2
    ),
    never_evict=st.sampled_from([(), ("ask",)]),
)
states = st.builds(
    Frontier,
    began=st.sampled_from([0, 2]),
    earned=st.sampled_from([0, 3_000]),
    stubs=st.sampled_from([(), (Stub(3, 0, 30, 270, "economics", "old"), Stub(5, 40, 90, 210, "caps", "large"))]),
    drops=st.sampled_from([(), (Drop(1, 1, 0, "last_resort", "target"),)]),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["user", "says", "ask", "read", "read", "part", "write", "write", "late", "late", "two"]),
        st.integers(0, 2),
    ),
    min_size=4,
    max_size=60,
)


def log_of(steps: list[tuple[str, int]]) -> Log:
    """Return a log of calls that read, read again and write three files, and of others; some results are late."""
    log, late = Log(), []
    log.user()
    for what, number in steps:
        path = {"path": f"{number}.py"}
        if what == "user":
            log.user()
        elif what == "says":
            log.assistant()
        elif what == "ask":
            log.result(log.call("ask", body={"arguments": {"about": number}}), 150 * number)
        elif what == "write":
            call = log.call("write", 400, body={"arguments": {**path, "content": "line\n" * 300}})
            log.result(call, 20, is_error=number == 2)
        elif what == "late":
            late.append(log.call("write", 90, body={"arguments": path}))
            if number:
                log.result(late.pop(0), 300)
        elif what == "two":
            first, second = (log.call("read", body={"arguments": {"path": name}}) for name in ("0.py", "1.py"))
            for call in (first, second) if number else (second, first):
                log.result(call, 300)
        else:
            more = {"offset": number, "limit": 5} if what == "part" else {}
            log.result(log.call("read", body={"arguments": path | more}), 300)
    return log


@settings(max_examples=examples(400), database=None, deadline=None)
@given(steps, st.integers(1, 6), rules, states, st.sampled_from([0.0, 0.3, 1.0]))
def test_a_grown_context_weighs_the_evictions_of_one_made_anew(
    steps: list[tuple[str, int]], size: int, retention: Retention, state: Frontier, at_risk: float
) -> None:
    log = log_of(steps)
    economics = Economics(least_tokens=0, at_risk=at_risk)
    warm = EconomicReducer(retention, economics, CacheProfile(minimum_tokens=0, ttl_seconds=1), "warm")
    grown: Context | None = None
    for end in range(STUBBED_TO, len(log.events) + size, size):
        events = log.events[:end]
        anew = project(events, state, COUNTER, turn=events[-1].turn)
        grown = grown and grow(grown, events[end - size :], turn=events[-1].turn, ephemeral_tokens=0)
        if grown is not None:
            assert isinstance(vars(grown)[EVICTABLE], Evictable)  # extended, not found again
            assert candidates(grown, retention) == candidates(anew, retention)
            for calls in (None, retention.working_set):
                assert ranked_files(grown, calls) == ranked_files(anew, calls)
            for reducer in (warm, replace(warm, moment="cold")):
                assert reducer.due_candidates(grown, state) == reducer.due_candidates(anew, state)
        grown = grown or anew
        candidates(grown, retention)


@settings(max_examples=examples(200), database=None, deadline=None)
@given(steps, st.sampled_from([0, 1, 2, 3, 100]))
@example([("late", 0), *[("read", 1)] * 4, ("write", 1), ("late", 2)], 1)
def test_the_working_set_holds_the_files_of_recent_calls(steps: list[tuple[str, int]], calls: int) -> None:
    log = log_of(steps)
    context = project(log.events, Frontier(), COUNTER, turn=log.turn)
    results = [answer.result.event.seq for answer in context.paired_results]
    found: dict[int, int] = {}
    for seqs in context.worked_files.shown_by.values() if calls else ():
        calls_since = 1 + sum(seq >= seqs[-1] for seq in results)
        for seq in seqs:
            event = log.events[seq - 1]
            rank = calls_since * (1 + log.turn - event.turn) * (4 if event.type is EventType.TOOL_RESULT else 1)
            if rank <= 4 * calls:
                found[seq] = min(rank, found.get(seq, rank))
    assert ranked_files(context, calls) == tuple(sorted(found, key=lambda seq: (found[seq], -seq)))
