"""Layers: content that an agent shows after the conversation, replaced as a whole and not part of the log."""

import asyncio
from typing import Final
from uuid import UUID

from app.core.errors import InvalidEvent, InvalidRequest
from app.core.log.appends import body_text, turn_of
from app.core.log.events import Draft, EventType, Json, unreadable
from app.core.render.layers import Content, Layer, parse_content, visible_layers
from app.core.tokens.counter import Counter
from app.resources.contexts.view_cache import ViewCache
from app.store import event_log, layers, sessions, texts
from app.store.engine import Connection, Database, acting_for
from app.store.ids import first_id, last_id, session_ref
from app.store.layers import StoredLayer
from app.store.sessions import SessionRow
from app.tokenizers import Counting, off_loop

SWEEP_PAGE: Final = 1000


class Layers:
    """Stores and reads the layers of sessions."""

    def __init__(self, database: Database, counting: Counting, view_cache: ViewCache) -> None:
        self._database = database
        self._counting = counting
        self._view_cache = view_cache

    async def put(self, tenant_id: UUID, address: str, kind: str, raw: Json) -> StoredLayer:
        """Store a layer and return it; equal content makes no new version. Raises NotFound or InvalidRequest."""
        content, text = await asyncio.to_thread(_prepare, raw)
        row = await sessions.get(self._database, tenant_id, address)
        counter = self._counting.session_counter(row.estimator, row.model)
        tokens = await count_tokens((Layer(kind, 0, content),), counter)
        async with self._database.transaction() as tx:
            turn = await _explicit_turn(tx, await sessions.get_locked(tx, tenant_id, address))
            before = await layers.current(tx, row.session_id)
            previous = next((one for one in before if one.layer.kind == kind), None)
            if previous is not None and (previous.layer.content, previous.layer.turn) == (content, turn):
                return previous
            session_version = await layers.put(tx, row.ref, kind, text, tokens=tokens, turn=turn)
            now = await layers.current(tx, row.session_id)
        stored = next(one for one in now if one.layer.kind == kind)
        shown = tuple(one.layer for one in now)
        self._view_cache.set_layers(row.session_id, session_version - 1, session_version, shown)
        return stored

    async def remove(self, tenant_id: UUID, address: str, kind: str) -> None:
        """Remove a layer, if there is one. Raises NotFound for an unknown session."""
        ref = session_ref(tenant_id, address)
        async with self._database.transaction() as tx:
            await sessions.get_locked(tx, tenant_id, address)
            before = await layers.current(tx, ref.session_id)
            if all(one.layer.kind != kind for one in before):
                return
            session_version = await layers.put(tx, ref, kind, None, tokens=0, turn=None)
        left = tuple(one.layer for one in before if one.layer.kind != kind)
        self._view_cache.set_layers(ref.session_id, session_version - 1, session_version, left)

    async def current(self, tenant_id: UUID, address: str) -> list[StoredLayer]:
        """Return the layers that the next context shows. Raises NotFound."""
        row = await sessions.get(self._database, tenant_id, address)
        found = await layers.current(self._database, row.session_id)
        shown = visible_layers([one.layer for one in found], row.state.turns)
        return [one for one in found if one.layer in shown]


def check_content(raw: Json) -> Content:
    """Return content in its stored form: text or parts, not blank. Raises InvalidRequest."""
    try:
        content = parse_content(raw)
        text = body_text(Draft(EventType.ANNOUNCE, content=content), 0)
    except InvalidEvent as error:
        raise InvalidRequest(error.detail, field="content") from None
    if unreadable(text):  # unlike an event, a layer records nothing, so it can be refused
        raise InvalidRequest("content must hold neither NUL nor lone surrogates", field="content")
    if not content:
        raise InvalidRequest("content must not be blank", field="content")
    return content


def _prepare(raw: Json) -> tuple[Content, str]:
    """Return content in its stored form, and the text of it that is stored. Raises InvalidRequest."""
    content = check_content(raw)
    return content, texts.dumps(content)


async def count_tokens(shown: tuple[Layer, ...], counter: Counter) -> int:
    """Return the tokens of layers by `counter`; long layers are counted off the event loop."""
    size = sum(layer.size for layer in shown if not layer.counted(counter))
    return await off_loop(lambda: sum(layer.tokens(counter) for layer in shown), size)


async def sweep(database: Database) -> int:
    """Delete versions that are no longer shown and that no record of a call can name; return how many."""
    swept, after = 0, (UUID(int=0), "", 0)
    while page := await layers.page(database, after, SWEEP_PAGE):
        outdated: dict[UUID, list[layers.LayerVersion]] = {}
        for one in page:
            if one.until is not None:
                outdated.setdefault(one.tenant_id, []).append(one)
        for tenant_id, old in outdated.items():
            times = [(first_id(one.created_at), last_id(one.until)) for one in old if one.until is not None]
            with acting_for(tenant_id):
                async with database.transaction() as tx:
                    swept += await layers.sweep(tx, old, times)
        last = page[-1]
        after = (last.session_id, last.kind, last.version)
    return swept


async def _explicit_turn(tx: Connection, session: SessionRow) -> int | None:
    """Return the running turn, with which the layer ends, if it was started explicitly and not ended; else None."""
    running = session.state.turns
    marks = (await event_log.turn_marks(tx, session.log, running, running)).get(running)
    if not marks:
        return None
    turn = turn_of(marks)
    return running if turn.explicit and not turn.ended else None
