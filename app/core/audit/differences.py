"""Differences between two requests: the words that changed in a text, and parts that are in both, in order.

All work is bounded, so that contents of any kind may be compared while somebody waits.
"""

import re
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

EDITS_MAX: Final = 120
STEPS_MAX: Final = 100_000
"""Most edits that a comparison finds, and most steps that it takes for them."""
WORDS_CHARS_MAX: Final = 50_000
"""Length of two texts together from which on lines are compared instead of words."""
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")

Edit = Literal["same", "del", "ins"]


class Piece(NamedTuple):
    """A part of two compared texts: in both, only in the first (`del`), or only in the second (`ins`)."""

    edit: Edit
    text: str


def compare_texts(a: str, b: str) -> list[Piece]:
    """Return the difference of two texts in words, else in lines, else as a whole if that would be too much work."""
    units = (_WORDS, _LINES) if len(a) + len(b) <= WORDS_CHARS_MAX else (_LINES,)
    for unit in units:
        edits = _edits(unit.findall(a), unit.findall(b))
        if edits is not None:
            return [Piece(edit, "".join(text for _, text in run)) for edit, run in groupby(edits, lambda one: one[0])]
    return [Piece("del", a), Piece("ins", b)]


def pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Return the positions of two lists of different keys, in the order of both; None where only one has the key.

    As many keys as possible are in both, so that those which changed their place are not.
    """
    places = {key: index for index, key in enumerate(b)}
    shared = [(i, places[key]) for i, key in enumerate(a) if key in places]
    found: list[tuple[int | None, int | None]] = []
    i, j = 0, 0
    for x, y in (*_in_order(shared), (len(a), len(b))):
        found += [(index, None) for index in range(i, x)]
        found += [(None, index) for index in range(j, y)]
        found += [(x, y)] if x < len(a) else []
        i, j = x + 1, y + 1
    return found


def _in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of pairs of positions, ascending in the first, that also ascends in the second."""
    ends: list[int] = []
    best: list[int] = []
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        before.append(best[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        best[length : length + 1] = [index]
    chain, index = [], best[-1] if best else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _edits(a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]] | None:
    """Return the edits from `a` to `b`; None if they are more than EDITS_MAX or take more than STEPS_MAX steps."""
    least = min(len(a), len(b))
    start = next((i for i in range(least) if a[i] != b[i]), least)
    end = next((i for i in range(least - start) if a[-1 - i] != b[-1 - i]), least - start)
    middle = _shortest(a[start : len(a) - end], b[start : len(b) - end])
    if middle is None:
        return None
    same: list[tuple[Edit, str]] = [("same", text) for text in a[:start]]
    return [*same, *middle, *(("same", text) for text in a[len(a) - end :])]


def _shortest(a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]] | None:
    """Return the fewest edits (Myers 1986), within the bounds; without one of the texts there is no bound."""
    if not a or not b:
        return [*(("del", text) for text in a), *(("ins", text) for text in b)]
    furthest, trail, steps = {1: 0}, [], 0
    for edits in range(EDITS_MAX + 1):
        trail.append(furthest.copy())
        for k in range(-edits, edits + 1, 2):
            x = _reached(furthest, k, len(a), len(b))
            if x is None:
                continue
            start = x
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            steps += 1 + x - start
            furthest[k] = x
            if x == len(a) and x - k == len(b):
                return _walk_back(trail, a, b)
            if steps > STEPS_MAX:
                return None
    return None


def _reached(furthest: Mapping[int, int], k: int, width: int, height: int) -> int | None:
    """Return the position in the first text that one more edit reaches on the diagonal `k`; None: outside the texts."""
    found = (furthest.get(k + 1, -1), furthest.get(k - 1, -2) + 1)
    return max((x for x in found if 0 <= x <= width and 0 <= x - k <= height), default=None)


def _walk_back(trail: Sequence[Mapping[int, int]], a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]]:
    done: list[tuple[Edit, str]] = []
    x, y = len(a), len(b)
    for furthest in reversed(trail):
        k = x - y
        start = _reached(furthest, k, len(a), len(b)) or 0
        while x > start:
            x, y = x - 1, y - 1
            done.append(("same", a[x]))
        if x == y == 0:
            break
        if furthest.get(k + 1, -1) == start:
            y -= 1
            done.append(("ins", b[y]))
        else:
            x -= 1
            done.append(("del", a[x]))
    return done[::-1]
