"""Which of the legal indices is the cut: by how much of the newest is to stay."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Lean = Literal["forward", "back"]


@dataclass(frozen=True, slots=True)
class CutPoint:
    """items[:index] go. `split_turn` is the turn that the cut falls into, None when it falls between turns.

    The turn that items[index] is of begins at `turn_start`: `index` itself, unless that turn is split.
    """

    index: int
    split_turn: int | None
    turn_start: int


def stop_by_tokens(tokens: Sequence[int], keep: int) -> int | None:
    """Walking back from the end, the first index from which at least `keep` tokens stand; None if there are fewer."""
    total = 0
    for index in range(len(tokens) - 1, -1, -1):
        total += tokens[index]
        if total >= keep:
            return index
    return None


def stop_by_count(count: int, keep: int) -> int | None:
    """The index from which on the newest `keep` of `count` stand; None if there are no more than that."""
    return count - keep if count > keep else None


def stop_by_turns(turns: Sequence[int], keep: int) -> int | None:
    """The index at which the newest `keep` turns begin; None if there are no more than that."""
    distinct = sorted(set(turns))
    return turns.index(distinct[-keep]) if len(distinct) > keep else None


def forward(stop: int | None, legal: Sequence[int], bridges: Collection[int] = ()) -> int:
    """The first legal index at or behind the stop, else the first legal one of all; 0: nothing goes.

    From there it moves back over `bridges`: indices whose item is no message of anyone's and leads in what follows.
    """
    cut = next((index for index in legal if stop is not None and index >= stop), min(legal, default=0))
    while cut - 1 > 0 and cut - 1 in bridges:
        cut -= 1
    return cut


def back(stop: int | None, legal: Sequence[int]) -> int:
    """The last legal index at or before the stop, or if there is none the first behind it; 0: nothing goes."""
    if stop is None:
        return 0
    before = [index for index in legal if index <= stop]
    return max(before, default=min(legal, default=0))


def choose(cut: int, turns: Sequence[int], split_turn: str, running: int, starts: Collection[int]) -> CutPoint | None:
    """The cut point with regard to whole turns; None when nothing would go. `starts` are the legal turn starts.

    `prefix`: a turn may be split. `protect_current`: the running turn is not. `advance`: none is; the cut moves on to
    the next turn's start, but not beyond the running turn's.
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
