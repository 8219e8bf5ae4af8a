"""A session's visible conversation under a frontier, with the tokens of each item."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, TypeVar

from app.core import dataclass, replace
from app.core.log.event import Block, Event, Kind, lazy
from app.core.log.events import ASSISTANT_SIDE, EventType
from app.core.plan.state import wording
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item, Rounds, UnitSize
from app.core.plan.state.results import PairedResult, Repeats, WorkedFiles
from app.core.tokens.counter import REQUEST_TOKENS, Counter

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Unread:
    """The part of the log up to `to_seq`. Only its events that must stay were read; the rest is folded or dropped.

    `turns` counts turns begun in it. `files` are its newest modified files that no summary covers, as (seq, path).
    """

    to_seq: int = 0
    tokens: int = 0
    turns: int = 0
    files: tuple[tuple[int, str], ...] = ()


NOTHING_UNREAD: Final = Unread()


@dataclass(frozen=True)
class Context:
    """The content to send: `items` in log order and all that surrounds them.

    `tokens` counts all of it, and is compared with the trigger and the target. `prefix` holds the effective system
    prompts and tools, `summaries` the blocks that replace the oldest part of the log. `ephemeral_tokens` counts content
    injected after the conversation. `shown_again` holds the seqs that were decided to be shown again.
    """

    items: tuple[Item, ...]
    prefix: tuple[Event, ...]
    turn: int
    counter: Counter
    note_tokens: int = 0
    ephemeral_tokens: int = 0
    unread: Unread = NOTHING_UNREAD
    summaries: tuple[Block, ...] = ()
    summary_tokens: int = 0
    shown_again: frozenset[int] = frozenset()

    def with_stubs(self, stubs: Mapping[int, Stub]) -> "Context":
        """Return the context with these stubs, by seq, in place of the items of the same events."""
        return self._with(
            {
                seq: Item(item.event, stub.tokens, stub)
                for seq, stub in stubs.items()
                if (item := self.item(seq)) is not None
            }
        )

    def with_nothing_unread(self) -> "Context":
        """Return the context of an epoch that folds or drops the unread part; the same object if nothing was unread."""
        if self.unread is NOTHING_UNREAD:
            return self
        after = replace(self, unread=NOTHING_UNREAD)
        vars(after).update(vars(self) | {"unread": NOTHING_UNREAD})
        return after

    def item(self, seq: int) -> Item | None:
        """Return the item of event `seq`; None if there is none."""
        at = bisect_left(self.seqs, seq)
        return self.items[at] if at < len(self.seqs) and self.seqs[at] == seq else None

    def without_unshown(self) -> "Context":
        """Return the context without the bodies of events that stubs hide entirely; the same object if unchanged."""
        bare = ((item.event.seq, item, item.without_unshown()) for item in self.items if item.stub is not None)
        return self._with({seq: after for seq, before, after in bare if after is not before})

    def _with(self, new: Mapping[int, Item]) -> "Context":
        """Return the context with these items in place of its own; units without any of them are reused."""
        if not new:
            return self
        items = list(self.items)
        history, current = self.item_tokens
        same_rounds = True
        for seq, item in new.items():
            at = bisect_left(self.seqs, seq)
            before, items[at] = items[at], item
            same_rounds = same_rounds and before.has_reasoning == item.has_reasoning
            if item.event.turn == self.turn:
                current += item.tokens - before.tokens
            else:
                history += item.tokens - before.tokens
        after = replace(self, items=tuple(items))
        known = vars(after)
        known.update(seqs=self.seqs, item_tokens=(history, current), open_calls=self.open_calls)
        if "worked_files" in vars(self):
            known["worked_files"] = self.worked_files
        changed = _with_items(self.units, new)
        if "paired_results" in vars(self):
            known["paired_results"] = _with_results(self.paired_results, new, changed.values())
        if same_rounds:
            known["units"] = _replaced(self.units, changed)
            if "rounds_before" in vars(self):
                added = {at: unit.size.tokens - self.units[at].size.tokens for at, unit in changed.items()}
                known["rounds_before"] = self.rounds_before.reweighed(added)
        return after

    @lazy
    def seqs(self) -> tuple[int, ...]:
        """The seqs of the items, which are in their order."""
        return tuple([item.event.seq for item in self.items])

    @lazy
    def units(self) -> "tuple[Unit, ...]":
        """The items grouped into units."""
        return units(self.items)

    @lazy
    def rounds_before(self) -> Rounds:
        """The rounds of all units but the last, which may still grow."""
        return Rounds().extend(unit.size for unit in self.units[:-1])

    @lazy
    def rounds(self) -> Rounds:
        """The positions of the units and of the model's replies."""
        return self.rounds_before.extend(unit.size for unit in self.units[-1:])

    @lazy
    def paired_results(self) -> tuple[PairedResult, ...]:
        """The tool results in log order, each with its call."""
        calls = {i.event.seq: i for i in self.items if i.event.type is EventType.TOOL_CALL}
        found = (i for i in self.items if i.event.type is EventType.TOOL_RESULT)
        return tuple(PairedResult(item, calls.get(item.event.call_seq or 0)) for item in found)

    @lazy
    def repeats(self) -> Repeats:
        """The results that later ones repeat."""
        return Repeats({}, {}).extend(self.paired_results)

    @lazy
    def worked_files(self) -> WorkedFiles:
        """The events that show the newest content of each file."""
        return WorkedFiles().extend(self.paired_results)

    @lazy
    def pinned_stubs(self) -> tuple[Item, ...]:
        """The pinned items that are not shown as they were logged."""
        return tuple(item for item in self.items if item.stub is not None and item.event.pinned)

    @property
    def turn_seq(self) -> int:
        """The seq of the running turn's first item; 0 without one."""
        index = bisect_left(self.items, self.turn, key=lambda item: item.event.turn)
        return self.items[index].event.seq if index < len(self.items) else 0

    @lazy
    def perishable(self) -> tuple[Item, ...]:
        """The items whose author set an expiry, or a key by which newer events supersede older ones."""
        return tuple(item for item in self.items if item.event.expires)

    @lazy
    def open_calls(self) -> frozenset[int]:
        """Seqs of visible calls without a visible result."""
        answered = {i.event.call_seq for i in self.items if i.event.type is EventType.TOOL_RESULT}
        return frozenset(
            i.event.seq for i in self.items if i.event.type is EventType.TOOL_CALL and i.event.seq not in answered
        )

    @lazy
    def protected(self) -> frozenset[int]:
        """The seqs that no reducer may drop (I9): pinned events with their rounds, rounds with an open call, and the
        running turn's user message."""
        stays: set[int] = set()
        for unit in self.units:
            first = unit.items[0].event
            users_turn = first.type is EventType.USER_MESSAGE and first.turn == self.turn
            if users_turn or unit.open_calls or any(i.event.pinned for i in unit.all_items):
                stays.update(i.event.seq for i in unit.all_items)
        return frozenset(stays)

    @lazy
    def item_tokens(self) -> tuple[int, int]:
        """Tokens of the items of earlier turns, and of the running turn."""
        history = current = 0
        for item in self.items:
            if item.event.turn == self.turn:
                current += item.tokens
            else:
                history += item.tokens
        return history, current

    @lazy
    def by_source(self) -> Mapping[str, int]:
        """Tokens by source; their sum is `tokens`."""
        sums = dict.fromkeys(("tools", "system", "summaries", "history", "current_turn", "ephemeral"), 0)
        for event in self.prefix:
            sums["tools" if event.type is EventType.TOOLS else "system"] += event.tokens
        sums["summaries"] = self.summary_tokens
        sums["history"], sums["current_turn"] = self.item_tokens
        pending = len(self.open_calls) * self.counter.result(wording.PENDING) if self.open_calls else 0
        sums["history"] += self.note_tokens
        sums["current_turn"] += pending
        sums["ephemeral"] += self.ephemeral_tokens + REQUEST_TOKENS
        return sums

    @lazy
    def tokens(self) -> int:
        """The estimated tokens of the whole context."""
        return sum(self.by_source.values())


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of a reducer: the context, and the frontier that produces it."""

    context: Context
    state: Frontier


@dataclass(frozen=True)
class Unit:
    """Items that stay or go together: a round (the assistant's items and all their results), or any other single item.

    `late_results` holds the seqs of results that arrived after a later unit had begun.
    """

    items: tuple[Item, ...]
    results: tuple[Item, ...] = ()
    late_results: tuple[int, ...] = ()

    @lazy
    def all_items(self) -> tuple[Item, ...]:
        """The items, then the results."""
        return self.items + self.results

    @property
    def size(self) -> UnitSize:
        """The unit's position and size."""
        tokens, late = sum([item.tokens for item in (*self.items, *self.results)]), self.late_results[-1:]
        return UnitSize(self.items[0].event, tokens, late[0] if late else 0, bool(self.results))

    def with_items(self, new: Mapping[int, Item]) -> "Unit":
        """Return the unit with these items in place of those of the same events; the same object if nothing changes."""
        if not any(item.event.seq in new for item in self.all_items):
            return self
        items = tuple(new.get(item.event.seq, item) for item in self.items)
        return Unit(items, tuple(new.get(item.event.seq, item) for item in self.results), self.late_results)

    @property
    def seq(self) -> int:
        """The seq of the first item."""
        return self.items[0].event.seq

    @property
    def turn(self) -> int:
        """The turn of the first item."""
        return self.items[0].event.turn

    @lazy
    def open_calls(self) -> tuple[Event, ...]:
        """Calls without a result, in order."""
        answered = {item.event.call_seq for item in self.results}
        return tuple(i.event for i in self.items if i.event.type is EventType.TOOL_CALL and i.event.seq not in answered)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that show the unit, then a pending result for each open call."""
        items = (item for item in (*self.items, *self.results) if item.shown)
        shown = [item.block() if item.stub else item.event.block for item in items]
        for call in self.open_calls:
            pending = replace(call.block, kind=Kind.RESULT, content=wording.PENDING, arguments=None, native=None)
            shown.append(replace(pending, replaced=True))
        return tuple(shown)


def _with_items(units: "tuple[Unit, ...]", new: Mapping[int, Item]) -> "dict[int, Unit]":
    """Return the units that these items change, with the items in place of those of the same events, by position."""
    changed: dict[int, Unit] = {}
    for item in new.values():
        # A result is in the unit of its call, wherever the result comes in the log.
        at = bisect_right(units, item.event.call_seq or item.event.seq, key=lambda unit: unit.items[0].event.seq) - 1
        if at >= 0 and at not in changed and (unit := units[at].with_items(new)) is not units[at]:
            changed[at] = unit
    return changed


def _with_results(
    pairs: tuple[PairedResult, ...], new: Mapping[int, Item], changed: "Iterable[Unit]"
) -> tuple[PairedResult, ...]:
    """Return the results with these items in place of those of the same events; `changed` are the units with them."""
    results = [item for unit in changed for item in unit.results]
    results += [item for item in new.values() if item.event.type is EventType.TOOL_RESULT]
    places = {bisect_left(pairs, item.event.seq, key=attrgetter("result.event.seq")) for item in results}
    return _replaced(pairs, {at: pairs[at].with_items(new) for at in places})


def _replaced(before: tuple[_Value, ...], changed: Mapping[int, _Value]) -> tuple[_Value, ...]:
    """Return a tuple with the values at these positions replaced."""
    after = list(before)
    for at, value in changed.items():
        after[at] = value
    return tuple(after)


def _continues_round(last: Item, event: Event) -> bool:
    """Return whether the assistant's `event` joins the round of `last`: it is a call, or follows one or reasoning."""
    kind = last.event.type
    if kind not in ASSISTANT_SIDE:
        return False
    return kind is EventType.TOOL_CALL or event.type is EventType.TOOL_CALL or last.has_reasoning


def units(items: Iterable[Item]) -> tuple[Unit, ...]:
    """Group items into units, ordered by their first seq. A result whose call is not among the items is in no unit."""
    groups: list[tuple[list[Item], list[Item], list[int]]] = []
    group_of_call: dict[int, int] = {}
    for item in items:
        event = item.event
        if event.type is EventType.TOOL_RESULT:
            if event.call_seq in group_of_call:
                index = group_of_call[event.call_seq]
                groups[index][1].append(item)
                if index != len(groups) - 1:
                    groups[index][2].append(event.seq)
            continue
        assistant = event.type in ASSISTANT_SIDE
        extends = assistant and groups and not groups[-1][1] and _continues_round(groups[-1][0][-1], event)
        if not extends:
            groups.append(([], [], []))
        groups[-1][0].append(item)
        if event.type is EventType.TOOL_CALL:
            group_of_call[event.seq] = len(groups) - 1
    return tuple(Unit(tuple(members), tuple(results), tuple(late)) for members, results, late in groups)
