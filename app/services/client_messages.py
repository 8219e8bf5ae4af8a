"""A client's complete messages as events, with the hashes by which they are found in a log.

Of what is in the log already nothing more than its hash is looked at: it was checked when it was appended. Of a list
that goes on with one that this process has read, only what is new is read and hashed.
"""

import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, Final
from uuid import UUID

from app.core.errors import InvalidMessage
from app.core.log.chain import START, Link, links, prompt_said, tools_said
from app.core.log.events import Draft, EventType, Json
from app.core.log.pairing import OpenIds, pair_calls
from app.core.log.parse import parse_event, tool_definitions
from app.core.render.formats import FORMATS, anthropic_parts, gemini_parts
from app.core.render.formats.parts import is_blank, native
from app.core.render.formats.reading import SYSTEM_ROLES, leading

AT_ONCE: Final = 200
AT_ONCE_BYTES: Final = 64 * 1024
"""Lists with more messages, or more in them, are read in a thread."""
KEPT_MAX: Final = 50_000
"""Messages and links, together, of the lists that a process knows: 7 MB."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event, and the index of the message that it came from; None if it came from the request's other fields."""

    draft: Draft
    index: int | None


@dataclass(frozen=True, slots=True)
class ClientMessages:
    """The complete messages of a client.

    `raw` are the events of the conversation as they were read and not checked yet, `indices` those of their messages,
    and `links` name the chained ones. `prompts` and `tools` are what goes in front, if the client says so.
    `all_prompts`: without prompts there are none. `count` is the number of messages. Where only what is new of a list
    was read, `raw` is without the first `unread` events, and `whole` reads all of it. `added` are the places of calls
    that stand in front of results without one, and `open_ids` continues the pairing (`core/log/pairing`).
    """

    count: int
    raw: Sequence[Mapping[str, Json]]
    indices: Sequence[int]
    links: Sequence[Link]
    prompts: tuple[ClientEvent, ...]
    tools: ClientEvent | None
    unread: int = 0
    whole: Callable[[], "ClientMessages"] | None = None
    all_prompts: bool = False
    added: frozenset[int] = frozenset()
    open_ids: OpenIds | None = None

    @property
    def prompts_said(self) -> tuple[bytes, ...]:
        """What the system prompts say."""
        return tuple(prompt_said(one.draft.content) for one in self.prompts)

    @property
    def tools_said(self) -> bytes | None:
        """What the tools are; None if the client does not say."""
        return None if self.tools is None else tools_said(tool_definitions(self.tools.draft.content))

    def behind(self, links_known: int) -> tuple[ClientEvent, ...]:
        """The events behind so many links; none if no link is among them, since reasoning goes with what follows it.

        Raises InvalidEvent with the index of the message at fault.
        """
        if links_known >= len(self.links):
            return ()
        first = self._first(links_known)
        if first < self.unread and self.whole is not None:
            return self.whole().behind(links_known)
        rest = enumerate(zip(self.raw[first - self.unread :], self.indices[first:], strict=True), first)
        return tuple(
            ClientEvent(parse_event(event, index, native=True), None if place in self.added else index)
            for place, (event, index) in rest
        )

    def links_behind(self, links_known: int, in_front: int) -> list[Link]:
        """The links of the events `behind` so many links, which are appended behind `in_front` others."""
        moved = in_front - self._first(links_known)
        return [Link(link.place + moved, link.hash) for link in self.links[links_known:]]

    def _first(self, links_known: int) -> int:
        """The place behind so many links."""
        return self.links[links_known - 1].place + 1 if links_known else 0


