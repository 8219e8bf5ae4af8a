"""Where Anthropic's cache markers stand: few, movable, and each readable from one written before."""

from itertools import pairwise

import pytest

from app.core.formats import FORMATS
from app.core.render.breakpoints import choose
from app.core.render.layout import Block, Breakpoint, Kind, Layout
from tests.support.validators import check_anthropic

SYSTEM = Block(Kind.SYSTEM, 1, "You help.")


def talk(first: int, last: int) -> tuple[Block, ...]:
    """Alternating messages of one content block each, the first one the user's."""
    return tuple(
        Block(Kind.USER if (seq - first) % 2 == 0 else Kind.ASSISTANT, seq, f"words {seq}")
        for seq in range(first, last + 1)
    )


def layout(*blocks: Block, system: Block | None = SYSTEM) -> Layout:
    return Layout(system=system, blocks=blocks)


def marked(given: Layout, last_written: tuple[int, ...] = (), **limits: int) -> list[tuple[int, str]]:
    return [(point.seq, point.kind) for point in choose(given, last_written, **limits)]


def placed(given: Layout, points: tuple[Breakpoint, ...]) -> tuple[Breakpoint, ...]:
    written = FORMATS["anthropic"].write(given, points)
    check_anthropic(written.request)
    return written.breakpoints


def test_a_first_short_request_marks_the_prefix_and_the_tail() -> None:
    assert marked(layout(*talk(2, 6))) == [(1, "system"), (6, "tail")]


def test_without_a_prefix_only_the_conversation_is_marked() -> None:
    assert marked(layout(*talk(2, 6), system=None)) == [(6, "tail")]


def test_tools_and_system_are_marked_at_the_later_of_both() -> None:
    both = Layout(tools=({"name": "read", "parameters": {}},), tools_seq=2, system=SYSTEM, blocks=talk(3, 4))
    assert marked(both) == [(2, "system"), (4, "tail")]


def test_nothing_to_mark() -> None:
    assert marked(layout(system=None)) == []
    assert marked(layout()) == [(1, "system")]


def test_the_last_tail_is_marked_again_to_be_read() -> None:
    assert marked(layout(*talk(2, 12)), (1, 6)) == [(1, "system"), (6, "previous"), (12, "tail")]


def test_the_same_request_again_needs_no_more_than_its_tail() -> None:
    assert marked(layout(*talk(2, 12)), (1, 12)) == [(1, "system"), (12, "tail")]


def test_a_last_tail_that_is_gone_is_no_place() -> None:
    assert marked(layout(*talk(8, 12)), (1, 5)) == [(1, "system"), (12, "tail")]


def test_a_long_step_is_cut_into_readable_ones() -> None:
    assert marked(layout(*talk(2, 36)), (1, 6)) == [(1, "system"), (6, "previous"), (26, "chain"), (36, "tail")]


def test_the_last_written_is_left_to_looking_back_when_the_chain_needs_all_markers() -> None:
    points = marked(layout(*talk(2, 60)), (1, 6))
    assert points == [(1, "system"), (26, "chain"), (46, "chain"), (60, "tail")]


def test_when_no_chain_reaches_the_tail_the_last_written_stays_readable() -> None:
    points = marked(layout(*talk(2, 300)), (1, 6))
    assert points == [(1, "system"), (6, "previous"), (26, "chain"), (300, "tail")]


def test_a_first_long_request_is_chained_as_far_as_markers_reach() -> None:
    assert marked(layout(*talk(2, 51))) == [(1, "system"), (21, "chain"), (41, "chain"), (51, "tail")]
    assert marked(layout(*talk(2, 300))) == [(1, "system"), (300, "tail")]


def test_parallel_calls_are_looked_back_over_as_one_block_but_their_results_are_not() -> None:
    calls = [Block(Kind.CALL, 3 + n, call_id=f"c{n}", tool="read", arguments={}) for n in range(15)]
    results = [Block(Kind.RESULT, 18 + n, "found", call_id=f"c{n}", tool="read") for n in range(15)]
    given = layout(Block(Kind.USER, 2, "go"), *calls, *results)
    # The calls end as block 2, their results are blocks 3 to 17: in reach of the user's message, block 1.
    assert marked(given, (1, 2)) == [(1, "system"), (2, "previous"), (32, "tail")]
    assert marked(given, (1, 2), lookback=15)[2:] == [(31, "chain"), (32, "tail")]


def test_ephemeral_blocks_are_behind_the_last_marker() -> None:
    call = Block(Kind.CALL, 3, call_id="c", tool="read", arguments={})
    pending = Block(Kind.RESULT, 3, "pending", call_id="c", tool="read", replaced=True, ephemeral=True)
    injected = Block(Kind.NOTE, 3, "today is Monday", ephemeral=True)
    given = layout(Block(Kind.USER, 2, "go"), call, pending, injected)
    points = choose(given)
    assert [(point.seq, point.kind) for point in points] == [(1, "system"), (3, "tail")]
    message = FORMATS["anthropic"].write(given, points).request["messages"][1]
    assert "cache_control" in message["content"][-1]
    assert message["role"] == "assistant"


def test_a_settled_pending_stub_carries_the_marker_of_its_call() -> None:
    """It bears the call's seq: one seq is one place, the later of the two."""
    call = Block(Kind.CALL, 3, call_id="c", tool="read", arguments={})
    pending = Block(Kind.RESULT, 3, "pending", call_id="c", tool="read", replaced=True)
    given = layout(Block(Kind.USER, 2, "go"), call, pending, *talk(4, 5))
    assert marked(given, (1, 3), lookback=2) == [(1, "system"), (3, "previous"), (5, "tail")]
    assert len({seq for seq, _ in marked(given, lookback=1)}) == len(marked(given, lookback=1))


def test_thinking_carries_no_marker() -> None:
    native = {"format": "anthropic", "head": {}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    given = layout(*talk(2, 4), Block(Kind.ASSISTANT, 5, [thinking], native=native))
    assert marked(given) == [(1, "system"), (4, "tail")]


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 22, 40, 41, 61, 62, 200])
@pytest.mark.parametrize("last_written", [(), (1, 2), (1, 10), (1, 2, 10, 22), (7,)])
def test_every_marker_is_really_placed_and_readable_where_markers_suffice(
    count: int, last_written: tuple[int, ...]
) -> None:
    given = layout(*talk(2, 1 + count))
    points = choose(given, last_written)
    assert placed(given, points) == points
    assert len(points) <= 4
    place = {seq: seq - 1 for seq in range(1, count + 2)}
    start = max((place[seq] for seq in last_written if seq in place and seq > 1), default=0)
    if count - start > 60:
        return
    readable = sorted({0, start, *(place[point.seq] for point in points)})
    steps = [later - before for before, later in pairwise(readable) if later > start]
    assert all(step <= 20 for step in steps)


def test_calls_one_after_another_read_what_the_one_before_wrote() -> None:
    written: tuple[int, ...] = ()
    for last in (4, 10, 33, 50, 51, 51, 90):
        given = layout(*talk(2, last))
        points = choose(given, written)
        assert placed(given, points) == points
        if written:
            reach = [seq for point in points if point.kind != "system" for seq in range(point.seq - 20, point.seq + 1)]
            assert written[-1] in reach
        written = tuple(point.seq for point in points)
