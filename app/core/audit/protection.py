"""The reasons for which the rules of retention let an event stay whole."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from app.core.log.event import Event, lazy
from app.core.log.events import TOOL_USE, EventType
from app.core.plan.reducers.earnings import last_unit_seq
from app.core.plan.reducers.economics import EconomicReducer
from app.core.plan.reducers.retention import ARGUMENTS_TOKENS_MIN, candidates
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import STUB_TOKENS
from app.core.policy.evictions import Retention

Protection = Literal[
    "prefix",
    "pinned",
    "current_request",
    "open_call",
    "message",
    "never_evict",
    "shown_again",
    "newest",
    "below_minimum",
    "listing",
    "arguments_stay",
    "working_set",
    "unsent",
]


@dataclass(frozen=True)
class Protections:
    """The protections of a context's events under the rules of retention. `economic`: the reducer, if it applies them.

    An event without a protection may be evicted as soon as a reducer evicts by these rules.
    """

    context: Context
    state: Frontier
    retention: Retention
    economic: EconomicReducer | None = None

    @lazy
    def candidates(self) -> frozenset[int]:
        """The seqs that the rules allow to evict."""
        return frozenset(one.item.event.seq for one in candidates(self.context, self.retention))

    @lazy
    def _old(self) -> frozenset[int]:
        """The seqs that the rules would allow to evict if size and content did not matter."""
        tools = {name: replace(rule, min_tokens=0) for name, rule in self.retention.tools.items()}
        rules = replace(self.retention, min_tokens=0, dense=1.0, tools=tools)
        return frozenset(one.item.event.seq for one in candidates(replace(self.context), rules))

    @lazy
    def _working_set(self) -> Collection[int]:
        return frozenset() if self.economic is None else self.economic.working_set(self.context, self.state)

    def protection(self, item: Item) -> Protection | None:
        """Return the reason for which an item that is shown whole stays; None if it may be evicted."""
        event, context = item.event, self.context
        if event.pinned:
            return "pinned"
        if event.seq in context.open_calls:
            return "open_call"
        if event.type is EventType.USER_MESSAGE and event.turn == context.turn:
            return "current_request"
        if event.type not in TOOL_USE:
            return "message"
        if event.seq in self.candidates:
            if event.seq in self._working_set:
                return "working_set"
            return "unsent" if self.economic is not None and event.seq >= last_unit_seq(context) else None
        return self._of_result(event) if event.type is EventType.TOOL_RESULT else self._of_call(item)

    def _of_result(self, event: Event) -> Protection:
        rule = self.retention.rule(event.tool or "")
        if rule is None:
            return "never_evict"
        if event.seq in self.context.shown_again:
            return "shown_again"
        if event.tokens < (rule.min_tokens or 0) or event.tokens * (1 - self.retention.identifiers) <= STUB_TOKENS:
            return "below_minimum"
        return "listing" if event.seq in self._old else "newest"

    def _of_call(self, call: Item) -> Protection:
        if call.tokens < ARGUMENTS_TOKENS_MIN:
            return "below_minimum"
        if not self.retention.arguments:
            return "arguments_stay"
        return "never_evict" if self.retention.rule(call.event.tool or "") is None else "newest"
