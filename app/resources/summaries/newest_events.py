"""The newest events of sessions, cached between reads: an event changes only by a redaction."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.log.event import Event
from app.core.tokens.counter import Counter
from app.resources.contexts.view_cache import CHARS_MAX, events_chars
from app.store import event_log
from app.store.engine import Database
from app.store.spans import SessionFacts

Counted = Callable[[Sequence[Event]], Awaitable[Sequence[Event]]]


@dataclass(frozen=True, slots=True)
class _Held:
    """A session's newest events without a gap: all after the first `reach` tokens of its log. They are valid while its
    creation, its redactions and the counter are those of `stands`."""

    stands: tuple[datetime, int, Counter]
    reach: int
    events: tuple[Event, ...]
    chars: int


class NewestEvents:
    """Reads the newest events of sessions, and caches those of the most recently read sessions."""

    def __init__(self, database: Database, chars_max: int = CHARS_MAX) -> None:
        self._database = database
        self._chars_max = chars_max
        self._chars = 0
        self._held: OrderedDict[UUID, _Held] = OrderedDict()

    async def read(
        self, facts: SessionFacts, after: int, tokens: int, counter: Counter, counted: Counted
    ) -> tuple[Event, ...]:
        """Return the events after `after` within the last `tokens` tokens of the log, recounted by `counted`.

        Events from an earlier read are not read, parsed and counted again.
        """
        stands = (facts.created_at, facts.redactions, counter)
        held = self._held.get(facts.log.session_id)
        if held is not None and held.stands == stands:
            events, last = held.events, held.events[-1]
            if last.seq < facts.head:
                added = await event_log.events(self._database, facts.log, last.seq + 1, facts.head)
                events += tuple(await counted(added))
            bound = events[-1].cum_tokens - tokens
            if events[0].seq <= after + 1 or held.reach <= bound:
                events = tuple(event for event in events if event.seq > after and event.cum_tokens > bound)
                self._keep(facts.log.session_id, stands, after, bound, events)
                return events
        events = tuple(await counted(await event_log.newest(self._database, facts.log, after, tokens)))
        bound = events[-1].cum_tokens - tokens if events else 0
        self._keep(facts.log.session_id, stands, after, bound, events)
        return events

    def _keep(
        self,
        session_id: UUID,
        stands: tuple[datetime, int, Counter],
        after: int,
        bound: int,
        events: tuple[Event, ...],
    ) -> None:
        before = self._held.pop(session_id, None)
        self._chars -= before.chars if before else 0
        if events:
            reach = events[0].cum_tokens if events[0].seq == after + 1 else bound
            chars = events_chars(events)
            self._held[session_id] = _Held(stands, reach, events, chars)
            self._chars += chars
        while self._chars > self._chars_max:
            self._chars -= self._held.popitem(last=False)[1].chars
