"""Visibility requests: decisions to hide, show, pin or unpin events, and the reasons of refusals.

Each target is decided separately: if an agent hides ten results and one must stay, the other nine are hidden. The four
lists are decided in a fixed order: unpin, show, hide, pin. In a list, earlier targets get the room first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, Literal

from app.core.log.event import Event, paths
from app.core.log.events import EventType
from app.core.plan.reducers.economics import payoff_seq
from app.core.plan.reducers.visibility import NewestDecision, fixed_seqs, hidden_stubs
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.policy.groups import VisibilityRules
from app.core.render.breakpoints import round_ends, round_points
from app.core.render.request import arrange
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile

ITEMS_MAX: Final = 1_000
PATH_CHARS_MAX: Final = 1_024
REPLACEMENT_CHARS_MAX: Final = 2_000
"""Bounded so that a replacement never has to be reduced itself."""

Action = Literal["hide", "show", "pin", "unpin"]
Reason = Literal[
    "unknown", "protocol", "open_call", "protected", "hidden", "folded", "dropped", "too_old", "not_worth_it", "no_room"
]


@dataclass(frozen=True, slots=True)
class Target:
    """One event by its seq, or all events about a path; `replacement` is the text to show if it is hidden."""

    seq: int | None = None
    path: str | None = None
    replacement: str | None = None


@dataclass(frozen=True, slots=True)
class VisibilityRequest:
    """The targets to hide, show, pin and unpin. `force`: hide even events that the policy's rules would refuse."""

    hide: tuple[Target, ...] = ()
    show: tuple[Target, ...] = ()
    pin: tuple[Target, ...] = ()
    unpin: tuple[Target, ...] = ()
    force: bool = False


@dataclass(frozen=True, slots=True)
class VisibilityInput:
    """A view with its context and state before any further eviction, and the earlier decisions.

    `paths` has the paths of events whose bodies were not read. `warm`: the provider holds a prefix of the context.
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
    """A decision on one event, as recorded; `path` is the path that the event is about."""

    action: Action
    seq: int
    replacement: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused part of a request, and the reason."""

    action: Action
    target: Target
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class VisibilityOutcome:
    """The decisions that change something, the seqs that are now as requested, and the refusals."""

    decisions: tuple[VisibilityDecision, ...]
    hidden: tuple[int, ...]
    shown: tuple[int, ...]
    pinned: tuple[int, ...]
    unpinned: tuple[int, ...]
    refused: tuple[Refusal, ...]


def decide(request: VisibilityRequest, view: VisibilityInput) -> VisibilityOutcome:
    """Decide a request on a view."""
    decider = _VisibilityDecider(view, request.force)
    unpinned, shown = decider.unpin(request.unpin), decider.show(request.show)
    hidden, pinned = decider.hide(request.hide), decider.pin(request.pin)
    return VisibilityOutcome(
        decisions=tuple(decider.decisions),
        hidden=tuple(sorted(hidden)),
        shown=tuple(sorted(shown)),
        pinned=tuple(sorted(pinned)),
        unpinned=tuple(sorted(unpinned)),
        refused=tuple(decider.refused),
    )


