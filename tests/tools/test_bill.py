"""The bill of successive requests, against cases computed by hand."""

from dataclasses import replace

import pytest

from app.core.tokens.models import ANTHROPIC, OPENAI, CacheProfile
from palimpsest_tools.replay.bill import Bill, BilledBlock, BilledRequest, Cache, charge, rules_for


def blocks(*tokens: int, name: str = "b") -> tuple[BilledBlock, ...]:
    return tuple(BilledBlock(f"{name}{index}", count) for index, count in enumerate(tokens))


def run(rules: CacheProfile, *requests: BilledRequest) -> list[Bill]:
    bills, cache = [], Cache()
    for request in requests:
        bill, cache = charge(rules, cache, request)
        bills.append(bill)
    return bills


def split(bill: Bill) -> tuple[int, int, int]:
    return bill.read_tokens, bill.write_tokens, bill.fresh_tokens


def test_anthropic_writes_up_to_the_last_breakpoint_and_reads_it_back() -> None:
    first = BilledRequest(blocks(1000, 500, 300), (2,), at=0)
    second = BilledRequest(blocks(1000, 500, 300, 200), (4,), at=60)
    bills = run(ANTHROPIC, first, second)
    assert split(bills[0]) == (0, 1500, 300)
    assert bills[0].billed == pytest.approx(1.25 * 1500 + 300)
    # The breakpoint after block 4 looks back and finds the entry after block 2.
    assert split(bills[1]) == (1500, 500, 0)
    assert bills[1].billed == pytest.approx(0.1 * 1500 + 1.25 * 500)


def test_anthropic_caches_nothing_below_the_minimum() -> None:
    small = BilledRequest(blocks(500, 523), (2,), at=0)
    assert [split(bill) for bill in run(ANTHROPIC, small, small)] == [(0, 0, 1023), (0, 0, 1023)]


def test_anthropic_writes_nothing_without_a_breakpoint() -> None:
    bare = BilledRequest(blocks(2000, 2000), (), at=0)
    assert [split(bill) for bill in run(ANTHROPIC, bare, bare)] == [(0, 0, 4000), (0, 0, 4000)]


def test_anthropic_finds_an_entry_nineteen_blocks_back_but_not_twenty() -> None:
    old = blocks(1100)
    near = BilledRequest(old + blocks(*[10] * 19, name="n"), (20,), at=1)
    far = BilledRequest(old + blocks(*[10] * 20, name="f"), (21,), at=1)
    seed = BilledRequest(old, (1,), at=0)
    assert split(run(ANTHROPIC, seed, near)[1]) == (1100, 190, 0)
    assert split(run(ANTHROPIC, seed, far)[1]) == (0, 1300, 0)


def test_an_intermediate_breakpoint_carries_the_look_back_further() -> None:
    old = blocks(1100)
    far = BilledRequest(old + blocks(*[10] * 30, name="f"), (16, 31), at=1)
    assert split(run(ANTHROPIC, BilledRequest(old, (1,), at=0), far)[1]) == (1100, 300, 0)


def test_parallel_calls_count_as_one_block_when_looking_back() -> None:
    old = blocks(1100)
    calls = tuple(BilledBlock(f"call{index}", 10, joins=index > 0) for index in range(30))
    wide = BilledRequest(old + calls, (31,), at=1)
    assert split(run(ANTHROPIC, BilledRequest(old, (1,), at=0), wide)[1]) == (1100, 300, 0)


def test_a_changed_block_costs_everything_after_it() -> None:
    before = BilledRequest(blocks(1200, 400, 400), (1, 3), at=0)
    changed = BilledRequest((before.blocks[0], BilledBlock("stub", 20), before.blocks[2]), (1, 3), at=10)
    assert split(run(ANTHROPIC, before, changed)[1]) == (1200, 420, 0)


def test_the_time_to_live_starts_again_at_each_use() -> None:
    request = BilledRequest(blocks(2000), (1,), at=0)
    times = (0, 299, 598, 898)
    bills = run(ANTHROPIC, *(replace(request, at=at) for at in times))
    # 299 and 598 are within 300 s of the previous use; at 898 exactly 300 s have passed.
    assert [bill.read_tokens for bill in bills] == [0, 2000, 2000, 0]


def test_a_read_renews_the_prefixes_before_it() -> None:
    long = BilledRequest(blocks(1500, 500), (1, 2), at=0)
    again = replace(long, at=200)
    only_the_head = BilledRequest(blocks(1500) + blocks(700, name="other"), (1, 2), at=450)
    assert split(run(ANTHROPIC, long, again, only_the_head)[2]) == (1500, 700, 0)


def test_openai_reads_whole_steps_of_a_prefix_and_charges_no_write() -> None:
    first = BilledRequest(blocks(1000, 300), (), at=0)
    second = BilledRequest(blocks(1000, 300, 100), (), at=5)
    bills = run(OPENAI, first, second)
    assert split(bills[0]) == (0, 0, 1300)
    assert split(bills[1]) == (1280, 0, 120)  # 1300 is 10 steps of 128 and a remainder of 20
    assert bills[1].billed == pytest.approx(128 + 120)


def test_openai_reads_nothing_below_1024_tokens() -> None:
    request = BilledRequest(blocks(1023), (), at=0)
    exact = BilledRequest(blocks(1024), (), at=0)
    assert run(OPENAI, request, request)[1].read_tokens == 0
    assert run(OPENAI, exact, exact)[1].read_tokens == 1024


def test_openai_finds_a_prefix_that_is_shorter_than_the_request_before() -> None:
    first = BilledRequest(blocks(1024, 500, 500), (), at=0)
    rewritten = BilledRequest((first.blocks[0], BilledBlock("stub", 10)), (), at=1)
    assert split(run(OPENAI, first, rewritten)[1]) == (1024, 0, 10)


def test_an_empty_request_costs_nothing() -> None:
    assert run(OPENAI, BilledRequest((), (), at=0)) == [Bill()]
    assert run(ANTHROPIC, BilledRequest((), (), at=0)) == [Bill()]


def test_bills_add_up() -> None:
    total = Bill(100, 20, 3, 38.0) + Bill(0, 0, 77, 77.0)
    assert total == Bill(100, 20, 80, 115.0)
    assert (total.tokens, total.read_share) == (200, 0.5)
    assert Bill().read_share == 0.0


def test_rules_follow_the_format() -> None:
    assert rules_for("anthropic") is ANTHROPIC
    assert rules_for("openai") is rules_for("openai-responses") is rules_for("blocks") is OPENAI
