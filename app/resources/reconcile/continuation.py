"""Lists of clients that hold only the messages after a place in the log, and the compaction items that name one.

An item is made without a model: the messages are logged, and it names their end in the log.
"""

import asyncio
import base64
import json
import os
from binascii import Error as InvalidBase64
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.core.assembly.inputs import ContextRequest
from app.core.errors import InvalidItem, InvalidRequest, NotFound, SessionErased
from app.core.log.conversation import START, Link, Tip, count_repeated, links
from app.core.log.events import Json
from app.core.log.segments import row_name
from app.core.wire.bodies import Body
from app.core.wire.compacted import MARK, CompactedPlace, find_item
from app.resources.reconcile.messages import ClientList, ClientMessages
from app.resources.reconcile.service import Reconcile
from app.store import event_log, keys, lines, sessions, texts
from app.store.engine import Database

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TENANTS_MAX: Final = 10_000
UNREADABLE: Final = (
    "the compaction item cannot be read: it was altered, or it was made for another tenant or by another server"
)


class CompactionItems:
    """Seals and opens tenants' compaction items, in every process with the same keys.

    An item is a place in a session's log, which a client holds in place of the messages up to there. End users of an
    application may hold some too, so nobody may make or change one: it is encrypted and authenticated with a key of the
    tenant, and bound to the tenant.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[UUID, AESGCM] = {}

    async def seal(self, tenant_id: UUID, place: CompactedPlace) -> str:
        """Return a place as the content of an item."""
        cipher = await self._cipher(tenant_id)
        if cipher is None:
            await keys.make_item_key(self._database, tenant_id, os.urandom(KEY_BYTES))
            cipher = await self._cipher(tenant_id)
        if cipher is None:
            raise RuntimeError("a key was not stored although nothing was in its way")
        nonce = os.urandom(NONCE_BYTES)
        text = json.dumps(asdict(place), separators=(",", ":")).encode()
        sealed = nonce + cipher.encrypt(nonce, text, tenant_id.bytes)
        return MARK + base64.urlsafe_b64encode(sealed).decode("ascii")

    async def open(self, tenant_id: UUID, sealed: str) -> CompactedPlace:
        """Return the place in an item's content. Raises InvalidItem."""
        from cryptography.exceptions import InvalidTag

        cipher = await self._cipher(tenant_id)
        try:
            raw = base64.b64decode(sealed.removeprefix(MARK), altchars=b"-_", validate=True)
            if cipher is None or not sealed.startswith(MARK):
                raise InvalidTag
            text = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], tenant_id.bytes)
        except (InvalidTag, InvalidBase64, ValueError):
            raise InvalidItem(UNREADABLE, field="encrypted_content") from None
        return CompactedPlace(**json.loads(text))

    async def _cipher(self, tenant_id: UUID) -> "AESGCM | None":
        """Return a tenant's cipher; None before its first item."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes 40 ms: only where items are in use

        found = self._known.get(tenant_id)
        if found is None and (key := await keys.item_key(self._database, tenant_id)) is not None:
            if len(self._known) >= TENANTS_MAX:
                self._known.clear()
            found = self._known[tenant_id] = AESGCM(key)
        return found


OBSERVED: Final = (
    "the request holds a compaction item of this server, which only observes calls now: no provider can read the item. "
    "Set PALIMPSEST_GATEWAY_MODE=enforce, or send the whole conversation"
)
REPEATED_MAX: Final = 200
"""Events before a pause that a client may repeat after it."""
REPLY_WAITS: Final = (0.0, 0.02, 0.1, 0.4)
"""Seconds before each lookup of a reply that a client names."""


async def continue_reply(
    database: Database, tenant_id: UUID, session: str, reply: str, given: ClientList
) -> ClientMessages | None:
    """Return the messages after a reply, named by its provider's id, as a complete list; None if it is not in the log.

    The reply may still be on its way into the log. Raises what reading the list raises.
    """
    read = await asyncio.to_thread(replace(given, complete=False).read)
    for seconds in REPLY_WAITS:
        await asyncio.sleep(seconds)
        found = await lines.of_event(database, tenant_id, session, reply)
        if found is not None:
            return await _complete(read, await _tip_at(database, tenant_id, session, *found))
    return None


async def continue_item(
    database: Database, tenant_id: UUID, place: CompactedPlace, given: ClientList
) -> ClientMessages:
    """Return the messages after a compaction item as a complete list, given with a placeholder for the item.

    Raises what reading the list raises, SessionErased if its session is gone, and InvalidItem if the log does not have
    the conversation that was compacted.
    """
    read = await asyncio.to_thread(replace(given, complete=False).read)
    try:
        tip = await _tip_at(database, tenant_id, place.session, place.line, place.seq)
    except NotFound:
        raise SessionErased(
            f"the session {place.session!r} of this compaction item was erased: begin again without the item",
            session=place.session,
        ) from None
    if tip.hash.hex() != place.hash:
        raise InvalidItem(
            f"session {place.session!r} does not have the conversation of this compaction item: it was erased, and "
            "another one has its name",
            field="encrypted_content",
        )
    known = 1  # the placeholder
    if place.paused:  # clients may repeat their last messages, as Anthropic's page on compaction shows
        before = await _events_before(database, tenant_id, place, REPEATED_MAX)
        known += await asyncio.to_thread(count_repeated, before, read.raw[1:])
    return await _complete(replace(read, raw=read.raw[known:], indices=read.indices[known:]), tip)


async def _events_before(
    database: Database, tenant_id: UUID, place: CompactedPlace, most: int
) -> list[Mapping[str, Json]]:
    """Return the last events that an item replaces."""
    async with database.transaction() as tx:
        row = await sessions.get_locked(tx, tenant_id, place.line)
        rows = await event_log.read(tx, row.log, "seq, body", max(1, place.seq - most + 1), place.seq)
    return [texts.loads(one["body"]) for one in rows]


async def _tip_at(database: Database, tenant_id: UUID, session: str, line: str, seq: int) -> Tip:
    """Return the end of a line's chain at a seq. Raises NotFound."""
    async with database.transaction() as tx:
        root = await sessions.get_locked(tx, tenant_id, session)
        row = root if line == session else await sessions.get_locked(tx, tenant_id, line)
        row = await lines.extend_chain(tx, root.session_id, row)
        return await lines.tip_at(tx, root, row, seq)


