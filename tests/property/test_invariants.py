"""The invariants of the pure core on random logs: I2 to I6 and I9."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.assembly.visibility import VisibilityRequest
from app.core.errors import CannotFit, ContextError
from app.core.log.event import Kind
from app.core.plan.pipeline import Plan, begin, finish_unchanged, plan
from app.core.plan.state.frontier import START, from_json, to_json
from app.core.plan.update import EarlierPlan
from app.core.policy.groups import SHOW_ALL
from app.core.policy.policy import Policy
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Layout
from app.core.render.layers import Layer
from app.core.render.request import arrange, ephemeral_content, write
from tests.property.builders import (
    COUNTER,
    Raw,
    Session,
    append,
    bounded_inputs,
    log_of,
    logs,
    policies,
    prompts_of,
    recount,
    visible_only,
    whole_inputs,
)
from tests.property.steps import (
    CHECKS,
    ROOMY,
    Step,
    asked,
    assert_accounted,
    assert_protected,
    batches,
    budget_of,
    check_written,
    planned,
    random_logs,
    rendered,
    shares,
    steps,
    target_of,
)
from tests.support.written_requests import chosen, write_in

PROMPT: Raw = {"type": "user.message", "content": "go on"}


@random_logs
@given(logs(), shares, policies)
def test_i2_a_context_fits_or_the_refusal_says_what_takes_the_room(
    raw: list[Raw], share: float, policy: Policy
) -> None:
    target = target_of(raw, share)
    result = planned(whole_inputs(log_of(raw)), target, policy)
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
    result = planned(whole_inputs(log_of(raw)), target_of(raw, share), policy)
    if isinstance(result, Plan) and result.context.items:  # an empty context is refused, not sent
        request = write_in("openai", arrange(result.context, result.state)).request
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
"""Logs that providers would refuse unchanged: images where none are permitted, and a generated id that is in use."""


@pytest.mark.parametrize("raw", ODD_LOGS)
@pytest.mark.parametrize("name", CHECKS)
def test_i3_odd_logs(raw: list[Raw], name: str) -> None:
    result = planned(whole_inputs(log_of(raw)), 10_000, Policy())
    assert isinstance(result, Plan)
    check_written(name, arrange(result.context, result.state))


@random_logs
@given(logs(), batches, shares, policies, asked, st.lists(st.sampled_from(["today is Monday", "x"]), max_size=2))
def test_i3_every_provider_accepts_it(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest], injected: list[str]
) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        layout = arrange(step.plan.context, step.plan.state, injected)
        for name in CHECKS:
            check_written(name, layout)


@random_logs
@given(logs(), batches, shares, policies, asked)
def test_i4_every_event_is_accounted_for_once(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        assert_accounted(step.session, step.plan)


@random_logs
@given(logs(), batches, policies)
def test_i4_no_run_of_evictions_is_about_an_event_that_is_shown_whole(
    raw: list[Raw], sizes: list[int], policy: Policy
) -> None:
    front = [
        {"type": "system.prompt", "content": "answer briefly"},
        {"type": "tools", "content": [{"name": "read", "parameters": {"type": "object"}}]},
        {"type": "user.message", "content": "never push to main", "pinned": True},
    ]
    for step in steps([*front, *raw], [4, *sizes], target_of(raw, 0.5), policy):
        assert_accounted(step.session, step.plan)


@random_logs
@given(logs(), batches, shares, policies, asked)
def test_i5_appending_only_extends(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    last: Layout | None = None
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        layout = arrange(step.plan.context, step.plan.state)
        if last is not None and step.plan.cause is None:
            stable = tuple(block for block in last.blocks if not block.ephemeral)
            assert (layout.tools, layout.system) == (last.tools, last.system)
            assert layout.blocks[: len(stable)] == stable
        last = layout


PROMPTS = st.lists(
    st.sampled_from(
        [
            {"type": "system.prompt", "content": "You help."},
            {"type": "system.prompt", "content": "Never delete files."},
            {"type": "tools", "content": []},
            {"type": "turn.start"},
        ]
    ),
    max_size=5,
)


@random_logs
@given(PROMPTS, logs(), PROMPTS, batches, shares, policies, asked)
def test_prompts_survive_anything(
    leading: list[Raw],
    raw: list[Raw],
    later: list[Raw],
    sizes: list[int],
    share: float,
    policy: Policy,
    asks: list[VisibilityRequest],
) -> None:
    log = [*leading, *raw, *later]
    for step in steps(log, sizes, target_of(log, share), policy, asks):
        wanted = prompts_of(step.session)
        assert [block.seq for block in arrange(step.plan.context, step.plan.state).system] == wanted
        first = planned(bounded_inputs(step.session, 1), 10**6, policy)  # a first context of a long log
        assert isinstance(first, Plan)
        pinned = {event.seq for event in step.session.events if event.pinned}
        assert set(wanted) <= set(first.state.system_seqs) <= {*wanted, *pinned}
        assert from_json(json.loads(json.dumps(to_json(first.state)))) == first.state


LAYERS = st.lists(
    st.builds(
        Layer,
        st.sampled_from(["sources", "announce"]),
        st.just(1),
        st.one_of(
            st.sampled_from(["x", "source " * 40, "source " * 400]),
            st.just([{"type": "text", "text": "seen"}, {"type": "image", "url": "https://example.org/a.png"}]),
        ),
    ),
    max_size=2,
)


@random_logs
@given(logs(), batches, shares, policies, LAYERS, LAYERS)
def test_i5_layers_count_and_never_change_the_prefix(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, first: list[Layer], second: list[Layer]
) -> None:
    """Layers fit the target, are valid for providers and follow the last marker; a change alters no byte before."""
    target = target_of(raw, share) + sum(layer.tokens(COUNTER) for layer in first)
    for step in steps(raw, sizes, target, policy):
        prefixes = set()
        for layers in (first, second, []):
            read = replace(step.read, ephemeral_tokens=sum(layer.tokens(COUNTER) for layer in layers))
            result = planned(read, target, policy, step.before)
            if isinstance(result, CannotFit):
                by_source = result.fields["by_source"]
                assert isinstance(by_source, dict)
                assert by_source["ephemeral"] >= read.ephemeral_tokens
                continue
            assert result.context.tokens <= target
            layout = arrange(result.context, result.state, ephemeral_content(None, (), layers))
            shown = [block for block in layout.blocks if block.kind is Kind.NOTE and block.ephemeral]
            assert [block.content for block in shown] == [layer.shown for layer in layers]
            assert layout.blocks[len(layout.blocks) - len(shown) :] == tuple(shown)
            for name in CHECKS:
                check_written(name, layout)
            if result.state == step.plan.state:
                request = write("anthropic", layout, chosen(layout))
                prefixes.add((request.prefix_sha256, request.breakpoints))
        assert len(prefixes) <= 1


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
@given(logs(), batches, shares, policies, asked)
def test_i6_the_same_inputs_give_the_same_bytes(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    target = target_of(raw, share)
    for step in steps(raw, sizes, target, policy, asks):
        again = planned(step.read, target, policy, step.before)
        assert isinstance(again, Plan)
        stored = from_json(json.loads(json.dumps(to_json(step.plan.state))))
        assert stored == step.plan.state
        standing = Policy(authors=policy.authors, types=policy.types, summarize=policy.summarize)
        made = {one.id: one for one in (*step.read.tree, *step.read.folded)}
        folded = tuple(made[fold.id] for fold in stored.folds)
        read = visible_only(step.session, stored, folded)  # no decisions: the frontier contains their effects
        from_store = plan(read, budget_of(ROOMY, standing), standing, stored)
        assert from_store.cause is None
        for form in FORMATS:
            first = rendered(step.plan, form)
            assert rendered(again, form) == first
            assert rendered(from_store, form) == first


@random_logs
@given(logs(), batches, shares, policies, asked)
def test_a_grown_context_equals_a_new_projection(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    last: Step | None = None
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        as_held = last is not None and last.read.decisions == step.read.decisions
        if as_held and last is not None and last.plan.state is step.before:
            before = EarlierPlan(last.plan.context, last.plan.state, last.session.state.head)
            read = replace(step.read, earlier=before)
            grown = planned(read, target_of(raw, share), policy, step.before)
            assert isinstance(grown, Plan)
            assert grown == step.plan
            names = (
                "units",
                "rounds",
                "pinned_stubs",
                "open_calls",
                "item_tokens",
                "by_source",
                "paired_results",
                "repeats",
            )
            for name in (*names, "worked_files"):
                assert getattr(grown.context, name) == getattr(step.plan.context, name)
            begun = begin(read, budget_of(target_of(raw, share), policy), policy, step.before)
            assert finish_unchanged(begun) in (None, grown)
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
        first = planned(whole_inputs(session), target, policy)
        if isinstance(first, Plan):
            state, epoch_head = first.state, first_batch
    session = append(session, raw[session.state.head :])
    result = planned(bounded_inputs(session, bound, state, epoch_head), target, policy, state)
    if isinstance(result, CannotFit):
        return
    assert result.context.tokens <= target
    assert_accounted(session, result)
    if policy.shows == SHOW_ALL:
        assert_protected(session, result)
    layout = arrange(result.context, result.state)
    for name in CHECKS:
        check_written(name, layout)


@random_logs
@given(logs(), logs(), st.integers(1, 4000), shares, policies)
def test_planning_continues_from_a_bounded_read(
    raw: list[Raw], more: list[Raw], bound: int, share: float, policy: Policy
) -> None:
    target = target_of(raw, share)
    session = append(Session(), raw)
    first = planned(bounded_inputs(session, bound), target, policy)
    if not isinstance(first, Plan) or first.cause is None:
        return
    try:
        longer = append(session, more[:8])
    except ContextError:
        assume(False)
    seen, read = visible_only(session, first.state), visible_only(longer, first.state)
    before = EarlierPlan(first.context.with_nothing_unread(), first.state, len(seen.events))
    assert read.events[: before.count] == seen.events
    on = planned(replace(read, earlier=before), target, policy, first.state)
    anew = planned(read, target, policy, first.state)
    assert isinstance(anew, Plan) == isinstance(on, Plan)
    assert (on if isinstance(on, Plan) else str(on)) == (anew if isinstance(anew, Plan) else str(anew))


@random_logs
@given(logs(), batches, shares, policies, asked)
def test_i9_open_work_is_protected(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        if policy.shows == SHOW_ALL:
            assert_protected(step.session, step.plan)
