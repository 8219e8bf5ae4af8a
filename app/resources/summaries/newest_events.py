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

Recount = Callable[[Sequence[Event]], Awaitable[Sequence[Event]]]


@dataclass(frozen=True, slots=True)
class _CachedEvents:
    """A session's newest events without a gap: all after the first `tokens_before` tokens of its log.

    They are valid for one `version`: creation time of the session, number of its redactions, and counter.
    """

    version: tuple[datetime, int, Counter]
    tokens_before: int
    events: tuple[Event, ...]
    chars: int


class NewestEvents:
    """Reads the newest events of sessions, and caches those of the most recently read sessions."""

    def __init__(self, database: Database, chars_max: int = CHARS_MAX) -> None:
        self._database = database
        self._chars_max = chars_max
        self._chars = 0
        self._held: OrderedDict[UUID, _CachedEvents] = OrderedDict()

    async def read(
        self, facts: SessionFacts, after: int, tokens: int, counter: Counter, recount: Recount
    ) -> tuple[Event, ...]:
        """Return the events after `after` within the last `tokens` tokens of the log, with their tokens by `recount`.

        Only events that were added since an earlier read are read, parsed and counted.
        """
        version = (facts.created_at, facts.redactions, counter)
        held = self._held.get(facts.log.session_id)
        if held is not None and held.version == version:
            events, last = held.events, held.events[-1]
            if last.seq < facts.head:
                added = await event_log.events(self._database, facts.log, last.seq + 1, facts.head)
                events += tuple(await recount(added))
            bound = events[-1].cum_tokens - tokens
            if events[0].seq <= after + 1 or held.tokens_before <= bound:
                events = tuple(event for event in events if event.seq > after and event.cum_tokens > bound)
                self._keep(facts.log.session_id, version, after, bound, events)
                return events
        events = tuple(await recount(await event_log.newest(self._database, facts.log, after, tokens)))
        bound = events[-1].cum_tokens - tokens if events else 0
        self._keep(facts.log.session_id, version, after, bound, events)
        return events

    def _keep(
        self,
        session_id: UUID,
        version: tuple[datetime, int, Counter],
        after: int,
        bound: int,
        events: tuple[Event, ...],
    ) -> None:
        before = self._held.pop(session_id, None)
        self._chars -= before.chars if before else 0
        if events:
            tokens_before = events[0].cum_tokens if events[0].seq == after + 1 else bound
            chars = events_chars(events)
            self._held[session_id] = _CachedEvents(version, tokens_before, events, chars)
            self._chars += chars
        while self._chars > self._chars_max:
            self._chars -= self._held.popitem(last=False)[1].chars
