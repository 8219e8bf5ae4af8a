"""Players: the requests sent at each call by our policies, through the planner, or by other eviction rules."""

from collections.abc import Callable, Iterator, Sequence

from app.core.log.event import Event
from app.core.log.events import EventType, canonical_json
from app.core.plan.pipeline import plan
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.items import Item
from app.core.plan.update import EarlierPlan, PlanInputs
from app.core.policy.policy import Policy
from app.core.tokens.budget import budget_for
from app.core.tokens.models import CacheProfile
from bench.cost.sessions import COUNTER
from palimpsest_tools.bench.rivals import Player, Sent, Shown, conversation, masked
from palimpsest_tools.bench.sessions import LoggedSession


def ours(policy: Policy, window: int) -> Player:
    """Return a player that runs a policy through the planner."""

    def play(session: LoggedSession, cache: CacheProfile) -> Iterator[Sent]:
        budget = budget_for(policy, window, COUNTER.estimator.margin)
        state: Frontier = START
        before: EarlierPlan | None = None
        used_at: float | None = None
        known: dict[int, tuple[Item, Shown]] = {}
        for call in session.calls:
            events = session.events[: call.events]
            read = PlanInputs(
                events,
                events[-1].turn,
                COUNTER,
                ephemeral_tokens=session.prefix_tokens,  # missing from the recording, but part of the request
                earlier=before,
                now=call.at,
                used_at=used_at,
                cache=cache,
            )
            planned = plan(read, budget, policy, state)
            state, used_at = planned.state, call.at
            before = EarlierPlan(planned.context, state, len(events))
            shown = [Shown(0, planned.context.note_tokens, state.note)] if state.note else []
            for item in planned.context.items:
                held = known.get(item.event.seq)
                if held is None or held[0] is not item:
                    known[item.event.seq] = held = (item, shown_of(item))
                shown.append(held[1])
            prefix = planned.context.tokens - sum(one.tokens for one in shown)
            yield Sent(tuple(shown), prefix, call.at, planned.cause, once_from=planned.once_from)

    return play


def shown_of(item: Item) -> Shown:
    """Return an item as it is sent."""
    joins = item.event.type is EventType.TOOL_CALL
    if item.stub is None:
        return Shown(item.event.seq, item.tokens, joins=joins)
    block = item.block()
    arguments = canonical_json(block.arguments) if block.arguments else ""
    text = (block.content if isinstance(block.content, str) else "") + arguments
    return Shown(item.event.seq, item.tokens, text, text, joins)


def newest(window: int) -> Player:
    """Return a player that sends the newest whole rounds within the `default` policy's target, chosen at each call."""

    def play(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
        target = budget_for(Policy(), window, COUNTER.estimator.margin).target
        prefix = conversation(session)[2]
        for call in session.calls:
            events = [event for event in session.events[: call.events] if event.rendered]
            first, taken, pending = len(events), 0, 0
            for index in reversed(range(len(events))):
                pending += events[index].tokens
                follows = index > 0 and _continues(events[index - 1], events[index])
                if follows:
                    continue
                if taken + pending > target - prefix:
                    break
                first, taken, pending = index, taken + pending, 0
            shown = tuple(Shown(e.seq, e.tokens, joins=e.type is EventType.TOOL_CALL) for e in events[first:])
            yield Sent(shown, prefix, call.at)

    return play


def _continues(before: Event, event: Event) -> bool:
    """Return whether an event belongs to the round of the one before it: a result, or another item of a response."""
    if event.type is EventType.TOOL_RESULT:
        return True
    return event.type is EventType.TOOL_CALL and before.type in (EventType.TOOL_CALL, EventType.ASSISTANT_MESSAGE)


def evicting(at: Callable[[int], set[int] | None]) -> Player:
    """Return a player that evicts by a plan made in advance: seqs by the call's number, None for no more."""

    def play(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
        number = -1

        def decide(results: Sequence[Event], gone: set[int], tokens: int) -> set[int]:
            nonlocal number
            number += 1
            return gone | (at(number) or set())

        yield from masked(session, decide)

    return play
