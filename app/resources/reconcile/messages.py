"""A client's complete messages as events, with the hashes that find them in a log.

Messages in the log were checked when they were appended; only their hashes are compared. If a list extends one that
this process has read, only its new messages are read and hashed. Its outcome is the line and head, the appended
events, and the plan for each message.
"""

import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, Final, Literal
from uuid import UUID

from app.core.errors import InvalidMessage
from app.core.log.appends import parse_event, tool_definitions
from app.core.log.conversation import START, Link, OpenIds, canonical_prompt, canonical_tool_list, links, pair_calls
from app.core.log.events import Draft, EventType, Json
from app.core.render.client_plan import ClientPlan, client_plan
from app.core.render.formats import FORMATS, anthropic, gemini
from app.core.render.formats.parts import SYSTEM_ROLES, is_blank, leading, message_event
from app.core.render.layers import Content
from app.core.render.request import enclose_injection
from app.resources.contexts.service import ContextAnswer
from app.resources.events.appends import EventReceipt

INLINE_MESSAGES_MAX: Final = 200
INLINE_BYTES_MAX: Final = 64 * 1024
"""Lists with more messages, or more bytes, are read in a thread."""
KEPT_MAX: Final = 50_000
"""Most messages and links, together, that a process keeps of the lists it has read: 7 MB."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event and the index of its message; None if it came from the request's other fields."""

    draft: Draft
    index: int | None


@dataclass(frozen=True, slots=True)
class ClientMessages:
    """A client's complete messages, as read.

    `count` is the number of messages. `raw` are the conversation's events, not yet checked, `indices` those of their
    messages, and `links` the hashes of the chained ones; a link with the place -1 is an earlier event that only the log
    has. `prompts` and `tools` are sent with the messages. `prompts_complete`: if there are no `prompts`, the
    conversation has none; otherwise those of the log stay in force. If only the new messages were read, `raw` lacks the
    first `unread` events, and `read_all` reads the complete list. `added` are the places of calls inserted before
    results without one, and `open_ids` continues the pairing (`core/log/conversation.pair_calls`).
    """

    count: int
    raw: Sequence[Mapping[str, Json]]
    indices: Sequence[int]
    links: Sequence[Link]
    prompts: tuple[ClientEvent, ...]
    tools: ClientEvent | None
    unread: int = 0
    read_all: Callable[[], "ClientMessages"] | None = None
    prompts_complete: bool = False
    added: frozenset[int] = frozenset()
    open_ids: OpenIds | None = None

    @property
    def canonical_prompts(self) -> tuple[bytes, ...]:
        """The system prompts' contents, in a form to compare."""
        return tuple(canonical_prompt(one.draft.content) for one in self.prompts)

    @property
    def canonical_tools(self) -> bytes | None:
        """The tools, in a form to compare; None if the client sends none."""
        return None if self.tools is None else canonical_tool_list(tool_definitions(self.tools.draft.content))

    def events_after(self, links_known: int) -> tuple[ClientEvent, ...]:
        """Return the events after the first `links_known` links; none if no link follows: reasoning after the last one
        is then appended with the next message.

        Raises InvalidEvent with the index of the invalid message.
        """
        if links_known >= len(self.links):
            return ()
        first = self._first(links_known)
        if first < self.unread and self.read_all is not None:
            return self.read_all().events_after(links_known)
        rest = enumerate(zip(self.raw[first - self.unread :], self.indices[first:], strict=True), first)
        return tuple(
            ClientEvent(parse_event(event, index, native=True), None if place in self.added else index)
            for place, (event, index) in rest
        )

    def links_after(self, links_known: int, in_front: int) -> list[Link]:
        """Return the links after `links_known`, with places for an append after `in_front` other events."""
        moved = in_front - self._first(links_known)
        return [Link(link.place + moved, link.hash) for link in self.links[links_known:]]

    def _first(self, links_known: int) -> int:
        return self.links[links_known - 1].place + 1 if links_known else 0


