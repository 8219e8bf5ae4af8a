"""Positions of Anthropic's cache markers: few, movable, and each readable from one written before."""

from itertools import pairwise
from typing import Any

import pytest

from app.core.log.event import Block, Kind
from app.core.render.breakpoints import Marking, round_ends, round_points
from app.core.render.formats.layout import Breakpoint, Layout
from tests.support.validators import check_anthropic
from tests.support.written_requests import chosen, write_in

SYSTEM = Block(Kind.SYSTEM, 1, "You help.")
REACH = 19
"""A marker looks back over 20 blocks, of which its own is the first."""


def talk(first: int, last: int) -> tuple[Block, ...]:
    """Return alternating messages of one content block each, the user's first."""
    return tuple(
        Block(Kind.USER if (seq - first) % 2 == 0 else Kind.ASSISTANT, seq, f"words {seq}")
        for seq in range(first, last + 1)
    )


def layout(*blocks: Block, system: Block | None = SYSTEM) -> Layout:
    return Layout(system=() if system is None else (system,), blocks=blocks)


def markers_of(given: Layout, last_written: tuple[int, ...] = (), **limits: Any) -> list[tuple[int, str]]:
    return [(point.seq, point.kind) for point in chosen(given, last_written, Marking(**limits))]


def placed_markers(given: Layout, points: tuple[Breakpoint, ...]) -> tuple[Breakpoint, ...]:
    written = write_in("anthropic", given, points)
    check_anthropic(written.request)
    return written.breakpoints


def test_a_first_short_request_marks_the_prefix_and_the_tail() -> None:
    assert markers_of(layout(*talk(2, 6))) == [(1, "system"), (6, "tail")]


def test_without_a_prefix_only_the_conversation_is_marked() -> None:
    assert markers_of(layout(*talk(2, 6), system=None)) == [(6, "tail")]


def test_tools_and_system_are_marked_at_the_later_of_both() -> None:
    both = Layout(tools=({"name": "read", "parameters": {}},), tools_seq=2, system=(SYSTEM,), blocks=talk(3, 4))
    assert markers_of(both) == [(2, "system"), (4, "tail")]


def test_no_marker_is_set_from_the_first_once_shown_result_on() -> None:
    assert markers_of(layout(*talk(2, 12)), (1, 6), uncached_from=9) == [(1, "system"), (6, "previous"), (8, "tail")]
    assert markers_of(layout(*talk(2, 6)), uncached_from=2) == [(1, "system")]
    assert markers_of(layout(*talk(2, 6)), uncached_from=99) == [(1, "system"), (6, "tail")]


def test_markers_before_a_once_shown_result_reach_one_another() -> None:
    points = chosen(layout(*talk(2, 90)), (1, 30), Marking(uncached_from=60))
    assert [(point.seq, point.kind) for point in points] == [
        (1, "system"),
        (30, "previous"),
        (49, "chain"),
        (59, "tail"),
    ]
    assert all(after.at - before.at <= REACH for before, after in pairwise(points[1:]))
    following = chosen(layout(*talk(2, 95)), [point.seq for point in points], Marking(changed_seq=60))
    assert any(point.seq == 59 for point in following)


def test_nothing_to_mark() -> None:
    assert markers_of(layout(system=None)) == []
    assert markers_of(layout()) == [(1, "system")]


def test_the_last_tail_is_marked_again_to_be_read() -> None:
    assert markers_of(layout(*talk(2, 12)), (1, 6)) == [(1, "system"), (6, "previous"), (12, "tail")]


def test_the_same_request_again_needs_no_more_than_its_tail() -> None:
    assert markers_of(layout(*talk(2, 12)), (1, 12)) == [(1, "system"), (12, "tail")]


def test_the_same_request_again_carries_the_same_markers() -> None:
    first = chosen(layout(*talk(2, 51)))
    again = chosen(layout(*talk(2, 51)), [point.seq for point in first])
    assert again == first


def test_the_part_that_a_new_epoch_left_unchanged_is_marked_to_be_read() -> None:
    points = chosen(layout(*talk(2, 20)), (), Marking(changed_seq=9))
    assert [(p.seq, p.kind) for p in points] == [(1, "system"), (8, "kept"), (20, "tail")]


def test_a_removed_last_tail_is_no_marker_position() -> None:
    assert markers_of(layout(*talk(8, 12)), (1, 5)) == [(1, "system"), (12, "tail")]


def test_a_long_step_is_cut_into_readable_ones() -> None:
    assert markers_of(layout(*talk(2, 36)), (1, 6)) == [(1, "system"), (6, "previous"), (25, "chain"), (36, "tail")]


