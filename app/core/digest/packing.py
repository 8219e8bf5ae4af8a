"""Names put into little room: those that are worth most for their length, none of them twice."""

import math
from collections.abc import Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import Final

LENGTH_COUNTS: Final = 0.8
"""Worth is divided by length to this power: measured, between 0.6 and 0.9 the outcome is the same."""


class Packing:
    """Names with what each is worth. One that is part of another stands verbatim within it, and need not be repeated.

    So a full path is worth what its relative forms are worth as well, and a dotted name what its parts are. Takes time
    quadratic in the number of names.
    """

    def __init__(self, worth: Mapping[str, float], before: str, listed: Set[str] = frozenset()) -> None:
        """`before` is the text in front of the names: what stands in it is left out, but for `listed` names."""
        self._worth = {name: weight for name, weight in worth.items() if name in listed or name not in before}
        names = list(self._worth)
        self._parts = {name: tuple(part for part in names if part in name) for name in names}
        self._wholes: dict[str, list[str]] = {}
        for name, parts in self._parts.items():
            for part in parts:
                self._wholes.setdefault(part, []).append(name)

    def best(self, chars: int) -> Sequence[str]:
        """Names in at most `chars` characters, a space between them counted, the best first."""
        told: set[str] = set()
        chosen: dict[str, None] = {}
        waiting = [(-self._density(name, told, chosen), at, name) for at, name in enumerate(self._worth)]
        places = {name: at for _, at, name in waiting}
        heapify(waiting)
        while waiting:
            before, at, name = heappop(waiting)
            cost = self._cost(name, chosen)
            if name in told or cost > chars + 1:
                continue
            density = -self._density(name, told, chosen)
            if density > before:
                # Some of its parts stand within a name chosen since.
                heappush(waiting, (density, at, name))
                continue
            chars -= cost
            for part in self._parts[name]:
                chosen.pop(part, None)
            chosen[name] = None
            told.update(self._parts[name])
            for whole in self._wholes[name]:
                # It would take the place of this one, so that it costs less now.
                if whole not in told:
                    heappush(waiting, (-self._density(whole, told, chosen), places[whole], whole))
        return list(chosen)

    def _cost(self, name: str, chosen: Mapping[str, None]) -> int:
        """The characters it takes more than those of its parts that it takes the place of."""
        return len(name) + 1 - sum(len(part) + 1 for part in self._parts[name] if part in chosen)

    def _density(self, name: str, told: Set[str], chosen: Mapping[str, None]) -> float:
        worth = math.fsum(self._worth[part] for part in self._parts[name] if part not in told)
        return worth / math.pow(max(1, self._cost(name, chosen)), LENGTH_COUNTS)
