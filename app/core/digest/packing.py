"""The choice of names for limited room: those worth most for their length, without repeats."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final

LENGTH_COUNTS: Final = 0.6
"""The power of the length by which worth is divided. Measured: anything from 0.6 to 0.9 is within a point."""


class Packing:
    """Names with their worth. A name that occurs within a chosen name need not be chosen itself.

    So a full path includes the worth of its relative forms, and a dotted name that of its parts. Takes time linear in
    the number of names times their length together.
    """

    def __init__(self, worth: Mapping[str, float], before: str, listed: Set[str] = frozenset()) -> None:
        """Leave out the names that occur in `before`, the text that precedes them, except the `listed` ones."""
        self._worth = {name: weight for name, weight in worth.items() if name in listed or name not in before}
        self._parts = _parts_of(list(self._worth))
        self._wholes: dict[str, list[str]] = {}
        for name, parts in self._parts.items():
            for part in parts:
                self._wholes.setdefault(part, []).append(name)

    def best(self, chars: int) -> Sequence[str]:
        """Return the best names in at most `chars` characters with a space between names, the best first."""
        covered: set[str] = set()
        chosen: dict[str, None] = {}
        heap = [(-self._density(name, covered, chosen), at, name) for at, name in enumerate(self._worth)]
        places = {name: at for _, at, name in heap}
        heapify(heap)
        while heap:
            estimate, at, name = heappop(heap)
            if name in covered:
                continue
            parts = self._parts[name]
            cost = len(name) + 1 if len(parts) == 1 else self._cost(name, chosen)
            if cost > chars + 1:
                continue
            if len(parts) > 1 and (density := -self._density(name, covered, chosen)) > estimate:
                # Some of its parts are covered by a name that was chosen since.
                heappush(heap, (density, at, name))
                continue
            chars -= cost
            for part in parts:
                chosen.pop(part, None)
            chosen[name] = None
            covered.update(parts)
            for whole in self._wholes[name]:
                # A longer name that contains this one would replace it, so it costs less now.
                if whole not in covered:
                    heappush(heap, (-self._density(whole, covered, chosen), places[whole], whole))
        return list(chosen)

    def _cost(self, name: str, chosen: Mapping[str, None]) -> int:
        """Return the characters of the name, less those of the chosen parts that it would replace."""
        replaced = [len(part) + 1 for part in self._parts[name] if part in chosen] if chosen else ()
        return len(name) + 1 - sum(replaced)

    def _density(self, name: str, covered: Set[str], chosen: Mapping[str, None]) -> float:
        worth = math.fsum([self._worth[part] for part in self._parts[name] if part not in covered])
        return worth / math.pow(max(1, self._cost(name, chosen)), LENGTH_COUNTS)


def _parts_of(names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the parts of each name: the names that occur in it, including itself."""
    parts: Mapping[str, list[str]] = {name: [] for name in names}
    text = "\n".join(names)
    ends = list(accumulate((len(name) + 1 for name in names), initial=0))
    for part in names:
        at = text.find(part)
        while at >= 0:
            index = bisect_right(ends, at) - 1
            if at + len(part) < ends[index + 1]:  # it does not reach into the next name
                parts[names[index]].append(part)
                at = text.find(part, ends[index + 1])
            else:
                at = text.find(part, at + 1)
    return parts
