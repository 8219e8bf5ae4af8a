"""Hiding, showing, pinning: which of what was asked for becomes a decision, and why the rest is refused. Pure.

Each item is decided by itself: an agent that hides ten results learns that one of them may not go, and the other nine
are gone. In which order they were given does not matter: unpinned first, then shown, hidden, pinned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.context.context import Context, Item
from app.core.plan.context.frontier import Frontier
from app.core.plan.reducers.economics import worth
from app.core.plan.reducers.visibility import NewestDecision, fixed_seqs, hidden_stubs
from app.core.policy.evictions import VisibilityRules
from app.core.recall.search import paths
from app.core.render.arrange import arrange
from app.core.render.breakpoints import round_ends, round_points
from app.core.tokens.budget import Budget
from app.core.tokens.cache_profiles import CacheProfile

ITEMS_MAX: Final = 1_000
PATH_CHARS_MAX: Final = 1_024
REPLACEMENT_CHARS_MAX: Final = 2_000
"""What stands for a hidden event is no burden that would have to be reduced in its turn."""

Action = Literal["hide", "show", "pin", "unpin"]
Reason = Literal[
    "unknown",
    "protocol",
    "open_call",
    "protected",
    "hidden",
    "folded",
    "dropped",
    "too_old",
    "not_worth_it",
    "no_room",
]


@dataclass(frozen=True, slots=True)
class Target:
    """One event by its seq, or all that are about a path."""

    seq: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Hide:
    """What is to be hidden, and what is shown in its place."""

    target: Target
    replacement: str | None = None


@dataclass(frozen=True, slots=True)
class VisibilityRequest:
    """`force`: also what the policy finds too old or not worth its price."""

    hide: tuple[Hide, ...] = ()
    show: tuple[Target, ...] = ()
    pin: tuple[Target, ...] = ()
    unpin: tuple[Target, ...] = ()
    force: bool = False


@dataclass(frozen=True, slots=True)
class VisibilityInput:
    """A view as it stands: its context and state before anything more is evicted, and what was decided before.

    `paths` are those of events whose bodies were not read. `warm`: the provider holds a prefix of the context.
    """

    context: Context
    state: Frontier
    decided: tuple[NewestDecision, ...]
    pinned: frozenset[int]
    head: int
    budget: Budget
    rules: VisibilityRules
    cache: CacheProfile
    warm: bool
    paths: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VisibilityDecision:
    """What is recorded of an event; `path` is the one it is about."""

    action: Action
    seq: int
    replacement: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was asked for in vain, and why."""

    action: Action
    target: Target
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class VisibilityOutcome:
    """`decisions` is only what changes something; the seqs are all that are now as they were asked to be."""

    decisions: tuple[VisibilityDecision, ...]
    hidden: tuple[int, ...]
    shown: tuple[int, ...]
    pinned: tuple[int, ...]
    unpinned: tuple[int, ...]
    refused: tuple[Refusal, ...]


def decide(asked: VisibilityRequest, stands: VisibilityInput) -> VisibilityOutcome:
    """What becomes of a request."""
    desk = _VisibilityDecider(stands, asked.force)
    done = {
        "unpin": desk.unpin(asked.unpin),
        "show": desk.show(asked.show),
        "hide": desk.hide(asked.hide),
        "pin": desk.pin(asked.pin),
    }
    hidden, shown, pinned, unpinned = (tuple(sorted(done[name])) for name in ("hide", "show", "pin", "unpin"))
    return VisibilityOutcome(tuple(desk.decisions), hidden, shown, pinned, unpinned, tuple(desk.refused))


