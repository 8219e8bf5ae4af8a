"""The invariants of the pure core on random logs: I2 to I6 and I9 (I1 and I7 on are the store's and later ones')."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.budget import Budget
from app.core.cover import Summary
from app.core.errors import CannotFit
from app.core.events import BOOKKEEPING, EventType, canonical_json
from app.core.formats import FORMATS
from app.core.manifest import dispositions, evictions
from app.core.plan.frontier import START, Frontier, from_json, to_json
from app.core.plan.pipeline import Plan, Read, Standing, plan
from app.core.policy import Policy
from app.core.render.arrange import arrange
from app.core.render.breakpoints import choose
from app.core.render.layout import Block, Kind, Layout
from tests.property.builders import (
    Raw,
    Session,
    append,
    bounded,
    cover_of,
    log_of,
    logs,
    policies,
    recount,
    visible_only,
    whole,
)
from tests.support.validators import check_anthropic, check_openai, check_openai_responses

CHECKS = {"openai": check_openai, "openai-responses": check_openai_responses, "anthropic": check_anthropic}
PROMPT: Raw = {"type": "user.message", "content": "go on"}

random_logs = settings(
    max_examples=60,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
shares = st.sampled_from([0.05, 0.2, 0.5, 0.8, 0.95, 2.0])
"""A target as a share of what the whole log takes."""


def target_of(raw: Sequence[Raw], share: float) -> int:
    return 60 + int(log_of(raw).state.tokens * share)


def budget_of(target: int, policy: Policy) -> Budget:
    """With a threshold below the target in every other case."""
    limit = target if target % 2 else max(1, int(target * 0.8))
    share = policy.caps.tool_results
    caps = {} if share is None else {"tool_results": int(target * share)}
    return Budget(target, 0, 0, target, int(limit * policy.low_water), limit, policy.low_water, caps)


def planned(read: Read, target: int, policy: Policy, state: Frontier = START) -> Plan | CannotFit:
    try:
        return plan(read, budget_of(target, policy), policy, state)
    except CannotFit as refused:
        return refused


def rendered(result: Plan, form: str) -> str:
    layout = arrange(result.context, result.state)
    return canonical_json(FORMATS[form].write(layout, choose(layout)).request)


@dataclass(frozen=True, slots=True)
class Step:
    """A session after one more batch, and what was planned then."""

    session: Session
    before: Frontier
    plan: Plan
    read: Read


def steps(raw: Sequence[Raw], sizes: Sequence[int], target: int, policy: Policy) -> Iterator[Step]:
    """The log appended in batches, a context asked for after each, as an agent does; with some, summaries are there."""
    session, state, at, last = Session(), START, 0, None
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
        read = whole(session, now, None if last is None else last + 900 * (at % 2))
        read = replace(read, cover=cover, folded=folded)
        result = planned(read, target, policy, state)
        if isinstance(result, Plan):
            yield Step(session, state, result, read)
            state, last = result.state, now


batches = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@random_logs
@given(logs(), shares, policies)
def test_i2_a_context_fits_or_the_refusal_says_what_takes_the_room(
    raw: list[Raw], share: float, policy: Policy
) -> None:
    target = target_of(raw, share)
    result = planned(whole(log_of(raw)), target, policy)
    if isinstance(result, Plan):
        assert result.context.tokens <= target
        assert sum(result.context.by_source.values()) == result.context.tokens
    else:
        least, by_source = result.fields["minimum_tokens"], result.fields["by_source"]
        assert isinstance(least, int)
        assert isinstance(by_source, dict)
        assert sum(by_source.values()) == least > target


@random_logs
@given(logs(), shares, policies)
def test_i2_the_estimate_is_that_of_what_is_written(raw: list[Raw], share: float, policy: Policy) -> None:
    result = planned(whole(log_of(raw)), target_of(raw, share), policy)
    if isinstance(result, Plan) and result.context.items:  # nothing at all is refused, not sent
        request = FORMATS["openai"].write(arrange(result.context, result.state)).request
        assert result.context.tokens >= 0.98 * recount(request)


ODD_LOGS: tuple[list[Raw], ...] = (
    [{"type": "assistant.message", "content": [{"type": "image", "url": "https://example.org/a.png"}]}, PROMPT],
    [{"type": "system.message", "content": [{"type": "image", "url": "https://example.org/a.png"}]}, PROMPT],
    [{"type": "system.prompt", "content": [{"type": "image", "url": "https://example.org/a.png"}]}, PROMPT],
    [
        event
        for call_id in ("a", "a_5", "a")  # the third is event 5
        for event in (
            {"type": "tool.call", "call_id": call_id, "tool": "read"},
            {"type": "tool.result", "call_id": call_id, "content": "found"},
        )
    ],
)
"""What providers refuse when it is written as it stands: images where none may be, and a made-up id that is taken."""


@pytest.mark.parametrize("raw", ODD_LOGS)
@pytest.mark.parametrize("name", CHECKS)
def test_i3_odd_logs(raw: list[Raw], name: str) -> None:
    result = planned(whole(log_of(raw)), 10_000, Policy())
    assert isinstance(result, Plan)
    check_written(name, arrange(result.context, result.state))


@random_logs
@given(logs(), batches, shares, policies, st.lists(st.sampled_from(["today is Monday", "x"]), max_size=2))
def test_i3_every_provider_accepts_it(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, injected: list[str]
) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy):
        layout = arrange(step.plan.context, step.plan.state, injected)
        for name in CHECKS:
            check_written(name, layout)


def check_written(name: str, layout: Layout) -> None:
    """The provider accepts what is written of a layout with anything to say in it."""
    request = FORMATS[name].write(layout, choose(layout)).request
    if any(block.kind is not Kind.ASSISTANT for block in layout.blocks):
        CHECKS[name](request)


@random_logs
@given(logs(), batches, shares, policies)
def test_i4_every_event_is_accounted_for_once(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy):
        assert_accounted(step.session, step.plan)


def assert_accounted(session: Session, result: Plan) -> None:
    words = dispositions(session.events, result.context, result.state)
    assert list(words) == list(range(1, session.state.head + 1))
    assert set(words.values()) <= {"verbatim", "stubbed", "replaced", "summarized", "dropped", "not_rendered"}
    assert all(words[e.seq] == "not_rendered" for e in session.events if e.type in BOOKKEEPING)
    layout = arrange(result.context, result.state)
    shown = sorted(block.seq for block in own_blocks(layout, result.state))
    visible = {event.seq for event in result.context.prefix} | {item.event.seq for item in result.context.items}
    assert shown == sorted(visible)
    assert visible >= {seq for seq, word in words.items() if word in ("verbatim", "stubbed")}

    runs = evictions(result.state, result.context)
    assert [run.from_seq for run in runs] == sorted(run.from_seq for run in runs)
    kinds = {event.seq: event.type for event in session.events}
    covered: dict[str, set[int]] = {"dropped": set(), "stubbed": set(), "replaced": set(), "summarized": set()}
    for run in runs:
        seqs = set(range(run.from_seq, run.to_seq + 1))
        if run.reducer == "fold":
            assert {words[seq] for seq in seqs - visible} <= {run.disposition, "not_rendered", "replaced"}
        elif run.disposition == "dropped":
            assert {words[seq] for seq in seqs} <= {"dropped", "not_rendered"}
        elif run.disposition == "stubbed":
            first = run.from_seq
            seqs &= {i.event.seq for i in result.context.items if i.event.type is kinds[first]}
            assert {words[seq] for seq in seqs} == {"stubbed"}
        else:
            assert {words[seq] for seq in seqs} == {"replaced"}
        assert not covered[run.disposition] & seqs
        covered[run.disposition] |= seqs
    for disposition, seqs in covered.items():
        assert {seq for seq, word in words.items() if word == disposition} <= seqs


def own_blocks(layout: Layout, state: Frontier) -> list[Block]:
    """The blocks that stand for one event: not summaries, the note, nor pending results."""
    calls = {block.seq for block in layout.blocks if block.kind is Kind.CALL}
    shown = layout.blocks[_summary_blocks(layout, state) :]
    blocks = [b for b in shown if not (b.kind is Kind.RESULT and b.seq in calls)]
    if state.note:
        assert blocks.pop(0) == Block(Kind.NOTE, state.floor, state.note)
    prefix = [layout.system] if layout.system else []
    tools = [Block(Kind.NOTE, layout.tools_seq)] if layout.tools_seq else []
    return [*prefix, *tools, *blocks]


def _summary_blocks(layout: Layout, state: Frontier) -> int:
    """How many blocks stand for what is folded: they come first, one for each summary shown, or one for all."""
    if not state.folds:
        return 0
    first = str(layout.blocks[0].content)
    return 1 if first.startswith("[Context Summary") else sum(fold.shown for fold in state.folds)


@random_logs
@given(logs(), batches, shares, policies)
def test_i5_appending_only_extends(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    last: Layout | None = None
    for step in steps(raw, sizes, target_of(raw, share), policy):
        layout = arrange(step.plan.context, step.plan.state)
        if last is not None and step.plan.cause is None:
            stable = tuple(block for block in last.blocks if not block.ephemeral)
            assert (layout.tools, layout.system) == (last.tools, last.system)
            assert layout.blocks[: len(stable)] == stable
        last = layout


@random_logs
@given(logs(), batches, shares, policies)
def test_i5_decisions_only_move_forward(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy):
        before, after = step.before, step.plan.state
        assert (step.plan.cause is None) == (after == before)
        assert after.floor >= before.floor
        assert after.folded_to >= before.folded_to
        gone = {seq for d in after.drops for seq in range(d.from_seq, d.to_seq + 1)}
        gone |= set(range(1, after.folded_to + 1))
        assert {seq for d in before.drops for seq in range(d.from_seq, d.to_seq + 1)} <= gone
        assert {s.seq for s in before.stubs} - gone <= {s.seq for s in after.stubs}


@random_logs
@given(logs(), batches, shares, policies)
def test_i6_the_same_inputs_give_the_same_bytes(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    target = target_of(raw, share)
    for step in steps(raw, sizes, target, policy):
        again = planned(step.read, target, policy, step.before)
        assert isinstance(again, Plan)
        stored = from_json(json.loads(json.dumps(to_json(step.plan.state))))
        assert stored == step.plan.state
        standing = Policy(authors=policy.authors, summarize=policy.summarize)
        made = {one.id: one for one in (*step.read.cover, *step.read.folded)}
        folded = tuple(made[fold.id] for fold in stored.folds)
        from_store = plan(visible_only(step.session, stored, folded), budget_of(target, standing), standing, stored)
        assert from_store.cause is None
        for form in FORMATS:
            first = rendered(step.plan, form)
            assert rendered(again, form) == first
            assert rendered(from_store, form) == first


@random_logs
@given(logs(), batches, shares, policies)
def test_a_grown_context_is_the_one_projected_anew(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy
) -> None:
    last: Step | None = None
    for step in steps(raw, sizes, target_of(raw, share), policy):
        if last is not None and last.plan.state is step.before:
            before = Standing(last.plan.context, last.plan.state, last.session.state.head)
            read = replace(step.read, before=before)
            grown = planned(read, target_of(raw, share), policy, step.before)
            assert isinstance(grown, Plan)
            assert grown == step.plan
            for name in ("units", "open_calls", "item_tokens", "by_source"):
                assert getattr(grown.context, name) == getattr(step.plan.context, name)
        last = step


@random_logs
@given(logs(), st.integers(1, 4000), st.integers(0, 30), shares, policies)
def test_a_bounded_read_keeps_all_that_holds_of_a_whole_one(
    raw: list[Raw], bound: int, first_batch: int, share: float, policy: Policy
) -> None:
    target = target_of(raw, share)
    session, state, epoch_head = Session(), START, 0
    if 0 < first_batch < len(raw):
        session = append(session, raw[:first_batch])
        first = planned(whole(session), target, policy)
        if isinstance(first, Plan):
            state, epoch_head = first.state, first_batch
    session = append(session, raw[session.state.head :])
    result = planned(bounded(session, bound, state, epoch_head), target, policy, state)
    if isinstance(result, CannotFit):
        return
    assert result.context.tokens <= target
    assert_accounted(session, result)
    if policy.authors is None:
        assert_protected(session, result)
    layout = arrange(result.context, result.state)
    for name in CHECKS:
        check_written(name, layout)


@random_logs
@given(logs(), batches, shares, policies)
def test_i9_open_work_is_protected(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy):
        if policy.authors is None:
            assert_protected(step.session, step.plan)


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
