"""The expected bill equals an exact simulation of the cache for any history, and each loss has a cause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.policy.groups import Prices
from app.core.tokens.models import ANTHROPIC, OPENAI, OPENAI_PAID, Bill
from app.wings.ledger.cache_use import (
    TOLERANCE_TOKENS,
    Caches,
    CountedCall,
    CountedEpoch,
    LedgerBreakpoint,
    LedgerLine,
    Usage,
)
from app.wings.ledger.totals import accounts, money_of, totals
from palimpsest_tools.replay.bill import BilledBlock, BilledRequest, Cache, charge
from tests.support.examples import examples


def lines(calls: Sequence[CountedCall], epochs: Sequence[CountedEpoch]) -> tuple[LedgerLine, ...]:
    return Caches().lines(calls, epochs)


RULES = {"claude": ANTHROPIC, "other-claude": ANTHROPIC, "gpt": OPENAI, "paid": OPENAI_PAID}
PREFIX = 2
"""Blocks of the tools and the system prompt."""


@dataclass(frozen=True)
class Step:
    """The events before a call: seconds that pass, items with their tokens, and perhaps a change."""

    seconds: int
    items: tuple[tuple[int, bool], ...]
    change: str = ""
    where: float = 0.0
    model: str = "claude"
    failed: bool = False


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 1, 100, 299, 300, 301, 650, 1_900]),
        st.lists(st.tuples(st.sampled_from([10, 90, 400, 3_000]), st.booleans()), max_size=30).map(tuple),
        st.sampled_from(["", "", "", "evict", "system", "tools"]),
        st.floats(0, 1),
        st.sampled_from(["claude", "claude", "claude", "other-claude", "gpt", "paid"]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=14,
)


class World:
    """A view over time: its requests in blocks, and the records of them."""

    def __init__(self) -> None:
        self.at = 0.0
        self.blocks = [BilledBlock("tools:1", 700), BilledBlock("system:1", 500)]
        self.seqs = [1, 2]
        self.epochs = [CountedEpoch(1, "start", tools_seq=1, system_seq=2)]
        self.head = 2
        self.left_out = 0
        self.last_tail: dict[str, int] = {}
        self.calls: list[CountedCall] = []
        self.caches: dict[str, Cache] = {}
        self.bills: list[Bill] = []

    def step(self, step: Step) -> None:
        self.at += step.seconds
        for tokens, joins in step.items:
            self.head += 1
            self.seqs.append(self.head)
            self.blocks.append(BilledBlock(f"{self.head}", tokens, joins))
        changed = len(self.blocks)
        if step.change == "evict" and len(self.blocks) > PREFIX:
            changed = self._evict(PREFIX + int(step.where * (len(self.blocks) - PREFIX - 1)))
        elif step.change in ("system", "tools"):
            changed = self._rewrite(step.change)
        self._call(step, changed)

    def _evict(self, index: int) -> int:
        old = self.blocks[index]
        self.blocks[index] = BilledBlock(old.digest + "!", 8, old.joins)
        self.left_out += old.tokens - 8
        self._open("budget", index, self.seqs[index])
        return index

    def _rewrite(self, what: str) -> int:
        index = ("tools", "system").index(what)
        self.head += 1
        self.blocks[index] = BilledBlock(f"{what}:{self.head}", self.blocks[index].tokens)
        self.seqs[index] = self.head
        self._open("system_prompt" if what == "system" else what, index, 0)
        return index

    def _open(self, cause: str, index: int, changed_seq: int) -> None:
        stable = sum(block.tokens for block in self.blocks[:index])
        number = self.epochs[-1].number + 1
        self.epochs.append(CountedEpoch(number, cause, changed_seq, stable, self.seqs[0], self.seqs[1]))

    def _call(self, step: Step, changed: int) -> None:
        rules = RULES[step.model]
        end = len(self.blocks)
        marks: tuple[int, ...] = ()
        if rules.lookback_blocks is not None:
            previous = min(self.last_tail.get(step.model, PREFIX), changed)
            marks = tuple(sorted({PREFIX, max(PREFIX, previous), end}))
        request = BilledRequest(tuple(self.blocks), marks, self.at)
        if not step.failed:
            bill, self.caches[step.model] = charge(rules, self.caches.get(step.model, Cache()), request)
            self.last_tail[step.model] = end
        else:
            bill = Bill()
        self.bills.append(bill)
        self.calls.append(
            CountedCall(
                id=str(len(self.calls)),
                at=self.at,
                head=self.head,
                epoch=self.epochs[-1].number,
                model=step.model,
                format="anthropic" if marks else "openai",
                rules=rules,
                counted=sum(block.tokens for block in self.blocks),
                estimate=sum(block.tokens for block in self.blocks),
                tools=self.blocks[0].tokens,
                system=self.blocks[1].tokens,
                left_out=self.left_out,
                breakpoints=tuple(self._mark(n) for n in marks),
                failed=step.failed,
                front=(self.epochs[-1].tools_seq, self.epochs[-1].system_seq),
            )
        )

    def _mark(self, n: int) -> LedgerBreakpoint:
        conversation = self.blocks[PREFIX:n]
        joined = sum(block.joins for block in conversation)
        return LedgerBreakpoint(
            self.seqs[n - 1], sum(block.tokens for block in self.blocks[:n]), len(conversation) - joined
        )


def play(happens: Sequence[Step]) -> World:
    world = World()
    for step in happens:
        world.step(step)
    return world


def parts(bill: Bill) -> tuple[int, int, int]:
    return bill.read_tokens, bill.write_tokens, bill.fresh_tokens


@given(steps)
@settings(max_examples=examples(250), deadline=None)
def test_the_expected_bill_equals_the_simulations(happens: list[Step]) -> None:
    world = play(happens)
    made = lines(world.calls, world.epochs)
    assert [parts(line.expected) for line in made] == [parts(bill) for bill in world.bills]
    assert sum((line.actual for line in made), Bill()).billed == pytest.approx(sum(b.billed for b in world.bills))


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_lines_made_call_by_call_equal_those_made_at_once(happens: list[Step]) -> None:
    world, caches, made, opened = play(happens), Caches(), list[LedgerLine](), 0
    for call in world.calls:
        new = [epoch for epoch in world.epochs if opened < epoch.number <= call.epoch]
        made += caches.lines([call], new)
        opened = max(opened, call.epoch)
    assert tuple(made) == lines(world.calls, world.epochs)


@given(steps, st.sampled_from([0.8, 1.0, 1.55, 4.0]))
@settings(max_examples=examples(150), deadline=None)
def test_a_report_that_the_record_explains_is_never_put_on_the_provider(happens: list[Step], ratio: float) -> None:
    world = play(happens)
    scaled = [
        replace(
            call,
            rules=replace(
                call.rules,
                minimum_tokens=round(call.rules.minimum_tokens * ratio),
                step_tokens=max(1, round(call.rules.step_tokens * ratio)),
            ),
            usage=Usage(
                round(call.counted * ratio), round(bill.read_tokens * ratio), round(bill.write_tokens * ratio), 10
            ),
        )
        for call, bill in zip(world.calls, world.bills, strict=True)
    ]
    for line in lines(scaled, world.epochs):
        assert line.cause not in ("provider", "elsewhere", "not_reported"), line
        assert (line.missed > 0) <= (line.cause is not None), line


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_the_accounts_and_totals_add_up(happens: list[Step]) -> None:
    world = play([replace(step, failed=False) for step in happens])
    made = lines(world.calls, world.epochs)
    sums = totals(made)
    whole = sum(c.counted + c.left_out for c in world.calls)
    assert (sums.calls, sums.actual.tokens, sums.append_only.tokens) == (
        len(made),
        sum(c.counted for c in world.calls),
        whole,
    )
    opened = accounts(made, world.epochs)
    assert sum(account.calls for account in opened) == len(made)
    assert all(
        account.cost >= 0 and account.rewritten_tokens >= 0 and account.removed_tokens >= 0 for account in opened
    )


@given(steps, st.sampled_from(["claude", "gpt", "paid"]))
@settings(max_examples=examples(150), deadline=None)
def test_the_savings_of_all_epochs_sum_to_the_views(happens: list[Step], model: str) -> None:
    """Every part of the difference to append-only belongs to exactly one account."""
    evicting = [replace(s, model=model, failed=False, change=s.change if s.change == "evict" else "") for s in happens]
    world = play(evicting)
    made = lines(world.calls, world.epochs)
    saved = totals(made).append_only.billed - totals(made).actual.billed
    rounded = 0 if model == "claude" else 2 * 128 * len(made)  # by automatic caches, at each call
    assert sum(account.net for account in accounts(made, world.epochs)) == pytest.approx(saved, abs=1 + rounded)


@pytest.mark.parametrize("rules", ["claude", "gpt", "paid"])
@pytest.mark.parametrize("calls_after", [0, 3, 40])
def test_an_epochs_net_is_what_it_changed_on_the_bill(rules: str, calls_after: int) -> None:
    """Compares the same history with and without one eviction, both billed exactly."""
    grows = [Step(10, ((3_000, False), (400, False)), model=rules) for _ in range(10)]
    after = [Step(10, ((90, False),), model=rules) for _ in range(calls_after)]
    evicts = Step(10, ((90, False),), "evict", 0.3, rules)
    ours, theirs = play([*grows, evicts, *after]), play([*grows, replace(evicts, change=""), *after])
    made = lines(ours.calls, ours.epochs)
    account = accounts(made, ours.epochs)[-1]
    saved = sum(bill.billed for bill in theirs.bills) - sum(bill.billed for bill in ours.bills)
    step = 128 * (calls_after + 2) * 0.9  # rounding by automatic caches at each call
    assert account.net == pytest.approx(saved, abs=1 if rules == "claude" else step)
    assert account.removed_tokens == 2_992
    assert account.calls_since == 1 + calls_after
    assert account.rewritten_tokens == pytest.approx(6 * 3_400 + 400, abs=128)
    assert totals(made).append_only.billed == pytest.approx(sum(bill.billed for bill in theirs.bills))


GROWS = [Step(10, ((3_000, False),)) for _ in range(3)]


def last(*more: Step, **report: int) -> LedgerLine:
    """Return the last line of a short history, with a report if one is given."""
    world = play([*GROWS, *more])
    calls = world.calls
    if report:
        calls = [*calls[:-1], replace(calls[-1], usage=Usage(calls[-1].counted, **report))]
    return lines(calls, world.epochs)[-1]


@pytest.mark.parametrize(
    ("line", "cause", "place"),
    [
        (last(Step(10, ((90, False),))), None, None),
        (last(Step(300, ((90, False),))), "time_to_live", 1),
        (last(Step(300, ((90, False),), "evict", 0.5)), "time_to_live", 1),
        (last(Step(10, ((90, False),), "evict", 0.5)), "epoch", 4),
        (last(Step(10, ((90, False),), "tools")), "tools", 7),
        (last(Step(10, ((90, False),), "system")), "system_prompt", 7),
        (last(Step(10, ((90, False),), model="other-claude")), "model", 1),
        (last(Step(10, ((90, False),)), read_tokens=0, write_tokens=0), "provider", 1),
        (last(Step(10, ((90, False),)), read_tokens=1_200, write_tokens=9_000), "provider", 3),
        (last(Step(200, ((90, False),)), read_tokens=0, write_tokens=0), "time_to_live", 1),
        (last(Step(10, ((90, False),)), write_tokens=0), "not_reported", None),
        (last(Step(300, ((90, False),)), read_tokens=9_000, write_tokens=0), "elsewhere", None),
    ],
)
def test_a_loss_has_a_name_and_a_place(line: LedgerLine, cause: str | None, place: int | None) -> None:
    assert (line.cause, line.diverges_at) == (cause, place)


def test_a_prefix_too_small_for_the_cache_is_named() -> None:
    calls = [
        CountedCall(str(n), n, n, 1, "claude", "anthropic", ANTHROPIC, counted=900 + n, estimate=900 + n)
        for n in range(2)
    ]
    marked = [replace(call, breakpoints=(LedgerBreakpoint(call.head, call.counted, 1),)) for call in calls]
    line = lines(marked, [CountedEpoch(1, "start")])[-1]
    assert (parts(line.expected), line.cause) == ((0, 0, 901), "below_minimum")
    unmarked = [replace(call, counted=9_000, estimate=9_000) for call in calls]
    assert lines(unmarked, [CountedEpoch(1, "start")])[-1].cause is None


def test_a_marker_too_far_from_what_was_written_is_named() -> None:
    first = CountedCall(
        "a", 0, 1, 1, "claude", "anthropic", ANTHROPIC, 5_000, 5_000, breakpoints=(LedgerBreakpoint(1, 5_000, 1),)
    )
    far = replace(
        first, id="b", at=5, head=40, counted=6_000, estimate=6_000, breakpoints=(LedgerBreakpoint(40, 6_000, 21),)
    )
    near = replace(far, breakpoints=(LedgerBreakpoint(40, 6_000, 20),))
    assert [line.cause for line in lines([first, far], [CountedEpoch(1, "start")])] == [None, "lookback"]
    assert lines([first, near], [CountedEpoch(1, "start")])[-1].expected.read_tokens == 5_000


def test_a_call_that_failed_is_not_billed_and_leaves_nothing() -> None:
    world = play([*GROWS, Step(10, ((3_000, False),), failed=True), Step(10, ((90, False),))])
    made = lines(world.calls, world.epochs)
    assert (made[-2].actual, made[-2].cause) == (Bill(), None)
    assert parts(made[-1].expected) == parts(world.bills[-1])
    assert totals(made).failed_calls == 1


def test_an_epoch_planned_from_nothing_shares_no_more_than_its_prefix() -> None:
    call = CountedCall("a", 0, 9, 1, "gpt", "openai", OPENAI, 9_000, 9_000, tools=2_000, system=1_000)
    epochs = [CountedEpoch(1, "start", tools_seq=1, system_seq=2), CountedEpoch(2, "window", tools_seq=1, system_seq=2)]
    line = lines([call, replace(call, id="b", at=5, epoch=2)], epochs)[-1]
    assert (line.expected.read_tokens, line.cause) == (2_944, "epoch")
    other = [epochs[0], replace(epochs[1], system_seq=7)]
    assert lines([call, replace(call, id="b", at=5, epoch=2)], other)[-1].expected.read_tokens == 1_920


def test_money_is_what_the_policy_says() -> None:
    prices = Prices(input_per_million=3.0, output_per_million=15.0)
    assert money_of(prices, 1_000_000, 100_000) == pytest.approx(4.5)
    assert money_of(Prices(), 1_000_000, 100_000) is None
    world = play(GROWS)
    sums = totals(lines([replace(call, prices=prices) for call in world.calls], world.epochs))
    assert sums.money["USD"].billed == pytest.approx(sum(bill.billed for bill in world.bills) * 3e-6)
    assert sums.money["USD"].append_only == pytest.approx(sums.append_only.billed * 3e-6)


def test_small_differences_mean_nothing() -> None:
    line = last(Step(10, ((90, False),)), read_tokens=10_200 - TOLERANCE_TOKENS + 1, write_tokens=90)
    assert (line.cause, line.missed) == (None, 0)
