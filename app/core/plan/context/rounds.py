"""The positions of units and of the model's answers in a context, and the tokens that each answer has read."""

from collections.abc import Iterable
from dataclasses import dataclass
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

    `seqs` and `times` are the first seq and the time of each of the model's answers; consecutive units of the model are
    one answer. `last` is the first seq of the last such unit, `ends` whether it is the last unit and has no results.
    `shown` are the tokens of all units, `read` the sum over all answers of the tokens before each. `late` is the seq of
    the last late result.
    """

    firsts: tuple[int, ...] = ()
    tokens_before: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    shown: int = 0
    read: int = 0
    late: int = 0
    last: int = 0
    ends: bool = False

    def extend(self, units: Iterable[UnitSize]) -> "Rounds":
        """Return the rounds after appending these units."""
        added = list(units)
        in_front: list[int] = []
        answers: list[Event] = []
        shown, read, last, ends = self.shown, self.read, self.last, self.ends
        for unit in added:
            in_front.append(shown)
            models = unit.first.type in ASSISTANT_SIDE
            if models and not ends:
                read += shown
                answers.append(unit.first)
            last = unit.first.seq if models else last
            ends = models and not unit.results
            shown += unit.tokens
        return Rounds(
            firsts=self.firsts + tuple([unit.first.seq for unit in added]),
            tokens_before=self.tokens_before + tuple(in_front),
            seqs=self.seqs + tuple([event.seq for event in answers]),
            times=self.times + tuple([event.at for event in answers]),
            shown=shown,
            read=read,
            late=max([self.late, *[unit.late for unit in added]]),
            last=last,
            ends=ends,
        )
