"""A worker's cache of the newest events always returns what the log holds."""

from collections.abc import Sequence
from dataclasses import replace

import httpx

from app.core.log.event import ERASED, Event
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA
from app.resources.summaries.next_step import NewestEvents
from app.store import event_log, spans
from app.store.engine import Database
from app.store.ids import session_ref
from app.tenants import DEFAULT_TENANT
from tests.contract.contexts.test_context import append, turn_of_rounds

COUNTER = Counter(HEURISTIC, AREA)
EVERYTHING = 1_000_000


class CheckedReader:
    """A reader of one session's newest events that compares each result with the log.

    Its count adds a token to each event; `read` lists the seqs that the last call loaded.
    """

    def __init__(self, database: Database, sid: str = "s", **limits: int) -> None:
        self._database = database
        self._sid = sid
        self._newest = NewestEvents(database, **limits)
        self.read: list[int] = []

    async def __call__(self, after: int, tokens: int, counter: Counter = COUNTER) -> Sequence[Event]:
        """Return the newest events, checking them against the stored ones."""
        facts = await spans.facts(self._database, session_ref(DEFAULT_TENANT, self._sid))
        assert facts is not None
        self.read = []

        async def counted(events: Sequence[Event]) -> Sequence[Event]:
            self.read += [event.seq for event in events]
            return [replace(event, tokens=event.tokens + 1) for event in events]

        found = await self._newest.read(facts, after, tokens, counter, counted)
        stored = await event_log.newest(self._database, facts.log, after, tokens)
        assert [replace(event, tokens=event.tokens + 1) for event in stored] == list(found)
        assert [event.body for event in stored] == [event.body for event in found]
        return found


async def test_only_new_events_are_read(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(3))
    assert len(await look(0, EVERYTHING)) == 11
    assert look.read == list(range(1, 12))
    await look(0, EVERYTHING)
    assert look.read == []
    await append(client, turn_of_rounds(1, first=3))
    assert [event.seq for event in await look(4, EVERYTHING)] == list(range(5, 17))
    assert look.read == [12, 13, 14, 15, 16]
    await look(16, EVERYTHING)
    assert look.read == []


async def test_reads_with_other_bounds_return_what_the_log_holds(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(8))
    for after, tokens in ((0, 700), (0, 700), (0, 400), (0, 900), (20, EVERYTHING), (10, EVERYTHING), (2, 300), (0, 1)):
        await look(after, tokens)
    await append(client, turn_of_rounds(2, first=8))
    for tokens in (300, 700, 1_500, EVERYTHING):
        await look(0, tokens)


async def test_a_repeated_bounded_read_loads_nothing(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(8))
    first = await look(0, 700)
    assert first[0].seq > 1
    await look(0, 700)
    assert look.read == []


async def test_a_redacted_event_is_read_again(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(2))
    before = await look(0, EVERYTHING)
    assert before[3].body is not None and "file 0" in before[3].body["content"]
    assert (await client.delete("/v1/sessions/s/events/4")).status_code == 204
    after = await look(0, EVERYTHING)
    assert after[3].body is not None and after[3].body["content"] == ERASED


async def test_a_recreated_session_is_read_again(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(2))
    await look(0, EVERYTHING)
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    await append(client, turn_of_rounds(2, first=7))
    found = await look(0, EVERYTHING)
    assert found[0].body is not None and found[0].body["content"] == "Task 7"


async def test_another_counter_counts_all_events_again(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database)
    await append(client, turn_of_rounds(1))
    await look(0, EVERYTHING)
    await look(0, EVERYTHING, replace(COUNTER, estimator=replace(HEURISTIC, name="another")))
    assert look.read == list(range(1, 6))


async def test_events_over_the_memory_limit_are_not_kept(client: httpx.AsyncClient, database: Database) -> None:
    look = CheckedReader(database, chars_max=1_000)
    await append(client, turn_of_rounds(2))
    for _ in range(2):
        assert len(await look(0, EVERYTHING)) == 8
        assert look.read == list(range(1, 9))
