"""The positions and sizes of a context's units, and of the model's answers among them."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from app.core.log.event import Event
from app.core.log.events import ASSISTANT_SIDE


class UnitSize(NamedTuple):
    """The position and size of a unit: its first event, the tokens of all its items, the seq of its last late result (0
    without one), and whether it has results."""

    first: Event
    tokens: int
    late: int
    results: bool


@dataclass(frozen=True, slots=True)
class Rounds:
    """The units of a context in order: `firsts` are their first seqs, `tokens_before` the tokens of all units before
    each.

    `seqs` are the first seqs of the model's answers; consecutive units of the model are one answer. `last` is the first
    seq of the last such unit, `ends` whether it is the last unit and has no results. `shown` are the tokens of all
    units, `read` the sum over all answers of the tokens before each. `late` is the seq of the last late result.

    `answered_at` is the time of the last answer. `pauses` are the seconds between an answer and the one before it, with
    the answer's seq, in order, without those that a later pause equals or exceeds.
    """

    firsts: tuple[int, ...] = ()
    tokens_before: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    shown: int = 0
    read: int = 0
    late: int = 0
    last: int = 0
    ends: bool = False
    answered_at: float | None = None
    pauses: tuple[tuple[float, int], ...] = ()

    def extend(self, units: Iterable[UnitSize]) -> "Rounds":
        """Return the rounds after appending these units."""
        added = list(units)
        in_front: list[int] = []
        answers: list[Event] = []
        shown, read, last, ends = self.shown, self.read, self.last, self.ends
        at, pauses = self.answered_at, list(self.pauses)
        for unit in added:
            in_front.append(shown)
            models = unit.first.type in ASSISTANT_SIDE
            if models and not ends:
                read += shown
                answers.append(unit.first)
                while at is not None and pauses and pauses[-1][0] <= unit.first.at - at:
                    pauses.pop()
                if at is not None:
                    pauses.append((unit.first.at - at, unit.first.seq))
                at = unit.first.at
            last = unit.first.seq if models else last
            ends = models and not unit.results
            shown += unit.tokens
        return Rounds(
            firsts=self.firsts + tuple([unit.first.seq for unit in added]),
            tokens_before=self.tokens_before + tuple(in_front),
            seqs=self.seqs + tuple([event.seq for event in answers]),
            shown=shown,
            read=read,
            late=max([self.late, *[unit.late for unit in added]]),
            last=last,
            ends=ends,
            answered_at=at,
            pauses=tuple(pauses),
        )

    def reweighed(self, added: Mapping[int, int]) -> "Rounds":
        """Return the rounds after some units have grown: `added` maps the positions of units to the tokens they gain.

        The position after the last of these units is that of a unit which is not among them.
        """
        before: list[int] = []
        start = more = read = 0
        for at in sorted(added.keys() - {len(self.firsts)}):
            before += [tokens + more for tokens in self.tokens_before[start : at + 1]]
            read += added[at] * (len(self.seqs) - bisect_right(self.seqs, self.firsts[at]))
            more, start = more + added[at], at + 1
        before += [tokens + more for tokens in self.tokens_before[start:]]
        return replace(self, tokens_before=tuple(before), shown=self.shown + more, read=self.read + read)