class _VisibilityDecider:
    """The decisions of one request; each takes the ones before it into account."""

    def __init__(self, view: VisibilityInput, force: bool) -> None:
        self._view = view
        self._force = force
        self._items = {item.event.seq: item for item in view.context.items}
        self._calls = {seq: item for seq, item in self._items.items() if item.event.type is EventType.TOOL_CALL}
        self._results = {i.event.call_seq: i for i in view.context.items if i.event.type is EventType.TOOL_RESULT}
        self._hidden = {decision.seq: decision for decision in view.decided if decision.hidden}
        self._pinned = set(view.pinned)
        self._fixed = fixed_seqs(view.context)
        self._room = view.budget.trigger - view.context.tokens
        self.decisions: list[VisibilityDecision] = []
        self.refused: list[Refusal] = []

    def unpin(self, targets: Iterable[Target]) -> set[int]:
        """Decide on the targets to unpin and return the seqs that are not pinned now."""
        done: set[int] = set()
        for target in targets:
            if target.seq is not None and not 1 <= target.seq <= self._view.head:
                self._refuse("unpin", target, "unknown", f"the session has no event {target.seq}")
                continue
            done.update([target.seq] if target.seq is not None else self._seqs_about("unpin", target))
        self.decisions += [VisibilityDecision("unpin", seq) for seq in sorted(done & self._pinned)]
        self._pinned -= done
        return done

    def show(self, targets: Iterable[Target]) -> set[int]:
        """Decide on the targets to show and return the seqs that are shown verbatim now."""
        done: set[int] = set()
        for target, item in self._resolve("show", targets):
            seq = item.event.seq
            if seq in done or not self._has_room("show", target, item):
                continue
            done.add(seq)
            if seq in self._hidden or item.stub is not None:
                self._hidden.pop(seq, None)
                self.decisions.append(VisibilityDecision("show", seq))
        return done

    def pin(self, targets: Iterable[Target]) -> set[int]:
        """Decide on the targets to pin and return the seqs that are pinned now."""
        done: set[int] = set()
        for target, item in self._resolve("pin", targets):
            seq = item.event.seq
            if seq in self._hidden:
                self._refuse("pin", target, "hidden", f"event {seq} is hidden: show it first", seq)
            elif seq not in done and self._has_room("pin", target, item):
                done.add(seq)
        self.decisions += [VisibilityDecision("pin", seq) for seq in sorted(done - self._pinned)]
        self._pinned |= done
        return done

    def hide(self, targets: Iterable[Target]) -> set[int]:
        """Decide on the targets to hide and return the seqs that are hidden now, or shown by a replacement."""
        wanted = {item.event.seq: target for target, item in self._resolve("hide", targets)}
        hiding: dict[int, VisibilityDecision] = {}
        for seq, target in wanted.items():
            if seq not in self._calls and self._may_hide(target, self._items[seq].event):
                replacement = target.replacement if target.replacement and target.replacement.strip() else None
                hiding[seq] = VisibilityDecision("hide", seq, replacement, self._path(self._items[seq].event))
        hiding = self._allowed_by_policy(wanted, hiding)
        self._keep_one_replacement_per_path(hiding)
        after = self._hidden_after(hiding)
        for seq, target in wanted.items():
            if seq in self._calls and self._may_hide_call(target, self._items[seq].event, after):
                hiding[seq] = VisibilityDecision("hide", seq, None, self._path(self._items[seq].event))
        self.decisions += [decision for decision in hiding.values() if self._changes(decision)]
        self._hidden = self._hidden_after(hiding)
        return hiding.keys() & wanted.keys()

    def _may_hide(self, target: Target, event: Event) -> bool:
        """Return whether an event other than a call may be hidden at all; record a refusal if not."""
        if event.seq in self._pinned:
            self._refuse("hide", target, "protected", f"event {event.seq} is pinned", event.seq)
        elif event.type is EventType.USER_MESSAGE and event.turn == self._view.context.turn:
            self._refuse(
                "hide", target, "protected", f"event {event.seq} is the running turn's user message", event.seq
            )
        elif event.has_reasoning:
            self._refuse("hide", target, "protocol", f"event {event.seq} carries a model's reasoning", event.seq)
        else:
            return True
        return False

    def _may_hide_call(self, target: Target, call: Event, after: Mapping[int, NewestDecision]) -> bool:
        """Return whether a call may be hidden: its result is hidden without a replacement. Else record a refusal; if a
        path named the call, only for an open or pinned one."""
        seq = call.seq
        if seq in self._view.context.open_calls:
            self._refuse("hide", target, "open_call", f"call {seq} has no result yet", seq)
        elif seq in self._pinned:
            self._refuse("hide", target, "protected", f"event {seq} is pinned", seq)
        else:
            result = after.get(self._results[seq].event.seq)
            if result is not None and not result.replacement and seq not in self._fixed:
                return True
            if target.path is None:
                detail = f"call {seq} must be shown as long as its result, or a text in its place, is shown"
                self._refuse("hide", target, "protocol", detail, seq)
        return False

    def _allowed_by_policy(
        self, wanted: Mapping[int, Target], hiding: dict[int, VisibilityDecision]
    ) -> dict[int, VisibilityDecision]:
        """Return the part of `hiding` that the policy's rules allow; record a refusal for the rest."""
        changed = [seq for seq, decision in hiding.items() if self._changes(decision)]
        if self._force or not changed:
            return hiding
        rules = self._view.rules
        refused: dict[int, tuple[Reason, str]] = {}
        if rules.hide == "tail":
            early = _seqs_to_pre_tail(self._view)
            detail = "comes before the cache breakpoint of earlier rounds"
            refused |= {s: ("too_old", f"event {s} {detail}") for s in changed if s in early}
        if rules.hide_tail_tokens_max is not None:
            items = self._view.context.items[::-1]
            totals = accumulate((item.tokens for item in items), initial=0)
            after = {item.event.seq: total for item, total in zip(items, totals, strict=False)}
            most = self._view.budget.own(rules.hide_tail_tokens_max)
            refused |= {
                s: ("too_old", f"more than {rules.hide_tail_tokens_max} tokens follow event {s}")
                for s in changed
                if after[s] > most
            }
        if rules.hide == "economic" and self._view.warm:
            start = self._first_worth_hiding(hiding, changed)
            detail = "now rewrites more of the cache than it saves: hide it when the cache is cold"
            losing = [s for s in changed if start is None or s < start]
            refused |= {s: ("not_worth_it", f"hiding event {s} {detail}") for s in losing}
        for seq, (reason, detail) in refused.items():
            self._refuse("hide", wanted[seq], reason, detail, seq)
        return {seq: decision for seq, decision in hiding.items() if seq not in refused}

    def _first_worth_hiding(self, hiding: Mapping[int, VisibilityDecision], changed: Iterable[int]) -> int | None:
        context = self._view.context
        stubs = hidden_stubs(context, self._hidden_after(hiding).values())
        shown = {seq: stubs[seq].tokens if seq in stubs else 0 for seq in changed}
        saves = {seq: self._items[seq].tokens - shown[seq] for seq in changed}
        return payoff_seq(context, saves, self._view.cache)

    def _keep_one_replacement_per_path(self, hiding: dict[int, VisibilityDecision]) -> None:
        """Keep only the first replacement of all hidden events about one path."""
        touched = {one.path for one in hiding.values() if one.path is not None}
        replaced: set[str] = set()
        for seq, one in sorted(self._hidden_after(hiding).items()):
            if one.path not in touched or not one.replacement or one.path is None or seq not in self._items:
                continue
            if one.path in replaced:
                hiding[seq] = VisibilityDecision("hide", seq, None, one.path)
            replaced.add(one.path)

    def _hidden_after(self, hiding: Mapping[int, VisibilityDecision]) -> dict[int, NewestDecision]:
        """Return all hidden events by seq, with the decisions `hiding` applied."""
        new = {d.seq: NewestDecision(d.seq, 0, True, d.replacement, d.path) for d in hiding.values()}
        return self._hidden | new

    def _changes(self, decision: VisibilityDecision) -> bool:
        before = self._hidden.get(decision.seq)
        return before is None or (before.replacement or None) != decision.replacement

    def _has_room(self, action: Action, target: Target, item: Item) -> bool:
        """Return whether an event fits in full; take its room if so, else record a refusal."""
        needs = item.event.tokens - item.tokens
        if needs > 0 and needs > self._room:
            detail = f"event {item.event.seq} takes {item.event.tokens} tokens: recall it instead"
            self._refuse(action, target, "no_room", detail, item.event.seq)
            return False
        self._room -= needs
        self._items[item.event.seq] = replace(item, tokens=item.event.tokens)
        return True

    def _resolve(self, action: Action, targets: Iterable[Target]) -> list[tuple[Target, Item]]:
        """Return the current items that the targets name; record a refusal for a target that names none."""
        found: list[tuple[Target, Item]] = []
        for target in targets:
            if target.seq is None:
                found += [(target, self._items[seq]) for seq in self._seqs_about(action, target)]
            elif target.seq in self._items:
                found.append((target, self._items[target.seq]))
            else:
                self._refuse(action, target, *_absence_reason(target.seq, self._view))
        return found

    def _seqs_about(self, action: Action, target: Target) -> list[int]:
        """Return the seqs of the context's events about a path; record a refusal if there are none."""
        path = target.path or ""
        seqs = [seq for seq, item in self._items.items() if path in self._paths(item.event)]
        if not seqs:
            self._refuse(action, target, "unknown", f"nothing in this context is about {path!r}")
        return seqs

    def _paths(self, event: Event) -> tuple[str, ...]:
        """Return the paths that an event is about: a result has its call's too, a hidden event the recorded one."""
        hidden = self._hidden.get(event.seq)
        known = hidden.path if hidden is not None and hidden.path else self._view.paths.get(event.seq)
        call = self._calls.get(event.call_seq or 0)
        own = paths(event) if known is None else (known,)
        return own + (paths(call.event) if call is not None else ())

    def _path(self, event: Event) -> str | None:
        return next(iter(self._paths(event)), None)

    def _refuse(self, action: Action, target: Target, reason: Reason, detail: str, seq: int | None = None) -> None:
        named = Target(target.seq if seq is None else seq, target.path)
        self.refused.append(Refusal(action, named, reason, detail))


def _absence_reason(seq: int, view: VisibilityInput) -> tuple[Reason, str]:
    """Return the reason and the detail of an event's absence from the context."""
    state = view.state
    if not 1 <= seq <= view.head:
        return "unknown", f"the session has no event {seq}"
    if any(event.seq == seq for event in view.context.prefix) or any(event.seq == seq for event in state.superseded):
        return "protocol", f"event {seq} is a system prompt or a tool list"
    if seq <= state.folded_to:
        return "folded", f"event {seq} is covered by a summary: recall it"
    if any(drop.from_seq <= seq <= drop.to_seq for drop in state.drops):
        return "dropped", f"event {seq} has been left out: recall it"
    return "unknown", f"event {seq} is not in this view"


def _seqs_to_pre_tail(view: VisibilityInput) -> frozenset[int]:
    """Return the seqs up to the cache breakpoint `pre_tail`, some rounds before the end."""
    blocks = [block for block in arrange(view.context, view.state).blocks if not block.ephemeral]
    points = round_points(round_ends(blocks), None, len(blocks))
    end = next((index for index, kind in points if kind == "pre_tail"), -1)
    return frozenset(block.seq for block in blocks[: end + 1])
