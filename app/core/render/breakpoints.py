"""Placement of Anthropic's cache markers: at most 4, each within reach of the previous one or of the last one written.

Markers are set however small the request is: the tokens sent outside it are unknown here, and a marker on a prefix that
is too small to be cached costs nothing.

The provider writes its cache only at markers. It searches the 20 content blocks up to each marker for an earlier entry,
counting a run of parallel tool uses as one. (Its own API also counts a run of results as one; not every platform of
these models does, so here each result counts, and a step is never too long.)
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Final

from app.core.log.event import ASSISTANT_KINDS, ROUND_KINDS, Block, Kind
from app.core.render.formats.layout import Breakpoint, Layout, Place, Places

MARKERS_MAX: Final = 4
LOOKBACK_BLOCKS: Final = 20
ROUNDS_MIN: Final = 2
ROUNDS_OFFSET: Final = 4


@dataclass(frozen=True, slots=True)
class Marking:
    """The rules for setting markers: a policy's `markers`, and the provider's limits.

    `lookback` is the number of blocks searched from a marker, its own included. `turn_seq` is the first seq of the
    running turn, `changed_seq` the first seq that a new epoch shows differently (0: none, or all), `uncached_from` the
    first that is not cached (0: all are). `tail`: the end of the cached part is marked, for the next call to read.
    """

    markers: str = "tail"
    markers_max: int = MARKERS_MAX
    lookback: int = LOOKBACK_BLOCKS
    turn_seq: int = 0
    changed_seq: int = 0
    uncached_from: int = 0
    tail: bool = True

    @property
    def reach(self) -> int:
        """The number of blocks before a marker within which an entry is found."""
        return self.lookback - 1


def choose_breakpoints(
    layout: Layout, places: Places, last_written: Collection[int] = (), marking: Marking = Marking()
) -> tuple[Breakpoint, ...]:
    """Return the breakpoints of a request, in order of their places. `places` are those of its layout, in order.

    `last_written` are the seqs of the breakpoints of the view's last call in this epoch. The kinds are:

    * `system`: the end of tools and system prompts.
    * `previous`: the tail of the last call, whose cache entry is read now.
    * `kept`: the end of the part that a new epoch left unchanged, whose entry is read instead.
    * `chain`: steps in between, none longer than a marker's reach.
    * `tail`: the end of the stable part, whose entry the next call will read.
    * `previous_turn` and `pre_tail`: only for `rounds`.

    At least two markers ensure that the entry of the last call is read if it still exists.
    """
    if marking.markers == "none" or marking.markers_max <= 0:
        return ()
    system: tuple[Breakpoint, ...] = ()
    if layout.system or layout.tools:
        seq = max(layout.tools_seq, *(block.seq for block in layout.system), 0)
        system = (Breakpoint(seq, "system"),)
    if marking.markers == "prefix":
        return system
    if marking.uncached_from and marking.uncached_from in places:
        end = places[marking.uncached_from].at
        places = {seq: place for seq, place in places.items() if place.at < end}
    if not places:
        return system
    last = places[next(reversed(places))]
    written = sorted((places[seq] for seq in last_written if seq in places), key=attrgetter("at"))
    kept = (place for place in reversed(places.values()) if place.seq < marking.changed_seq)
    previous = written[-1] if written else next(kept, None)
    if marking.markers == "rounds":
        return _rounds(layout, places, previous, system, marking)
    if written and previous == last:  # the request was repeated
        steps = [_breakpoint(place, "chain") for place in written[:-1]]
        return (*system, *steps, _breakpoint(last, "tail"))[-marking.markers_max :]
    return _tail(places, previous, "previous" if written else "kept", system, marking)


def _breakpoint(place: Place, kind: str) -> Breakpoint:
    return Breakpoint(place.seq, kind, at=place.at)


def _tail(
    places: Places, previous: Place | None, kind: str, system: tuple[Breakpoint, ...], marking: Marking
) -> tuple[Breakpoint, ...]:
    """Return the system marker, `previous`, steps and the tail. If markers are scarce, `previous` is kept and the
    newest steps are dropped: this call then reads everything that was written, and writes the rest once."""
    tail = places[next(reversed(places))]
    steps = _steps(places, previous.at if previous else 0, tail.at, marking.reach)
    if not marking.tail:
        return system if previous is None else (*system, _breakpoint(previous, kind))
    unreached = previous is not None and tail.at - previous.at > marking.reach
    if marking.markers_max == 1 or (marking.markers_max == 2 and unreached):
        system = ()  # the tail, and `previous` if the tail cannot reach it, matter more
    room = marking.markers_max - len(system) - 1
    chosen: list[Breakpoint] = []
    if previous is None:
        steps = steps if len(steps) <= room else []
    elif previous != tail and room and len(steps) != room:
        chosen.append(_breakpoint(previous, kind))
        steps = steps[: room - 1]
    else:
        steps = steps[:room]
    chosen += [_breakpoint(step, "chain") for step in steps]
    return (*system, *chosen, _breakpoint(tail, "tail"))


def _rounds(
    layout: Layout, places: Places, previous: Place | None, system: tuple[Breakpoint, ...], marking: Marking
) -> tuple[Breakpoint, ...]:
    """Return the end of the previous turn, a round ROUNDS_OFFSET back, the tail, and if possible the system prompt. If
    none of them reaches `previous`, it is marked as well, if necessary in place of the oldest."""
    blocks = [block for block in layout.blocks if not block.ephemeral]
    older = max((index for index, block in enumerate(blocks) if block.seq < marking.turn_seq), default=None)
    kinds: dict[Place, str] = {}
    for index, kind in round_points(round_ends(blocks), older, len(blocks)):
        place = next((places[b.seq] for b in reversed(blocks[: index + 1]) if b.seq in places), None)
        if place is not None and (marking.tail or kind != "tail"):
            kinds[place] = kind
    chosen = _newest(kinds, marking.markers_max)
    if previous and marking.markers_max > 1 and not any(0 <= p.at - previous.at <= marking.reach for p in chosen):
        kinds[previous] = "previous"
        chosen = _newest([*_newest(chosen, marking.markers_max - 1), previous], marking.markers_max)
    points = tuple(_breakpoint(place, kinds[place]) for place in chosen)
    return (*system, *points) if len(points) < marking.markers_max else points


def _newest(places: Iterable[Place], count: int) -> list[Place]:
    return sorted(places, key=lambda place: place.at)[-count:]


def round_ends(blocks: Sequence[Block]) -> list[int]:
    """Return the indices of the last block of each round (the assistant's blocks and their results)."""
    ends: list[int] = []
    for index, block in enumerate(blocks):
        if block.kind not in ROUND_KINDS:
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        continues = following is not None and (
            following.kind is Kind.RESULT or (following.kind in ASSISTANT_KINDS and block.kind is not Kind.RESULT)
        )
        if not continues:
            ends.append(index)
    return ends


def round_points(ends: Sequence[int], previous_turn: int | None, blocks: int) -> tuple[tuple[int, str], ...]:
    """Return the (index, kind) pairs of the blocks to mark; a later kind overrides an earlier one at the same index.

    `blocks` is the number of blocks, `previous_turn` the index of the last one before the running turn, if there is
    any. If `ends` is empty, each block counts as a round.
    """
    if not blocks:
        return ()
    ends = ends or range(blocks)
    points: list[tuple[int, str]] = [] if previous_turn is None else [(previous_turn, "previous_turn")]
    if len(ends) >= ROUNDS_MIN:
        points.append((ends[max(0, len(ends) - 1 - ROUNDS_OFFSET)], "pre_tail"))
    return (*points, (blocks - 1, "tail"))


def _steps(places: Places, start: int, end: int, reach: int) -> list[Place]:
    """Return the fewest places between start and end with no step longer than `reach`, as far as places allow."""
    if end - start <= reach:
        return []
    between = [*takewhile(lambda place: place.at > start, reversed(places.values()))][::-1]
    steps: list[Place] = []
    at = start
    while end - at > reach:
        count = bisect_right(between, at + reach, key=attrgetter("at"))
        if not count or between[count - 1].at <= at:
            break
        steps.append(between[count - 1])
        at = between[count - 1].at
    return steps