def test_the_last_written_is_left_to_looking_back_when_the_chain_needs_all_markers() -> None:
    points = markers_of(layout(*talk(2, 60)), (1, 6))
    assert points == [(1, "system"), (25, "chain"), (44, "chain"), (60, "tail")]


def test_when_no_chain_reaches_the_tail_the_last_written_stays_readable() -> None:
    points = markers_of(layout(*talk(2, 300)), (1, 6))
    assert points == [(1, "system"), (6, "previous"), (25, "chain"), (300, "tail")]


def test_a_first_long_request_is_chained_as_far_as_markers_reach() -> None:
    assert markers_of(layout(*talk(2, 51))) == [(1, "system"), (20, "chain"), (39, "chain"), (51, "tail")]
    assert markers_of(layout(*talk(2, 300))) == [(1, "system"), (300, "tail")]


def test_parallel_calls_are_looked_back_over_as_one_block_but_their_results_are_not() -> None:
    calls = [Block(Kind.CALL, 3 + n, call_id=f"c{n}", tool="read", arguments={}) for n in range(15)]
    results = [Block(Kind.RESULT, 18 + n, "found", call_id=f"c{n}", tool="read") for n in range(15)]
    given = layout(Block(Kind.USER, 2, "go"), *calls, *results)
    # The calls end as block 2, their results are blocks 3 to 17: within reach of the user's message, block 1.
    assert markers_of(given, (1, 2)) == [(1, "system"), (2, "previous"), (32, "tail")]
    assert markers_of(given, (1, 2), lookback=16)[2:] == [(31, "chain"), (32, "tail")]


def test_ephemeral_blocks_are_after_the_last_marker() -> None:
    call = Block(Kind.CALL, 3, call_id="c", tool="read", arguments={})
    pending = Block(Kind.RESULT, 3, "pending", call_id="c", tool="read", replaced=True, ephemeral=True)
    injected = Block(Kind.NOTE, 3, "today is Monday", ephemeral=True)
    given = layout(Block(Kind.USER, 2, "go"), call, pending, injected)
    points = chosen(given)
    assert [(point.seq, point.kind) for point in points] == [(1, "system"), (3, "tail")]
    message = write_in("anthropic", given, points).request["messages"][1]
    assert "cache_control" in message["content"][-1]
    assert message["role"] == "assistant"


def test_a_settled_pending_stub_carries_the_marker_of_its_call() -> None:
    """The stub has the call's seq; one seq is one position, the later of the two."""
    call = Block(Kind.CALL, 3, call_id="c", tool="read", arguments={})
    pending = Block(Kind.RESULT, 3, "pending", call_id="c", tool="read", replaced=True)
    given = layout(Block(Kind.USER, 2, "go"), call, pending, *talk(4, 5))
    assert markers_of(given, (1, 3), lookback=3) == [(1, "system"), (3, "previous"), (5, "tail")]
    assert len({seq for seq, _ in markers_of(given, lookback=2)}) == len(markers_of(given, lookback=2))


def test_thinking_carries_no_marker() -> None:
    native = {"format": "anthropic", "head": {}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    given = layout(*talk(2, 4), Block(Kind.ASSISTANT, 5, [thinking], native=native))
    assert markers_of(given) == [(1, "system"), (4, "tail")]


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 22, 38, 39, 40, 57, 58, 61, 62, 200])
@pytest.mark.parametrize("last_written", [(), (1, 2), (1, 10), (1, 2, 10, 22), (7,)])
def test_every_marker_is_really_placed_and_readable_where_markers_suffice(
    count: int, last_written: tuple[int, ...]
) -> None:
    given = layout(*talk(2, 1 + count))
    points = chosen(given, last_written)
    assert placed_markers(given, points) == points
    assert len(points) <= 4
    place = {seq: seq - 1 for seq in range(1, count + 2)}
    start = max((place[seq] for seq in last_written if seq in place and seq > 1), default=0)
    if count - start > 3 * REACH:
        return
    readable = sorted({0, start, *(place[point.seq] for point in points)})
    steps = [later - before for before, later in pairwise(readable) if later > start]
    assert all(step <= REACH for step in steps)


def test_each_call_reads_what_the_previous_one_wrote() -> None:
    written: tuple[int, ...] = ()
    for last in (4, 10, 33, 50, 51, 51, 90):
        given = layout(*talk(2, last))
        points = chosen(given, written)
        assert placed_markers(given, points) == points
        if written:
            reach = [
                seq for point in points if point.kind != "system" for seq in range(point.seq - REACH, point.seq + 1)
            ]
            assert written[-1] in reach
        written = tuple(point.seq for point in points)


