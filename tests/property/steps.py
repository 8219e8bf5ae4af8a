"""A session step by step, and the invariants of each of its contexts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from app.core.assembly.visibility import Target, VisibilityInput, VisibilityRequest, decide
from app.core.errors import CannotFit
from app.core.log.event import Block, Kind
from app.core.log.events import BOOKKEEPING, EventType, canonical_json
from app.core.memory.cover import Summary
from app.core.plan.pipeline import EVICTIONS, Plan, Row, plan
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.wording import RESUMED
from app.core.plan.update import PlanInputs, update_context
from app.core.policy.groups import SHOW_ALL
from app.core.policy.policy import Policy
from app.core.record.evictions import dispositions, evictions
from app.core.render.formats.layout import Layout
from app.core.render.request import arrange
from app.core.tokens.budget import Budget, caps_of
from app.core.tokens.models import CacheProfile
from tests.property.builders import (
    Raw,
    Session,
    append,
    cover_of,
    log_of,
    whole_inputs,
)
from tests.support.examples import examples
from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses
from tests.support.written_requests import chosen, write_in

CHECKS = {
    "openai": check_openai,
    "openai-responses": check_openai_responses,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
}

ROOMY = 10_000_000

random_logs = settings(
    max_examples=examples(60),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

shares = st.sampled_from([0.05, 0.2, 0.5, 0.8, 0.95, 2.0])
"""A target as a share of the whole log's tokens."""

batches = st.lists(st.integers(1, 6), min_size=1, max_size=5)

targets = st.one_of(
    st.builds(Target, seq=st.integers(1, 40)),
    st.builds(Target, seq=st.integers(1, 40)),
    st.just(Target(path="a.py")),
)
_replacements = st.sampled_from([None, None, "", "[not of interest]", "words " * 100])
_several = st.lists(targets, max_size=6).map(tuple)
asked = st.lists(
    st.builds(
        VisibilityRequest,
        hide=st.lists(st.builds(replace, targets, replacement=_replacements), max_size=6).map(tuple),
        show=_several,
        pin=st.one_of(st.just(()), _several),
        unpin=_several,
        force=st.booleans(),
    ),
    max_size=3,
)
"""An agent's requests to hide, show and pin events, in order; sometimes none."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The visibility decisions in force, as the store keeps them."""

    decided: Mapping[int, NewestDecision] = field(default_factory=dict)
    count: int = 0

    @property
    def read(self) -> dict[str, Any]:
        """Decisions as arguments of PlanInputs."""
        return {"decided": tuple(self.decided[seq] for seq in sorted(self.decided)), "decisions": self.count}

    def after(
        self,
        asks: VisibilityRequest,
        read: PlanInputs,
        session: Session,
        budget: Budget,
        policy: Policy,
        state: Frontier,
    ) -> "tuple[Decisions, Session]":
        """Return the decisions and the session after a request about the view that `read` is of."""
        now = update_context(replace(read, **self.read), budget, policy, state)
        pinned = frozenset(event.seq for event in session.events if event.pinned)
        head = session.state.head
        stands = VisibilityInput(
            now.context,
            now.state,
            self.read["decided"],
            pinned,
            head,
            budget,
            policy.visibility,
            CacheProfile(),
            warm=bool(head % 2),
        )
        made = decide(asks, stands).decisions
        if not made:
            return self, session
        decided = dict(self.decided)
        for one in sorted(made, key=lambda one: one.action, reverse=True):
            if one.action in ("hide", "show"):
                decided[one.seq] = NewestDecision(
                    one.seq, self.count + 1, one.action == "hide", one.replacement, one.path
                )
        pinned = pinned - {one.seq for one in made if one.action == "unpin"}
        pinned |= {one.seq for one in made if one.action == "pin"}
        events = tuple(replace(event, pinned=event.seq in pinned) for event in session.events)
        return Decisions(decided, self.count + 1), replace(session, events=events)


def target_of(raw: Sequence[Raw], share: float) -> int:
    return 60 + int(log_of(raw).state.tokens * share)


def budget_of(target: int, policy: Policy) -> Budget:
    """Return a budget, in every other case with a threshold below the target."""
    limit = target if target % 2 else max(1, int(target * 0.8))
    goal = int(limit * policy.low_water)
    return Budget(target, 0, 0, target, goal, limit, policy.low_water, caps_of(policy, target))


def planned(
    read: PlanInputs,
    target: int,
    policy: Policy,
    state: Frontier = START,
    evictions: Sequence[Row] = EVICTIONS,
) -> Plan | CannotFit:
    try:
        return plan(read, budget_of(target, policy), policy, state, evictions=evictions)
    except CannotFit as refused:
        return refused


def rendered(result: Plan, form: str) -> str:
    layout = arrange(result.context, result.state)
    return canonical_json(write_in(form, layout, chosen(layout)).request)


@dataclass(frozen=True, slots=True)
class Step:
    """A session after one more batch, and its plan."""

    session: Session
    before: Frontier
    plan: Plan
    read: PlanInputs


