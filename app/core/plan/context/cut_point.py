"""The choice of a cut among the legal indices, by the size of the newest part that is to stay."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Lean = Literal["forward", "back"]


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A cut that removes items[:index]. `split_turn` is the turn that it splits, None if it falls between turns.

    `turn_start` is the index at which the turn of items[index] begins: `index` itself, unless that turn is split.
    """

    index: int
    split_turn: int | None
    turn_start: int


def stop_by_tokens(tokens: Sequence[int], keep: int) -> int | None:
    """Return the last index from which there are at least `keep` tokens; None if there are fewer in all."""
    total = 0
    for index in range(len(tokens) - 1, -1, -1):
        total += tokens[index]
        if total >= keep:
            return index
    return None


def stop_by_count(count: int, keep: int) -> int | None:
    """Return the index at which the newest `keep` of `count` items begin; None if there are no more than `keep`."""
    return count - keep if count > keep else None


def stop_by_turns(turns: Sequence[int], keep: int) -> int | None:
    """Return the index at which the newest `keep` turns begin; None if there are no more than `keep`."""
    distinct = sorted(set(turns))
    return turns.index(distinct[-keep]) if len(distinct) > keep else None


def forward(stop: int | None, legal: Sequence[int], bridges: Collection[int] = ()) -> int:
    """Return the first legal index at or after the stop, else the first legal index; 0 if nothing is removed.

    The index then moves back over `bridges`: indices of items of neither speaker that introduce the next item.
    """
    cut = next((index for index in legal if stop is not None and index >= stop), min(legal, default=0))
    while cut - 1 > 0 and cut - 1 in bridges:
        cut -= 1
    return cut


def back(stop: int | None, legal: Sequence[int]) -> int:
    """Return the last legal index at or before the stop, else the first after it; 0 if nothing is removed."""
    if stop is None:
        return 0
    before = [index for index in legal if index <= stop]
    return max(before, default=min(legal, default=0))


def choose(cut: int, turns: Sequence[int], split_turn: str, running: int, starts: Collection[int]) -> CutPoint | None:
    """Adjust `cut` to whole turns as `split_turn` requires; None if nothing would be removed.

    `prefix` lets a cut split any turn, `protect_current` any but the running one. `advance` lets it split none: the cut
    moves to the next turn's start, at most to the running turn's. `starts` are the legal turn starts.
    """
    begins = next((index for index, turn in enumerate(turns) if turn == running), len(turns))
    if split_turn != "prefix" and cut > begins:
        cut = max((index for index in starts if index <= begins), default=0)
    if split_turn == "advance" and cut not in starts:
        cut = min((index for index in starts if index > cut), default=max(starts, default=0))
    if not 0 < cut < len(turns):
        return None
    if cut in starts:
        return CutPoint(cut, None, cut)
    own = (index for index in starts if index < cut and turns[index] == turns[cut])
    return CutPoint(cut, turns[cut], max(own, default=turns.index(turns[cut])))