def test_an_entry_twenty_blocks_back_is_out_of_reach() -> None:
    """The vendor's own example: at block 35 blocks 35 to 16 are looked at, and an entry at block 15 is missed."""
    far, near = layout(*talk(1, 35), system=None), layout(*talk(1, 34), system=None)
    assert markers_of(far, (15,), markers_max=2) == [(34, "chain"), (35, "tail")]
    assert markers_of(near, (15,), markers_max=1) == [(34, "tail")]
    assert markers_of(far, (15,)) == [(15, "previous"), (34, "chain"), (35, "tail")]


def test_with_two_markers_what_was_written_last_comes_before_the_prefix() -> None:
    assert markers_of(layout(*talk(2, 20)), (1, 6), markers_max=2) == [(1, "system"), (20, "tail")]
    assert markers_of(layout(*talk(2, 30)), (1, 6), markers_max=2) == [(25, "chain"), (30, "tail")]
    assert markers_of(layout(*talk(2, 90)), (1, 6), markers_max=2) == [(6, "previous"), (90, "tail")]
    assert markers_of(layout(*talk(2, 90)), (1, 6), markers_max=1) == [(90, "tail")]


def test_an_event_of_many_blocks_is_one_place() -> None:
    """No marker can be set inside it, so after it an earlier block is only in reach of a marker of its own."""
    long = Block(Kind.USER, 4, [{"type": "text", "text": f"part {n}"} for n in range(30)])
    given = layout(*talk(2, 3), long)
    assert markers_of(given, (1, 3)) == [(1, "system"), (3, "previous"), (4, "tail")]
    assert markers_of(given, (1, 3), markers_max=2) == [(3, "previous"), (4, "tail")]


@pytest.mark.parametrize("markers", ["tail", "rounds", "prefix", "none"])
def test_nothing_is_marked_where_no_marker_is_allowed(markers: str) -> None:
    assert markers_of(layout(*talk(2, 60)), (1, 6), markers=markers, markers_max=0) == []


def test_s2_16_prefix_is_one_marker_behind_the_leading_system_prompt_and_none_without_one() -> None:
    assert markers_of(layout(*talk(2, 60)), (1, 6), markers="prefix") == [(1, "system")]
    assert markers_of(layout(*talk(2, 60), system=None), markers="prefix") == []
    assert markers_of(layout(*talk(2, 60)), markers="none") == []


# S0.24 to S0.26: `h` and `p` are a turn's header and prompt, `s` a summary, `a` an answer, `c` and `r` a call and its
# result. Turns are separated by spaces.
KINDS = {"h": Kind.USER, "p": Kind.USER, "s": Kind.NOTE, "a": Kind.ASSISTANT, "c": Kind.CALL, "r": Kind.RESULT}


def points_of(turns: str, upto: int | None = None) -> dict[str, int]:
    """Return the marked indices by kind; `upto` hides all blocks from there on."""
    blocks = [Block(KINDS[letter], seq) for seq, letter in enumerate(turns.replace(" ", ""), 1)][:upto]
    earlier = len("".join(turns.split()[:-1]))
    points = round_points(round_ends(blocks), earlier - 1 if earlier else None, len(blocks))
    return {kind: index for index, kind in points}


@pytest.mark.parametrize(
    ("turns", "indices"),
    [
        pytest.param("hpa hpa hpa hpa hpa", {11, 2, 14}, id="five turns of three blocks"),
        pytest.param("s hpa hpa", {3, 6}, id="a summary and two turns"),
        pytest.param("hpa hpcrcrcrcrcrcr", {2, 8, 16}, id="an unfinished turn of six calls"),
        pytest.param("hpa", {2}, id="one round and no turn before"),
        pytest.param("hpcrcra", {3, 6}, id="three rounds: the offset ends at the first"),
        pytest.param("ppppp", {0, 4}, id="no rounds"),
    ],
)
def test_s0_25_computed_vectors(turns: str, indices: set[int]) -> None:
    assert set(points_of(turns).values()) == indices


def test_s0_25_kinds() -> None:
    assert points_of("hpa hpa hpa hpa hpa") == {"previous_turn": 11, "pre_tail": 2, "tail": 14}


def test_s0_26_the_tail_is_the_last_visible_block() -> None:
    """The original's document says so; its code marks the last completed round, as for the blocks before the tail."""
    assert set(points_of("hpa hp").values()) == {2, 4}
    assert set(points_of("hpa hp", upto=3).values()) == {2}