@dataclass(frozen=True, slots=True)
class ClientList:
    """A client's request: its messages in a provider's format, and what it sends beside them.

    `all_prompts`: without a system prompt there is none, whatever is in force. Of a list that is not `complete`,
    results may answer calls that are in the log, and it is read without links, which depend on what is in front.
    """

    form: str
    messages: Sequence[Any]
    system: Json = None
    tools: Json = None
    all_prompts: bool = False
    complete: bool = True

    @property
    def long(self) -> bool:
        """Whether reading the list takes so long that it delays other requests."""
        size = accumulate(len(_bytes(message)) for message in self.messages)
        return len(self.messages) > AT_ONCE or any(so_far > AT_ONCE_BYTES for so_far in size)

    def read(self) -> ClientMessages:
        """Read all of it. Raises InvalidMessage, or InvalidEvent for the system prompt or the tools."""
        groups = FORMATS[self.form].reader(self.messages)
        raw = [event for group in groups for event in group]
        indices = [index for index, group in enumerate(groups) for _ in group]
        first = next((n for n, event in enumerate(raw) if event["type"] != EventType.SYSTEM_PROMPT), len(raw))
        prompts, tools = self._in_front(raw[:first])
        raw, indices = raw[first:], indices[first:]
        if not self.complete:
            return ClientMessages(len(self.messages), raw, indices, (), prompts, tools, all_prompts=self.all_prompts)
        paired = pair_calls(raw)
        return ClientMessages(
            len(self.messages),
            paired.events,
            [indices[source] for source in paired.sources],
            links(paired.events),
            prompts,
            tools,
            all_prompts=self.all_prompts,
            added=paired.added,
            open_ids=paired.open_ids,
        )

    def read_behind(self, known: "_Known") -> ClientMessages:
        """The same of a list that begins, behind its prompts, with messages that were read. Raises what `read` raises.

        The reader gets the first message, too: with a system message in front it would take that for a prompt.
        """
        form = FORMATS[self.form]
        count = leading(self.messages, SYSTEM_ROLES)
        begins = count + known.count
        try:
            if form.apart:
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
        prompts, tools = self._in_front(form.read(self.messages[:count]))
        return ClientMessages(
            len(self.messages),
            paired.events,
            [*(count + index for index in known.indices), *(indices[source] for source in paired.sources)],
            [*known.links, *(Link(unread + link.place, link.hash) for link in new)],
            prompts,
            tools,
            unread,
            self.read,
            self.all_prompts,
            known.added | {unread + place for place in paired.added},
            paired.open_ids,
        )

    def _in_front(self, raw: Sequence[Mapping[str, Json]]) -> tuple[tuple[ClientEvent, ...], ClientEvent | None]:
        """The system prompts, of which the leading messages come to one event each, and the tools."""
        prompts = [ClientEvent(parse_event(event, n, native=True), n) for n, event in enumerate(raw)]
        beside = () if self.system is None else _prompt(self.form, self.system)
        tools = {"type": "tools", "content": self.tools}
        return (*beside, *prompts), None if self.tools is None else ClientEvent(parse_event(tools), None)


@dataclass(frozen=True, slots=True)
class _Known:
    """What `count` messages behind the prompts were read as; `indices` count from the first of them."""

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
    """Reads clients' lists. Of those that it read last it knows a digest and the links, so that of the next list of the
    same client only what is new is read. For threads."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._known: OrderedDict[object, _Known] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def read(self, tenant_id: UUID, session: str, given: ClientList) -> ClientMessages:
        """Read a list; what comes of it is that of `ClientList.read`, which this raises the errors of."""
        first = leading(given.messages, SYSTEM_ROLES)
        messages = given.messages[first:]
        if not messages:
            return given.read()
        key = (tenant_id, session, given.form, _digest(messages[:1]).digest())
        with self._lock:
            known = self._known.get(key)
        count = 0 if known is None else known.count
        digest = _digest(messages[:count])
        goes_on = known is not None and digest.digest() == known.digest
        read = given.read_behind(known) if known is not None and goes_on else given.read()
        for message in messages[count:]:
            digest.update(_bytes(message))
        self._keep(
            key,
            _Known(
                len(messages),
                digest.digest(),
                [index - first for index in read.indices],
                read.links,
                read.added,
                read.open_ids,
            ),
        )
        return read

    def _keep(self, key: object, known: _Known) -> None:
        """Keep what a list was read as, and forget the lists that were not sent for the longest time."""
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
    """A JSON value as bytes that no other value has; for this process alone. Written four times as fast as JSON.

    The format's version 2 does not depend on whether an object occurs twice, as newer ones do.
    """
    return marshal.dumps(message, 2)


def _prompt(form: str, system: Json) -> Sequence[ClientEvent]:
    """The system prompt that a request has beside its messages; none if it is blank."""
    event: Mapping[str, Json] = {"type": "system.prompt", "content": system}
    if form == anthropic_parts.NAME:
        event = {**event, "content": anthropic_parts.unmarked(system), "native": native(form, head={})}
    if form == gemini_parts.NAME and not isinstance(system, str):
        parts = gemini_parts.read_parts({"parts": system}, 0)
        event = {**event, "content": list(map(gemini_parts.typed, parts)), "native": native(form, head={})}
    draft = parse_event(event, native=True)
    return () if is_blank(draft.content) else (ClientEvent(draft, None),)