@dataclass(frozen=True, slots=True)
class ClientList:
    """A client's request: its messages in a provider's format, and its system prompt and tools.

    `prompts_complete`: a missing system prompt means that there is none, whatever the session has. In a list that is
    not `complete`, results may answer calls in the log; it is read without links, which depend on earlier messages.
    """

    format: str
    messages: Sequence[Any]
    system: Json = None
    tools: Json = None
    prompts_complete: bool = False
    complete: bool = True

    @property
    def is_long(self) -> bool:
        """Whether reading the list would noticeably delay other requests."""
        size = accumulate(len(_bytes(message)) for message in self.messages)
        return len(self.messages) > INLINE_MESSAGES_MAX or any(so_far > INLINE_BYTES_MAX for so_far in size)

    def read(self) -> ClientMessages:
        """Read the complete list. Raises InvalidMessage, or InvalidEvent for the system prompt or the tools."""
        groups = FORMATS[self.format].reader(self.messages)
        raw = [event for group in groups for event in group]
        indices = [index for index, group in enumerate(groups) for _ in group]
        first = next((n for n, event in enumerate(raw) if event["type"] != EventType.SYSTEM_PROMPT), len(raw))
        prompts, tools = self._leading_events(raw[:first])
        raw, indices = raw[first:], indices[first:]
        if not self.complete:
            return ClientMessages(
                len(self.messages), raw, indices, (), prompts, tools, prompts_complete=self.prompts_complete
            )
        paired = pair_calls(raw)
        return ClientMessages(
            len(self.messages),
            paired.events,
            [indices[source] for source in paired.sources],
            links(paired.events),
            prompts,
            tools,
            prompts_complete=self.prompts_complete,
            added=paired.added,
            open_ids=paired.open_ids,
        )

    def read_continuation(self, known: "_KnownList") -> ClientMessages:
        """Read a list that begins, after its prompts, with known messages. Raises what `read` raises.

        The reader is given the first message, too, so that it takes no system message after it for a prompt.
        """
        form = FORMATS[self.format]
        count = leading(self.messages, SYSTEM_ROLES)
        begins = count + known.count
        try:
            if form.independent_messages:
                groups = form.reader([self.messages[count], *self.messages[begins:]])[1:]
            else:
                groups = form.reader(self.messages)[begins:]
        except InvalidMessage:
            return self.read()  # which names the message at fault
        unread = len(known.indices)
        raw = [event for group in groups for event in group]
        indices = [index for index, group in enumerate(groups, begins) for _ in group]
        paired = pair_calls(raw, known.open_ids)
        new = links(paired.events, known.links[-1].hash if known.links else START)
        prompts, tools = self._leading_events(form.read(self.messages[:count]))
        return ClientMessages(
            len(self.messages),
            paired.events,
            [*(count + index for index in known.indices), *(indices[source] for source in paired.sources)],
            [*known.links, *(Link(unread + link.place, link.hash) for link in new)],
            prompts,
            tools,
            unread,
            self.read,
            self.prompts_complete,
            known.added | {unread + place for place in paired.added},
            paired.open_ids,
        )

    def _leading_events(self, raw: Sequence[Mapping[str, Json]]) -> tuple[tuple[ClientEvent, ...], ClientEvent | None]:
        """Return the system prompts, of which each leading message is one event, and the tools."""
        prompts = [ClientEvent(parse_event(event, n, native=True), n) for n, event in enumerate(raw)]
        beside = () if self.system is None else _prompt(self.format, self.system)
        tools = {"type": "tools", "content": self.tools}
        return (*beside, *prompts), None if self.tools is None else ClientEvent(parse_event(tools), None)


@dataclass(frozen=True, slots=True)
class _KnownList:
    """The result of reading `count` messages after the prompts; `indices` count from the first of them."""

    count: int
    digest: bytes
    indices: Sequence[int]
    links: Sequence[Link]
    added: frozenset[int]
    open_ids: OpenIds | None

    @property
    def size(self) -> int:
        return self.count + len(self.links)