class _VisibilityDecider:
    """The decisions of one request as they are made, each on top of those before it."""

    def __init__(self, stands: VisibilityInput, force: bool) -> None:
        self._stands = stands
        self._force = force
        self._items = {item.event.seq: item for item in stands.context.items}
        self._calls = {seq: item for seq, item in self._items.items() if item.event.type is EventType.TOOL_CALL}
        self._results = {i.event.call_seq: i for i in stands.context.items if i.event.type is EventType.TOOL_RESULT}
        self._hidden = {one.seq: one for one in stands.decided if one.hidden}
        self._pinned = set(stands.pinned)
        self._fixed = fixed_seqs(stands.context)
        self._room = stands.budget.trigger - stands.context.tokens
        self.decisions: list[VisibilityDecision] = []
        self.refused: list[Refusal] = []

    def unpin(self, targets: Iterable[Target]) -> set[int]:
        """What is not pinned any more."""
        done: set[int] = set()
        for target in targets:
            if target.seq is not None and not 1 <= target.seq <= self._stands.head:
                self._refuse("unpin", target, "unknown", f"the session has no event {target.seq}")
                continue
            done.update([target.seq] if target.seq is not None else self._about("unpin", target))
        self.decisions += [VisibilityDecision("unpin", seq) for seq in sorted(done & self._pinned)]
        self._pinned -= done
        return done

    def show(self, targets: Iterable[Target]) -> set[int]:
        """What is shown as it was logged."""
        done: set[int] = set()
        for target, item in self._named("show", targets):
            seq = item.event.seq
            if seq in done or not self._has_room("show", target, item):
                continue
            done.add(seq)
            if seq in self._hidden or item.stub is not None:
                self._hidden.pop(seq, None)
                self.decisions.append(VisibilityDecision("show", seq))
        return done

    def pin(self, targets: Iterable[Target]) -> set[int]:
        """What stays whatever the budget says."""
        done: set[int] = set()
        for target, item in self._named("pin", targets):
            seq = item.event.seq
            if seq in self._hidden:
                self._refuse("pin", target, "hidden", f"event {seq} is hidden: show it first", seq)
            elif seq not in done and self._has_room("pin", target, item):
                done.add(seq)
        self.decisions += [VisibilityDecision("pin", seq) for seq in sorted(done - self._pinned)]
        self._pinned |= done
        return done

    def hide(self, hides: Sequence[Hide]) -> set[int]:
        """What is not shown any more, or by its replacement only."""
        wanted: dict[int, tuple[Target, str | None]] = {}
        for one in hides:
            words = one.replacement if one.replacement and one.replacement.strip() else None
            wanted |= {item.event.seq: (one.target, words) for _, item in self._named("hide", [one.target])}
        going: dict[int, VisibilityDecision] = {}
        for seq, (target, words) in wanted.items():
            if seq not in self._calls and self._may_go(target, self._items[seq].event):
                going[seq] = VisibilityDecision("hide", seq, words, self._path(self._items[seq].event))
        going = self._affordable(wanted, going)
        self._one_speaks_for_its_path(going)
        after = self._after(going)
        for seq, (target, _) in wanted.items():
            if seq in self._calls and self._goes_with_result(target, self._items[seq].event, after):
                going[seq] = VisibilityDecision("hide", seq, None, self._path(self._items[seq].event))
        self.decisions += [one for one in going.values() if self._changes(one)]
        self._hidden = self._after(going)
        return going.keys() & wanted.keys()

    def _may_go(self, target: Target, event: Event) -> bool:
        """Whether an event other than a call may be hidden at all; refused where not."""
        if event.seq in self._pinned:
            self._refuse("hide", target, "protected", f"event {event.seq} is pinned", event.seq)
        elif event.type is EventType.USER_MESSAGE and event.turn == self._stands.context.turn:
            self._refuse("hide", target, "protected", f"event {event.seq} is what the running turn is about", event.seq)
        elif event.reasons:
            self._refuse("hide", target, "protocol", f"event {event.seq} carries a model's reasoning", event.seq)
        else:
            return True
        return False

    def _goes_with_result(self, target: Target, call: Event, after: Mapping[int, NewestDecision]) -> bool:
        """Whether a call may be hidden: only where nothing is shown of its result."""
        seq = call.seq
        if seq in self._stands.context.open_calls:
            self._refuse("hide", target, "open_call", f"call {seq} has no result yet", seq)
        elif seq in self._pinned:
            self._refuse("hide", target, "protected", f"event {seq} is pinned", seq)
        else:
            result = after.get(self._results[seq].event.seq)
            if result is not None and not result.replacement and seq not in self._fixed:
                return True
            if target.path is None:
                self._refuse("hide", target, "protocol", f"call {seq} stays while something stands for its result", seq)
        return False

    def _affordable(
        self, wanted: Mapping[int, tuple[Target, str | None]], going: dict[int, VisibilityDecision]
    ) -> dict[int, VisibilityDecision]:
        """Of what may go, what the policy lets go; the rest is refused."""
        changed = [seq for seq, one in going.items() if self._changes(one)]
        if self._force or not changed:
            return going
        rules = self._stands.rules
        kept: dict[int, tuple[Reason, str]] = {}
        if rules.hide == "tail":
            early = _up_to_pre_tail(self._stands)
            kept |= {s: ("too_old", f"event {s} is in front of a cache breakpoint") for s in changed if s in early}
        if rules.hide_tail_tokens_max is not None:
            behind = self._behind()
            most = self._stands.budget.own(rules.hide_tail_tokens_max)
            kept |= {
                s: ("too_old", f"more than {rules.hide_tail_tokens_max} tokens stand behind event {s}")
                for s in changed
                if behind[s] > most
            }
        if rules.hide == "economic" and self._stands.warm:
            start = self._worth_from(going, changed)
            kept |= {
                s: ("not_worth_it", f"hiding event {s} costs more cache than it saves: hide it when that is cold")
                for s in changed
                if start is None or s < start
            }
        for seq, (reason, detail) in kept.items():
            self._refuse("hide", wanted[seq][0], reason, detail, seq)
        return {seq: one for seq, one in going.items() if seq not in kept}

    def _worth_from(self, going: Mapping[int, VisibilityDecision], changed: Iterable[int]) -> int | None:
        context = self._stands.context
        stubs = hidden_stubs(context, self._after(going).values())
        shown = {seq: stubs[seq].tokens if seq in stubs else 0 for seq in changed}
        saves = {seq: self._items[seq].tokens - shown[seq] for seq in changed}
        return worth(context, saves, self._stands.cache)

    def _behind(self) -> dict[int, int]:
        """What stands behind each event."""
        behind: dict[int, int] = {}
        total = 0
        for item in reversed(self._stands.context.items):
            behind[item.event.seq] = total
            total += item.tokens
        return behind

    def _one_speaks_for_its_path(self, going: dict[int, VisibilityDecision]) -> None:
        """Of what is hidden of one path only the first says its replacement."""
        touched = {one.path for one in going.values() if one.path is not None}
        spoken: set[str] = set()
        for seq, one in sorted(self._after(going).items()):
            if one.path not in touched or not one.replacement or one.path is None or seq not in self._items:
                continue
            if one.path in spoken:
                going[seq] = VisibilityDecision("hide", seq, None, one.path)
            spoken.add(one.path)

    def _after(self, going: Mapping[int, VisibilityDecision]) -> dict[int, NewestDecision]:
        """All that is hidden once that is decided."""
        new = {one.seq: NewestDecision(one.seq, 0, True, one.replacement, one.path) for one in going.values()}
        return self._hidden | new

    def _changes(self, one: VisibilityDecision) -> bool:
        before = self._hidden.get(one.seq)
        return before is None or (before.replacement or None) != one.replacement

    def _has_room(self, action: Action, target: Target, item: Item) -> bool:
        """Whether an event can be shown whole, its room then taken; refused where not."""
        needs = item.event.tokens - item.tokens
        if needs > 0 and needs > self._room:
            detail = f"event {item.event.seq} takes {item.event.tokens} tokens: recall it instead"
            self._refuse(action, target, "no_room", detail, item.event.seq)
            return False
        self._room -= needs
        self._items[item.event.seq] = replace(item, tokens=item.event.tokens)
        return True

    def _named(self, action: Action, targets: Iterable[Target]) -> list[tuple[Target, Item]]:
        """The items that targets name, as they stand by now; what names none is refused."""
        found: list[tuple[Target, Item]] = []
        for target in targets:
            if target.seq is None:
                found += [(target, self._items[seq]) for seq in self._about(action, target)]
            elif target.seq in self._items:
                found.append((target, self._items[target.seq]))
            else:
                self._refuse(action, target, *_absence(target.seq, self._stands))
        return found

    def _about(self, action: Action, target: Target) -> list[int]:
        """The seqs of all that is in the context about a path; refused where there is nothing."""
        path = target.path or ""
        seqs = [seq for seq, item in self._items.items() if path in self._paths(item.event)]
        if not seqs:
            self._refuse(action, target, "unknown", f"nothing in this context is about {path!r}")
        return seqs

    def _paths(self, event: Event) -> tuple[str, ...]:
        """The paths an event is about, a result's those of its call too; what is hidden is known by the one it had."""
        hidden = self._hidden.get(event.seq)
        known = hidden.path if hidden is not None and hidden.path else self._stands.paths.get(event.seq)
        call = self._calls.get(event.call_seq or 0)
        own = paths(event) if known is None else (known,)
        return own + (paths(call.event) if call is not None else ())

    def _path(self, event: Event) -> str | None:
        return next(iter(self._paths(event)), None)

    def _refuse(self, action: Action, target: Target, reason: Reason, detail: str, seq: int | None = None) -> None:
        named = target if seq is None else Target(seq, target.path)
        self.refused.append(Refusal(action, named, reason, detail))


def _absence(seq: int, stands: VisibilityInput) -> tuple[Reason, str]:
    """Why an event is not in the context."""
    state = stands.state
    if not 1 <= seq <= stands.head:
        return "unknown", f"the session has no event {seq}"
    if any(event.seq == seq for event in stands.context.prefix) or any(one.seq == seq for one in state.superseded):
        return "protocol", f"event {seq} is a system prompt or a tool list"
    if seq <= state.folded_to:
        return "folded", f"a summary stands for event {seq}: recall it"
    if any(drop.from_seq <= seq <= drop.to_seq for drop in state.drops):
        return "dropped", f"event {seq} has been left out: recall it"
    return "unknown", f"event {seq} is not in this view"


def _up_to_pre_tail(stands: VisibilityInput) -> frozenset[int]:
    """The seqs up to the cache breakpoint that stands some rounds before the tail."""
    blocks = [block for block in arrange(stands.context, stands.state).blocks if not block.ephemeral]
    points = round_points(round_ends(blocks), None, len(blocks))
    end = next((index for index, kind in points if kind == "pre_tail"), -1)
    return frozenset(block.seq for block in blocks[: end + 1])
