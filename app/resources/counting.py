"""Token counting by model, in a thread where a text is long."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from app.core.log.appends import body_text
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, Draft, EventType
from app.core.policy.policy import DEFAULT, Policy
from app.core.tokens.budget import Budget, own_budget
from app.core.tokens.counter import Counter, Estimator, estimator_for, estimator_named
from app.core.tokens.models import profile
from app.core.tokens.scales import Tokenizer

OFF_LOOP_BYTES: Final = 32_768
"""Longer texts are counted and read in a thread: it would delay other requests by some milliseconds."""
KEPT_MAX: Final = 1_024

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Counting:
    """Counters by model name, and the budgets derived from them."""

    tokenizers: Mapping[str, Tokenizer]
    _counters: dict[tuple[str, str | None], Counter] = field(default_factory=dict, init=False, repr=False)
    _budgets: dict[tuple[int, str | None], tuple[Policy, Budget]] = field(default_factory=dict, init=False, repr=False)

    def estimator(self, model: str | None) -> Estimator:
        """Return the estimator for a model."""
        return estimator_for(profile(model), self.tokenizers)

    def counter(self, model: str | None, policy: Policy = DEFAULT) -> Counter:
        """Return the counter for a model: its own tokenizer, or the policy's estimator if the model is unknown."""
        own = profile(model)
        unknown = policy.estimator if own.encoding is None else None
        return Counter(estimator_for(own, self.tokenizers, unknown or policy.heuristic), own.image)

    def session_counter(self, estimator: str, model: str | None) -> Counter:
        """Return the counter of a session's events; its estimator stays the same when the model changes."""
        known = self._counters.get((estimator, model))
        if known is None:
            if len(self._counters) >= KEPT_MAX:
                self._counters.clear()
            known = self._counters[estimator, model] = self._session_counter(estimator, model)
        return known

    def _session_counter(self, estimator: str, model: str | None) -> Counter:
        own = self.counter(model)
        if own.estimator.name == estimator:
            return own
        least = None if profile(model).encoding is None else own.estimator
        return Counter(estimator_named(estimator, self.tokenizers, least), own.image)

    def own_budget(self, policy: Policy, model: str | None) -> Budget:
        """Return the budget of a view that has no window yet. Raises CannotFit or InvalidPolicy."""
        key = (id(policy), model)
        known = self._budgets.get(key)
        if known is None or known[0] is not policy:
            if len(self._budgets) >= KEPT_MAX:
                self._budgets.clear()
            known = policy, own_budget(policy, model, self.counter(model, policy).estimator.margin)
            self._budgets[key] = known
        return known[1]

    async def prepare(self, drafts: Sequence[Draft], counter: Counter) -> tuple[list[str], list[int]]:
        """Return the bodies to store and the tokens of each event. Raises InvalidEvent."""
        bodies = [body_text(draft, index) for index, draft in enumerate(drafts)]
        return bodies, await off_loop(lambda: [counter.event(draft) for draft in drafts], sum(map(len, bodies)))

    async def recount(self, events: Sequence[Event], counter: Counter) -> tuple[Event, ...]:
        """Count the events again, for a model with another estimator than the session's."""
        return await off_loop(lambda: tuple(_recounted(one, counter) for one in events), bytes_of(events))


async def off_loop(work: Callable[[], Done], size: int) -> Done:
    """Do work on texts of `size` bytes, in a thread if they are long."""
    return await asyncio.to_thread(work) if size > OFF_LOOP_BYTES else work()


def bytes_of(events: Iterable[Event]) -> int:
    """Estimate the size of events by their tokens."""
    return 4 * sum(event.tokens for event in events)


def _recounted(event: Event, counter: Counter) -> Event:
    if event.body is None or event.type in BOOKKEEPING:
        return event
    body = event.body
    draft = Draft(
        type=EventType(event.type),
        content=body.get("content"),
        call_id=event.call_id,
        tool=event.tool,
        arguments=body.get("arguments"),
        native=body.get("native"),
    )
    return replace(event, tokens=counter.event(draft))
