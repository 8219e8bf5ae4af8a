"""Cache markers on random conversations: few, really placed, in order, and each written prefix is read again."""

import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.log.event import REASONING_PARTS, Block, Kind
from app.core.render.breakpoints import Marking
from app.core.render.formats.layout import Layout
from app.core.tokens.models import ANTHROPIC
from palimpsest_tools.replay.bill import Cache, charge
from palimpsest_tools.replay.requests import rendered
from tests.property.conversations import mixed_blocks
from tests.property.test_formats import pending_of
from tests.support.examples import examples
from tests.support.validators import check_anthropic
from tests.support.written_requests import chosen, places, stable_blocks, write_in

SYSTEM = Block(Kind.SYSTEM, 1, "You help.")
TOKENS_A_BLOCK = 1_000
EVERYTHING = replace(ANTHROPIC, minimum_tokens=0)

some = settings(
    max_examples=examples(150),
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Block, ...]:
    """Draw several mixed conversations in sequence, long enough for looking back to matter; seqs are unique."""
    drawn = draw(st.lists(mixed_blocks(), min_size=1, max_size=4))
    blocks = [
        replace(block, call_id=f"{number}-{block.call_id}") if block.call_id else block
        for number, part in enumerate(drawn)
        for block in part
    ]
    many = draw(st.sampled_from([0, 0, 15, 25]))
    blocks += [Block(Kind.USER if n % 2 else Kind.ASSISTANT, 0, f"more {n}") for n in range(many)]
    return tuple(replace(block, seq=seq) for seq, block in enumerate(blocks, 2))


def layout_of(blocks: Sequence[Block], system: Block | None) -> Layout:
    return Layout(system=() if system is None else (system,), blocks=(*blocks, *pending_of(tuple(blocks))))


def markings(turn_seqs: Sequence[int]) -> st.SearchStrategy[Marking]:
    return st.builds(
        Marking,
        markers=st.sampled_from(["tail", "tail", "rounds", "rounds", "prefix", "none"]),
        markers_max=st.integers(0, 5),
        lookback=st.sampled_from([1, 2, 5, 20]),
        turn_seq=st.sampled_from([0, *turn_seqs]),
    )


@some
@given(
    blocks=conversations(),
    system=st.sampled_from([SYSTEM, None]),
    last=st.lists(st.integers(1, 60), max_size=4),
    data=st.data(),
)
def test_markers_are_few_in_order_and_where_one_can_stand(
    blocks: tuple[Block, ...], system: Block | None, last: list[int], data: st.DataObject
) -> None:
    marking = data.draw(markings([block.seq for block in blocks]))
    layout = layout_of(blocks, system)
    points = chosen(layout, last, marking)
    assert len(points) <= marking.markers_max
    assert len({point.seq for point in points}) == len(points)
    written = write_in("anthropic", layout, points)
    assert written.breakpoints == points
    found = places(Layout(system=layout.system, blocks=stable_blocks(layout)))
    ends = [(found[point.seq].message, found[point.seq].part) for point in points if point.kind != "system"]
    assert ends == sorted(ends)
    marked = [written.request["messages"][message]["content"][part] for message, part in ends]
    assert all("cache_control" in part and part["type"] not in REASONING_PARTS for part in marked)
    assert json.dumps(written.request).count("cache_control") == len(points)
    if marking.markers_max <= 4:
        check_anthropic(written.request)
    if marking.markers == "none":
        assert points == ()
    if marking.markers == "prefix":
        assert all(point.kind == "system" for point in points)
    assert all(point.kind != "system" for point in points[1:])


@some
@given(
    blocks=conversations(),
    system=st.sampled_from([SYSTEM, None]),
    markers=st.sampled_from(["tail", "rounds"]),
    markers_max=st.integers(2, 4),
    data=st.data(),
)
def test_a_call_reads_all_that_the_one_before_wrote(
    blocks: tuple[Block, ...], system: Block | None, markers: str, markers_max: int, data: st.DataObject
) -> None:
    """The bill's rules look back as the vendor documents, and are independent of the choice of markers."""
    heads = sorted(data.draw(st.lists(st.integers(1, len(blocks)), min_size=2, max_size=5)))
    cache, last, held = Cache(), (), 0
    for number, head in enumerate(heads):
        turn_seq = max((block.seq for block in blocks[:head] if block.kind is Kind.USER), default=0)
        layout = layout_of(blocks[:head], system)
        points = chosen(layout, last, Marking(markers=markers, markers_max=markers_max, turn_seq=turn_seq))
        request = rendered(write_in("anthropic", layout, points).request, 0, at=number)
        priced = replace(request, blocks=tuple(replace(block, tokens=TOKENS_A_BLOCK) for block in request.blocks))
        bill, cache = charge(EVERYTHING, cache, priced)
        assert bill.read_tokens >= held
        held = TOKENS_A_BLOCK * max(request.breakpoints, default=0)
        last = tuple(point.seq for point in points)
