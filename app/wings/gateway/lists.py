"""Calls' lists: completed by the log, their contexts, and the compaction items that are put into them.

A list may hold only the messages after a place in the log, which a reply's id or an item names. An item is made without
a model: the messages are logged, and it names their end.
"""

import asyncio
import base64
import json
import os
import time
from binascii import Error as InvalidBase64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID, uuid4

from starlette.responses import Response

from app.core import errors
from app.core.assembly.assemble import Assembled
from app.core.assembly.inputs import ContextInputs, ContextRequest
from app.core.log.conversation import START, Link, Tip, count_repeated, links
from app.core.log.events import PREFIX, Json, canonical_json
from app.core.log.segments import row_name
from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.wire import compacted
from app.core.wire.bodies import Body
from app.core.wire.calls import AT_PROVIDER, NOT_IN_LOG, CallConversation, NotBudgeted, holds_results
from app.core.wire.compacted import MARK, CompactedPlace, find_item
from app.core.wire.providers import Endpoint
from app.core.wire.replies import objects
from app.resources.contexts.service import ContextAnswer
from app.resources.reconcile.messages import ClientList, ClientMessages
from app.resources.reconcile.service import Reconcile
from app.store import event_log, keys, lines, sessions, texts
from app.store.engine import Database
from app.store.ids import SessionRef, session_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from app.runtime.wiring import Services


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
            raise errors.InvalidItem(UNREADABLE, field="encrypted_content") from None
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
    """Return the messages after a compaction item as a complete list. In `given`, a placeholder is in the item's place.

    Raises what reading the list raises, SessionErased if its session is gone, and InvalidItem if the log does not have
    the conversation that was compacted.
    """
    read = await asyncio.to_thread(replace(given, complete=False).read)
    try:
        tip = await _tip_at(database, tenant_id, place.session, place.line, place.seq)
    except errors.NotFound:
        raise errors.SessionErased(
            f"the session {place.session!r} of this compaction item was erased: begin again without the item",
            session=place.session,
        ) from None
    if tip.hash.hex() != place.hash:
        raise errors.InvalidItem(
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
            raise errors.InvalidRequest(OBSERVED, field=found.field)
        return body.read_with(found.field, found.messages), await self._items.open(tenant_id, found.sealed)

    async def make(
        self, tenant_id: UUID, session: str, given: ClientMessages, request: ContextRequest, *, paused: bool = False
    ) -> str:
        """Log a list's new messages, and return the content of an item for it. Raises the errors of an append.

        `paused`: the client gets the item alone, and repeats its call to get the reply.
        """
        # A request for a compaction need not repeat prompts and tools: those of the log stay.
        given = replace(given, prompts=(), tools=None, prompts_complete=False)
        applied = await self._reconcile.append(tenant_id, session, given, request)
        place = CompactedPlace(session, row_name(applied.line), applied.head, given.links[-1].hash.hex(), paused)
        return await self._items.seal(tenant_id, place)


Made = TypeVar("Made")
NO_LIMIT: Final = 2**31
"""A limit above every window. Unlike None, it overrides the window of the view's last call, maybe a lower limit."""


async def make_context(
    kernel: "Services", tenant_id: UUID, session: str, given: ClientMessages, request: ContextRequest
) -> ContextAnswer:
    """Return the next context of the line that a list continues. Raises what `Reconcile` raises."""
    return await _retry_without_limit(partial(kernel.reconcile.context_only, tenant_id, session, given), request)


async def _retry_without_limit(make: Callable[[ContextRequest], Awaitable[Made]], request: ContextRequest) -> Made:
    """Make a context; if none fits the threshold of the requested compaction, make one without it, as providers do."""
    try:
        return await make(request)
    except (errors.CannotFit, errors.InvalidPolicy):
        if request.window_max in (None, NO_LIMIT):
            raise
        return await make(replace(request, window_max=NO_LIMIT))


async def read_list(
    kernel: "Services", tenant_id: UUID, session: str, conversation: CallConversation
) -> ClientMessages:
    """Read a call's list, completed by the log if it holds only the messages after a reply or a compaction item.

    Raises NotBudgeted, or what reading the list or `continue_item` raises.
    """
    listed = _client_list(conversation)
    if conversation.place is not None:
        return await continue_item(kernel.database, tenant_id, conversation.place, listed)
    if conversation.previous is None:
        return await kernel.reconcile.read(tenant_id, session, listed)
    found = await continue_reply(kernel.database, tenant_id, session, conversation.previous, listed)
    if found is None:
        raise NotBudgeted(AT_PROVIDER)
    return found


async def preview(
    kernel: "Services", tenant_id: UUID, session: str, conversation: CallConversation, request: ContextRequest
) -> tuple[ContextAnswer, int]:
    """Return a context to replace the first messages of a list, and their number, without recording it.

    They are the messages in the log, up to the end of a round. Raises NotBudgeted if there are none, or a context's
    errors.
    """
    given = await read_list(kernel, tenant_id, session, conversation)
    key = session_key(tenant_id, session)
    async with kernel.database.transaction() as tx:
        found = await lines.find_longest_chain(tx, key, [link.hash for link in given.links])
        count = _whole_messages(given, conversation.messages, found[0].number if found else 0)
        hashes = [link.hash for link in given.links if link.place < 0 or given.indices[link.place] < count]
        found = await lines.find_longest_chain(tx, key, hashes)
        row = await sessions.find(tx, SessionRef(found[0].line, tenant_id)) if found else None
    if row is None or not count:
        raise NotBudgeted(NOT_IN_LOG)
    plan = partial(kernel.assembly.plan, tenant_id, row.external_id)
    assembled = await _retry_without_limit(plan, replace(request, at=found[0].seq))
    return ContextAnswer(row.external_id, assembled, "none"), count


def _whole_messages(given: ClientMessages, messages: Sequence[Json], known: int) -> int:
    """Return how many messages the first `known` links cover, less trailing tool calls whose results follow them."""
    rest = given.links[known:]
    count = len(messages) if not rest else given.indices[rest[0].place]
    while 0 < count < len(messages) and holds_results(messages[count]):
        count -= 1
    return count


def _client_list(conversation: CallConversation) -> ClientList:
    """Return a call's list. Absent tools or prompts mean none, except in an Anthropic thread that continues a reply."""
    continues = conversation.previous is not None and conversation.place is None
    states_all = not continues or conversation.format != "anthropic"
    tools: Json = [] if states_all and conversation.tools is None else conversation.tools
    given = conversation.messages, conversation.system, tools
    return ClientList(conversation.format, *given, prompts_complete=states_all)


SUMMARY_TOKENS: Final = 2_000
"""Size of the summary in a block."""
EVENTS_MAX: Final = 1_000
"""Maximum number of events, the newest after the first one, for such a summary; reading more would delay the call."""
DRAWING: Final = "image_generation"
"""The type of the provider's tool that generates images."""
NOT_SENT: Final = "the request holds a compaction item of this gateway, so it cannot be forwarded unchanged: {}"


def item_response(endpoint: Endpoint, body: Body, sealed: str) -> Response:
    """Return an item as the response that the client expects."""
    number, now = uuid4().hex, int(time.time())
    if endpoint.compacts:
        return Response(canonical_json(compacted.compaction_object(number, now, sealed)), media_type="application/json")
    response = compacted.triggered_response(number, now, str(body.value.get("model") or ""), sealed)
    return _response(body, response, compacted.triggered_stream)


def paused_response(conversation: CallConversation, item: Mapping[str, Json]) -> Response:
    """Return an item as the response to a call that pauses after its compaction."""
    return _response(
        conversation.body, compacted.paused_message(uuid4().hex, conversation.model, item), compacted.paused_stream
    )


def _response(body: Body, value: Mapping[str, Json], stream: Callable[[Mapping[str, Json]], bytes]) -> Response:
    if body.value.get("stream") is True:
        return Response(stream(value), media_type="text/event-stream")
    return Response(canonical_json(value), media_type="application/json")


def exceeds_threshold(assembled: Assembled, conversation: CallConversation) -> bool:
    """Return whether a call's list, from its last item on, exceeds the threshold of a compaction that it requests.

    A call that continues a reply has no list to make shorter. The events of generated images are too large to be read,
    so no item can be inserted before them.
    """
    requested, inputs = conversation.compaction, assembled.inputs
    draws = any(tool.get("type") == DRAWING for tool in objects(conversation.tools))
    if requested is None or conversation.previous is not None or draws:
        return False
    after = 0 if conversation.place is None else conversation.place.seq
    shown = [one for one in inputs.events if one.seq > after and one.rendered and one.type not in PREFIX]
    tokens = sum(one.tokens for one in (*assembled.rendered.plan.context.prefix, *shown))
    tokens += inputs.loaded.unread.tokens if inputs.loaded.unread.to_seq > after else 0
    return inputs.budget.provider_tokens(tokens) > (requested.tokens or inputs.budget.window)


def make_item(form: str, sealed: str, inputs: ContextInputs) -> dict[str, Json]:
    """Return an item for a call's list; a block of the Messages API has a summary that is written without a model."""
    if form != "anthropic":
        return compacted.responses_item(uuid4().hex, sealed)
    events = [one for one in inputs.events if one.rendered and one.type not in PREFIX]
    events = [*events[:1], *events[1:][-EVENTS_MAX:]]
    previous = "\n\n".join(one.text for one in inputs.loaded.folded if one.text)
    summary = write_summary(events, (), previous, digest_of(events), SUMMARY_TOKENS, inputs.counter)
    return compacted.anthropic_block(summary, sealed)


def raise_if_unsendable(place: compacted.CompactedPlace | None, error: Exception) -> None:
    """Raise an error if a call for which there is no context holds an item, since no provider can read that.

    Raises InvalidRequest, StoreUnavailable or the error itself; nothing without an item.
    """
    if place is None:
        return
    if isinstance(error, NotBudgeted):
        raise errors.InvalidRequest(NOT_SENT.format(error)) from None
    if isinstance(error, TimeoutError):
        raise errors.StoreUnavailable(NOT_SENT.format("its context took too long")) from None
    raise error
