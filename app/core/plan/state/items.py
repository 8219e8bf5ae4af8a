"""The items of a context: visible events in their shown form, and the rounds that their units make."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from app.core import dataclass, field, replace
from app.core.lexicon.identifiers import identifiers
from app.core.log.event import Block, Event, content_text
from app.core.log.events import ASSISTANT_SIDE, EventType, Json, canonical_json
from app.core.plan.state import wording
from app.core.plan.state.frontier import Stub
from app.core.plan.state.wording import Limits


@dataclass(frozen=True, slots=True)
class Item:
    """One visible event and the tokens it takes as shown; `stub` is None if it is shown verbatim."""

    event: Event
    tokens: int
    stub: Stub | None = None
    _found: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def names(self) -> Collection[str]:
        """Return the identifiers visible in the item as shown; those of a stub's text are extracted only once."""
        stub = self.stub
        if stub is None:
            return self.event.names
        if not self.shown:
            return ()
        if not stub.text and self.event.type is not EventType.TOOL_CALL:
            return stub.keeps
        if self._found is None:
            words = stub.text or canonical_json(self.block().arguments)
            object.__setattr__(self, "_found", tuple(identifiers(words)))
        return self._found or ()

    @property
    def shown(self) -> bool:
        """Whether any part of the event is shown."""
        return self.stub is None or self.stub.tokens > 0

    @property
    def has_reasoning(self) -> bool:
        """Whether the item shows a model's reasoning."""
        return self.event.has_reasoning and (self.stub is None or self.stub.chars > 0)

    def without_unshown(self) -> "Item":
        """Return the item without its event's body if a stub shows nothing of it; the same object if unchanged."""
        if self.stub is None or self.stub.chars or self.event.body is None:
            return self
        return replace(self, event=replace(self.event, body=None, chars=0))

    def block(self) -> Block:
        """Return the block that shows the item."""
        event, stub = self.event, self.stub
        if stub is None:
            return event.block
        if stub.text:
            text = stub.text
        elif event.type is EventType.TOOL_CALL:
            return replace(event.block, arguments=_arguments(event, stub))
        elif stub.chars:
            text = wording.shortened(content_text(event.block.content), stub.chars, event.seq, recall=stub.recall)
        else:
            tokens = stub.tokens + stub.saved
            text = wording.stub(event, stub.keeps, tokens, recall=stub.recall, outcome=stub.outcome)
        native = event.block.native if stub.chars else None
        return replace(event.block, content=text, native=native, replaced=True)


def _arguments(event: Event, stub: Stub) -> dict[str, Json]:
    if not stub.limits:
        return wording.shortened_arguments(event.arguments, event.seq, recall=stub.recall)
    limits = Limits(stub.chars, *stub.limits)
    return wording.limited_arguments(event.arguments, limits, event.seq, recall=stub.recall)


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

    `seqs` are the first seqs of the model's replies; a unit of the model that directly follows one without results
    belongs to the same reply. `last` is the first seq of the model's last unit; `ends`: that unit is the last and has
    no results. `tokens` are those of all units, `read_tokens` the sum over all replies of the tokens before each.

    `late` is the seq of the last late result, `replied_at` the time of the last reply. `pauses` are the seconds between
    a reply and the one before it, with the reply's seq, in order, without those that a later pause equals or exceeds.
    """

    firsts: tuple[int, ...] = ()
    tokens_before: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    tokens: int = 0
    read_tokens: int = 0
    late: int = 0
    last: int = 0
    ends: bool = False
    replied_at: float | None = None
    pauses: tuple[tuple[float, int], ...] = ()

    def extend(self, units: Iterable[UnitSize]) -> "Rounds":
        """Return the rounds after appending these units."""
        added = list(units)
        in_front: list[int] = []
        replies: list[Event] = []
        tokens, read, last, ends = self.tokens, self.read_tokens, self.last, self.ends
        at, pauses = self.replied_at, list(self.pauses)
        for unit in added:
            in_front.append(tokens)
            models = unit.first.type in ASSISTANT_SIDE
            if models and not ends:
                read += tokens
                replies.append(unit.first)
                while at is not None and pauses and pauses[-1][0] <= unit.first.at - at:
                    pauses.pop()
                if at is not None:
                    pauses.append((unit.first.at - at, unit.first.seq))
                at = unit.first.at
            last = unit.first.seq if models else last
            ends = models and not unit.results
            tokens += unit.tokens
        return Rounds(
            firsts=self.firsts + tuple([unit.first.seq for unit in added]),
            tokens_before=self.tokens_before + tuple(in_front),
            seqs=self.seqs + tuple([event.seq for event in replies]),
            tokens=tokens,
            read_tokens=read,
            late=max([self.late, *[unit.late for unit in added]]),
            last=last,
            ends=ends,
            replied_at=at,
            pauses=tuple(pauses),
        )

    def reweighed(self, added: Mapping[int, int]) -> "Rounds":
        """Return the rounds after some units have grown: `added` maps the positions of units to the tokens they gain.

        A change of the unit that would come next is ignored: `rounds_before` leaves out the context's last unit.
        """
        before: list[int] = []
        start, more, read = 0, 0, self.read_tokens
        for at in sorted(added.keys() - {len(self.firsts)}):
            before += [tokens + more for tokens in self.tokens_before[start : at + 1]]
            read += added[at] * (len(self.seqs) - bisect_right(self.seqs, self.firsts[at]))
            more, start = more + added[at], at + 1
        before += [tokens + more for tokens in self.tokens_before[start:]]
        return replace(self, tokens_before=tuple(before), tokens=self.tokens + more, read_tokens=read)