class ListReader:
    """Reads clients' lists; safe for threads. It keeps the digests and links of the most recent lists, so that only the
    new messages of a client's next list are read."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._known: OrderedDict[object, _KnownList] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def read(self, tenant_id: UUID, session: str, given: ClientList) -> ClientMessages:
        """Read a list. Returns and raises what `ClientList.read` does."""
        first = leading(given.messages, SYSTEM_ROLES)
        messages = given.messages[first:]
        if not messages:
            return given.read()
        key = (tenant_id, session, given.format, _digest(messages[:1]).digest())
        with self._lock:
            known = self._known.get(key)
        count = 0 if known is None else known.count
        digest = _digest(messages[:count])
        goes_on = known is not None and digest.digest() == known.digest
        read = given.read_continuation(known) if known is not None and goes_on else given.read()
        for message in messages[count:]:
            digest.update(_bytes(message))
        indices = [index - first for index in read.indices]
        known = _KnownList(len(messages), digest.digest(), indices, read.links, read.added, read.open_ids)
        self._keep(key, known)
        return read

    def _keep(self, key: object, known: _KnownList) -> None:
        with self._lock:
            before = self._known.pop(key, None)
            self._known[key] = known
            self._size += known.size - (before.size if before else 0)
            while self._size > self._kept_max:
                _, oldest = self._known.popitem(last=False)
                self._size -= oldest.size


def _digest(messages: Iterable[Json]) -> "hashlib._Hash":
    found = hashlib.sha256()
    for message in messages:
        found.update(_bytes(message))
    return found


def _bytes(message: Json) -> bytes:
    """Return bytes that no other JSON value has, in this process. Written four times as fast as JSON.

    Version 2 of the format does not depend on whether an object occurs twice, as newer ones do.
    """
    return marshal.dumps(message, 2)


def _prompt(form: str, system: Json) -> Sequence[ClientEvent]:
    """Return the system prompt from the request's own field; none if it is blank."""
    event: Mapping[str, Json] = {"type": EventType.SYSTEM_PROMPT, "content": system}
    if form == anthropic.NAME:
        event = message_event(form, EventType.SYSTEM_PROMPT, anthropic.unmarked(system), {})
    if form == gemini.NAME and not isinstance(system, str):
        parts = gemini.read_parts({"parts": system}, 0)
        event = message_event(form, EventType.SYSTEM_PROMPT, list(map(gemini.typed, parts)), {})
    draft = parse_event(event, native=True)
    return () if is_blank(draft.content) else (ClientEvent(draft, None),)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A context made from a client's messages. `appended` are the new events, each with its message's index."""

    answer: ContextAnswer
    appended: tuple[tuple[int | None, EventReceipt], ...]
    plan: ClientPlan


@dataclass(frozen=True, slots=True)
class AppliedList:
    """A client's list in the log: its line and last seq, the appended events, each with its message's index, and the
    seqs of the messages' links and of the prompts in force."""

    line: str
    head: int
    appended: tuple[tuple[int | None, EventReceipt], ...]
    seqs: Sequence[int]
    prompts: Sequence[int]

    def to_stored(self) -> Mapping[str, Json]:
        """Return the part stored under an idempotency key; the chain has the rest."""
        appended = [[index, *receipt] for index, receipt in self.appended]
        return {"line": self.line, "head": self.head, "appended": appended, "prompts": list(self.prompts)}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any], seqs: Sequence[int]) -> "AppliedList":
        """Restore a list from its stored part and the seqs of its links."""
        appended = tuple((index, EventReceipt(*receipt)) for index, *receipt in stored["appended"])
        return cls(stored["line"], stored["head"], appended, seqs, stored["prompts"])


def seqs_by_message(given: ClientMessages, seqs: Sequence[int], prompt_seqs: Sequence[int]) -> list[list[int]]:
    """Return the seqs of each message's events: those of the links, and of the leading prompts if they are in force."""
    found: list[list[int]] = [[] for _ in range(given.count)]
    if len(prompt_seqs) == len(given.prompts):
        for prompt, seq in zip(given.prompts, prompt_seqs, strict=True):
            if prompt.index is not None:
                found[prompt.index].append(seq)
    for link, seq in zip(given.links, seqs, strict=True):
        if link.place not in given.added:
            found[given.indices[link.place]].append(seq)
    return found


def client_plan_of(answer: ContextAnswer, seqs: Sequence[Sequence[int]]) -> ClientPlan:
    """Return the plan for the client's messages, whose events are at `seqs`."""
    inputs, planned = answer.assembled.inputs, answer.assembled.rendered.plan
    tail: list[tuple[Literal["layer", "injection", "note"], str | None, Content]] = [
        ("layer", layer.kind, layer.shown) for layer in inputs.layers
    ]
    if planned.notice is not None:
        tail.append(("note", None, planned.notice))
    tail += [("injection", one.name, enclose_injection(one.name, one.content)) for one in inputs.request.injections]
    return client_plan(seqs, planned.context, planned.state, tail)