async def _complete(given: ClientMessages, tip: Tip) -> ClientMessages:
    """Return messages after others in the log as a complete list; of the earlier ones only the last link is needed."""
    before = [Link(-1, START)] * (tip.number - 1) + [Link(-1, tip.hash)] * (tip.number > 0)
    after = await asyncio.to_thread(links, given.raw, tip.hash)
    return replace(given, links=(*before, *after))


class Compactions:
    """Makes compaction items, and opens those in clients' lists.

    `answers`: requests for a compaction are answered here; otherwise they are the provider's. `observes`: no context is
    sent, so no item can be accepted.
    """

    def __init__(self, database: Database, reconcile: Reconcile, *, answers: bool, observes: bool) -> None:
        self.answers = answers and not observes
        self._observes = observes
        self._reconcile = reconcile
        self._items = CompactionItems(database)

    async def open(self, tenant_id: UUID, form: str, body: Body) -> tuple[Body, CompactedPlace | None]:
        """Return a call's body with only the messages after its last item of ours, and the place of that item.

        Without an item, return the body as it is. Raises InvalidItem, or InvalidRequest if calls are only observed.
        """
        found = find_item(form, body)
        if found is None:
            return body, None
        if self._observes:
            raise InvalidRequest(OBSERVED, field=found.field)
        return body.read_with(found.field, found.messages), await self._items.open(tenant_id, found.sealed)

    async def make(
        self, tenant_id: UUID, session: str, given: ClientMessages, request: ContextRequest, *, paused: bool = False
    ) -> str:
        """Log a list's new messages, and return the content of an item for it. Raises the errors of an append.

        `paused`: the item is returned without a reply, within a call that requested both.
        """
        # A request for a compaction need not repeat prompts and tools: those of the log stay.
        given = replace(given, prompts=(), tools=None, all_prompts=False)
        applied = await self._reconcile.append(tenant_id, session, given, request)
        place = CompactedPlace(session, row_name(applied.line), applied.head, given.links[-1].hash.hex(), paused)
        return await self._items.seal(tenant_id, place)