def steps(
    raw: Sequence[Raw],
    sizes: Sequence[int],
    target: int,
    policy: Policy,
    asks: Sequence[VisibilityRequest] = (),
    evictions: Sequence[Row] = EVICTIONS,
) -> Iterator[Step]:
    """Append the log in batches and plan a context after each, as an agent does; with some, summaries exist.

    Before each context one of `asks` is decided.
    """
    session, state, at, last = Session(), START, 0, None
    decisions = Decisions()
    chunk = (0, 1, 3)[sizes[0] % 3]
    made: dict[str, Summary] = {}
    while at < len(raw):
        size = sizes[at % len(sizes)]
        session = append(session, raw[at : at + size])
        at += size
        now = 1_000.0 * at  # some calls come after the cache has expired, some before
        cover = cover_of(session, chunk) if chunk and at % 3 else ()
        made |= {one.id: one for one in cover}
        folded = tuple(made[fold.id] for fold in state.folds)
        read = whole_inputs(session, now, None if last is None else last + 900 * (at % 2))
        read = replace(read, tree=cover, folded=folded)
        if asks:
            one = asks[at % len(asks)]
            decisions, session = decisions.after(one, read, session, budget_of(target, policy), policy, state)
            read = replace(read, events=session.events, **decisions.read)
        result = planned(read, target, policy, state, evictions)
        if isinstance(result, Plan):
            yield Step(session, state, result, read)
            state, last = result.state, now


def assert_invariants(step: Step, target: int, policy: Policy, evictions: Sequence[Row] = EVICTIONS) -> None:
    """Assert the invariants of a step under any rules: I2 to I4, I6, I9, and a cause only where the state changed."""
    assert step.plan.context.tokens <= target
    assert (step.plan.cause is None) == (step.plan.state == step.before)
    assert_accounted(step.session, step.plan)
    if policy.shows == SHOW_ALL:
        assert_protected(step.session, step.plan)
    for name in CHECKS:
        check_written(name, arrange(step.plan.context, step.plan.state))
    again = planned(step.read, target, policy, step.before, evictions)
    assert isinstance(again, Plan)
    assert rendered(again, "openai") == rendered(step.plan, "openai")


def check_written(name: str, layout: Layout) -> None:
    """Assert that the provider accepts the request written from a layout that is not empty."""
    request = write_in(name, layout, chosen(layout)).request
    if any(block.kind is not Kind.ASSISTANT for block in layout.blocks):
        CHECKS[name](request)


def assert_accounted(session: Session, result: Plan) -> None:
    words = dispositions(session.events, result.context, result.state)
    assert list(words) == list(range(1, session.state.head + 1))
    assert set(words.values()) <= {"verbatim", "stubbed", "replaced", "summarized", "dropped", "not_rendered"}
    assert all(words[e.seq] == "not_rendered" for e in session.events if e.type in BOOKKEEPING)
    layout = arrange(result.context, result.state)
    shown = sorted(block.seq for block in own_blocks(layout, result.state))
    prefix = {event.seq for event in result.context.prefix}
    visible = prefix | {item.event.seq for item in result.context.items if item.shown}
    assert shown == sorted(visible)
    assert visible >= {seq for seq, word in words.items() if word in ("verbatim", "stubbed")}

    runs = evictions(result.state, result.context)
    assert [run.from_seq for run in runs] == sorted(run.from_seq for run in runs)
    kinds = {event.seq: event.type for event in session.events}
    covered: dict[str, set[int]] = {"dropped": set(), "stubbed": set(), "replaced": set(), "summarized": set()}
    for run in runs:
        seqs = set(range(run.from_seq, run.to_seq + 1))
        if run.disposition in ("summarized", "dropped"):
            assert {words[seq] for seq in seqs} <= {run.disposition, "not_rendered"}
        elif run.reducer != "prefix":
            first = run.from_seq
            seqs &= {i.event.seq for i in result.context.items if i.event.type is kinds[first]}
            assert {words[seq] for seq in seqs} == {run.disposition}
        else:
            assert {words[seq] for seq in seqs} == {"replaced"}
        assert not covered[run.disposition] & seqs
        covered[run.disposition] |= seqs
    for disposition, seqs in covered.items():
        assert {seq for seq, word in words.items() if word == disposition} <= seqs


def own_blocks(layout: Layout, state: Frontier) -> list[Block]:
    """Return the blocks of single events: no summaries, note, line after older messages, or pending results."""
    calls = {block.seq for block in layout.blocks if block.kind is Kind.CALL}
    shown = layout.blocks[bool(state.folds) :]  # one block for everything folded
    blocks = [b for b in shown if not (b.kind is Kind.RESULT and b.seq in calls) and b.content != RESUMED]
    if state.note:
        assert blocks.pop(0) == Block(Kind.NOTE, state.floor, state.note)
    prefix = list(layout.system)
    tools = [Block(Kind.NOTE, layout.tools_seq)] if layout.tools_seq else []
    return [*prefix, *tools, *blocks]


def assert_protected(session: Session, result: Plan) -> None:
    words = dispositions(session.events, result.context, result.state)
    for event in session.events:
        users = event.type is EventType.USER_MESSAGE and event.turn == session.turn
        waiting = event.seq in {call.seq for call in session.state.open_calls.values()}
        if users or waiting or (event.pinned and event.type is not EventType.SYSTEM_PROMPT):
            assert words[event.seq] == "verbatim"
    for kind in (EventType.SYSTEM_PROMPT, EventType.TOOLS):
        newest = max((event.seq for event in session.events if event.type is kind), default=None)
        if newest is not None:
            assert words[newest] == "verbatim"