@pytest.mark.parametrize("markers", ["tail", "rounds"])
def test_s0_26_without_cache_last_what_was_written_is_read_and_the_end_is_not_written(markers: str) -> None:
    given = layout(*talk(2, 7), *user_and_rounds(8, 8))
    limits = {"markers": markers, "turn_seq": 8}
    whole = dict(map(reversed, markers_of(given, (1, 6), **limits)))
    bare = dict(map(reversed, markers_of(given, (1, 6), tail=False, **limits)))
    assert whole["tail"] == given.blocks[-1].seq
    assert bare == {kind: seq for kind, seq in whole.items() if kind not in ("tail", "chain")}
    assert markers_of(given, (1, 20), tail=False, **limits)[-1] == (20, "previous")
    assert markers_of(given, tail=False, markers="tail") == [(1, "system")]
    again = markers_of(given, (given.blocks[-1].seq,), tail=False)
    assert again[-1] == (given.blocks[-1].seq, "tail")  # written before, so that reading it costs no more


def test_nothing_has_no_rounds() -> None:
    assert round_points([], None, 0) == ()


def test_a_round_is_an_answer_with_its_results() -> None:
    letters = "paccrrcraapa"
    blocks = [Block(KINDS[letter], seq) for seq, letter in enumerate(letters)]
    assert round_ends(blocks) == [5, 7, 9, 11]


def user_and_rounds(first: int, rounds: int) -> tuple[Block, ...]:
    """Return a user message and `rounds` rounds of one call."""
    blocks = [Block(Kind.USER, first, "go")]
    for number in range(rounds):
        call_id = f"c{first}-{number}"
        blocks.append(Block(Kind.CALL, first + 1 + 2 * number, call_id=call_id, tool="read", arguments={}))
        blocks.append(Block(Kind.RESULT, first + 2 + 2 * number, "found", call_id=call_id, tool="read"))
    return tuple(blocks)


def test_s0_24_rounds_mark_the_turn_before_a_round_some_way_back_and_the_tail() -> None:
    given = layout(*talk(2, 3), *user_and_rounds(4, 7))
    points = chosen(given, (), Marking(markers="rounds", turn_seq=4))
    assert [(point.seq, point.kind) for point in points] == [
        (1, "system"),
        (3, "previous_turn"),
        (10, "pre_tail"),
        (18, "tail"),
    ]
    assert placed_markers(given, points) == points


def test_rounds_keep_the_newest_markers_where_fewer_are_allowed() -> None:
    given = layout(*talk(2, 3), *user_and_rounds(4, 7))
    assert markers_of(given, markers="rounds", turn_seq=4, markers_max=2) == [(10, "pre_tail"), (18, "tail")]
    assert markers_of(given, markers="rounds", turn_seq=4, markers_max=1) == [(18, "tail")]


def test_rounds_read_what_was_written_last_even_where_it_is_far_back() -> None:
    """A round of 30 calls puts the last tail out of reach of the new one, and of the end of every round before it."""
    calls = [Block(Kind.CALL, 30 + n, call_id=f"c{n}", tool="read", arguments={}) for n in range(30)]
    results = [Block(Kind.RESULT, 60 + n, "found", call_id=f"c{n}", tool="read") for n in range(30)]
    given = layout(*talk(2, 3), *user_and_rounds(4, 4), *calls, *results)
    unread = [(1, "system"), (3, "previous_turn"), (6, "pre_tail"), (89, "tail")]
    assert markers_of(given, markers="rounds", turn_seq=4) == unread
    assert markers_of(given, (1, 3, 6), markers="rounds", turn_seq=4) == unread
    assert markers_of(given, (1, 3, 12), markers="rounds", turn_seq=4) == [
        (3, "previous_turn"),
        (6, "pre_tail"),
        (12, "previous"),
        (89, "tail"),
    ]
    assert markers_of(given, (1, 3, 12), markers="rounds", turn_seq=4, markers_max=2) == [
        (12, "previous"),
        (89, "tail"),
    ]
    assert markers_of(given, (1, 3, 12), markers="rounds", turn_seq=4, markers_max=1) == [(89, "tail")]


def test_a_result_that_came_late_does_not_end_the_turn_before() -> None:
    """The result is placed after its call, before blocks that are older than it."""
    call = Block(Kind.CALL, 3, call_id="c", tool="read", arguments={})
    late = Block(Kind.RESULT, 7, "found", call_id="c", tool="read")
    given = layout(Block(Kind.USER, 2, "go"), call, late, *talk(4, 6))
    assert markers_of(given, markers="rounds", turn_seq=6)[1:] == [(7, "pre_tail"), (5, "previous_turn"), (6, "tail")]
