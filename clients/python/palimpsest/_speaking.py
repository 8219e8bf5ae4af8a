"""What is said in a session, as flows: its beginning, prompts, messages, tools and results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from palimpsest._flows import Flow, WithStatus
from palimpsest._recall_tool import RECALL
from palimpsest._sending import State
from palimpsest.errors import InvalidRequestError, NothingToSendError
from palimpsest.explain import Explanation
from palimpsest.formats import FORMATS
from palimpsest.operations import contexts, events, records, sessions, tenant
from palimpsest.operations.names import Content, Format, Message, plain
from palimpsest.reply import ToolCall
from palimpsest.types import (
    AppendedOut,
    EventIn,
    EventOut,
    ForkOut,
    HistoryItem,
    PolicyDocument,
    PreviewOut,
    RewindOut,
)

MAIN = "main"
CREATED = 201


@dataclass
class Speaker:
    """A session's settings, and what the client knows of its state."""

    id: str
    format: Format
    model: str | None
    max_tokens: int | None
    policy: str | PolicyDocument | None
    view: str | None
    recall: bool | None
    metadata: Mapping[str, Any] | None
    begun: bool = False
    recalls: bool = False
    last: State | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}")

    def begin(self) -> Flow[None]:
        """Create the session, or give it its settings, before its first use. Another view leaves them alone."""
        if self.begun:
            return
        of_session: dict[str, Any] = {"metadata": self.metadata}
        if self.view in (None, MAIN):
            of_session |= {"model": self.model, "policy": self.policy}
        if any(value is not None for value in of_session.values()):
            yield sessions.put_session(self.id, **of_session)
        self.begun = True

    def system(self, prompt: Content) -> Flow[AppendedOut]:
        """Set the system prompt; nothing is appended if it is the one that stands."""
        return (yield from self._standing("system.prompt", "system", prompt))

    def tools(self, tools: Iterable[Message]) -> Flow[AppendedOut]:
        """Set the tools, with the recall tool among them unless it was declined."""
        given = [dict(plain(tool)) for tool in tools]
        names = [name for tool in given for name in FORMATS[self.format].tool_names(tool)]
        if self.recall is not False:
            if RECALL in names:
                raise ValueError(
                    f"a tool of yours is named {RECALL} too: rename it, or open the session with recall=False"
                )
            given.append((yield tenant.recall_tool(format=self.format)))
            self.recalls = True
        return (yield from self._standing("tools", "tools", given))

    def _standing(self, kind: Literal["system.prompt", "tools"], block: str, content: Any) -> Flow[AppendedOut]:
        """Append what stands until it is replaced, unless it stands already: a new one costs the provider's cache.

        Its id is made of its content, so that appending it again does nothing. Then it either stands still, or it stood
        before another one and is appended anew.
        """
        yield from self.begin()
        event: EventIn = {"type": kind, "content": content}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
        named: EventIn = {**event, "id": f"{kind}:{digest}"}
        appended: AppendedOut
        status, appended = yield WithStatus(events.append_events(self.id, events=[named]))
        if status == CREATED or (yield from self._stands(block, appended.events[0].seq, content)):
            return appended
        anew: AppendedOut = yield events.append_events(self.id, events=[event])
        return anew

    def _stands(self, block: str, seq: int, content: Any) -> Flow[bool]:
        try:
            preview: PreviewOut = yield contexts.preview_context(self.id, format="blocks", **self._window())
        except NothingToSendError:
            return True  # nothing has been said yet, so that nothing stands in its place
        except InvalidRequestError:  # nothing fits: to append it anew is right at least
            return False
        shown = [one["seq"] for one in preview.request["blocks"] if one["kind"] == block]
        if not shown or shown[-1] == seq:
            return bool(shown)
        event: EventOut = yield events.get_event(self.id, shown[-1])  # it was appended anew at an earlier start
        same: bool = event.content == content
        return same

    def user(self, content: Content) -> Flow[AppendedOut]:
        """Append what the user says."""
        return (yield from self.log([FORMATS[self.format].user(content)]))

    def log(self, messages: Sequence[Message]) -> Flow[AppendedOut]:
        """Append messages in the session's format."""
        yield from self.begin()
        appended: AppendedOut = yield events.append_messages(self.id, format=self.format, messages=messages)
        return appended

    def results(self, given: Iterable[Any] | Mapping[str, Any]) -> Flow[AppendedOut]:
        """Append the results of tool calls."""
        open_calls = [] if self.last is None else self.last.open
        pairs = list(_paired(given, open_calls))
        if not pairs:
            raise ValueError("there are no results to append")
        appended: AppendedOut = yield events.append_events(self.id, events=[_result(*pair) for pair in pairs])
        answered = {call_id for call_id, _ in pairs}
        if self.last is not None:
            self.last.open = [call for call in open_calls if call.id not in answered]
        return appended

    def call(self, **given: Any) -> Flow[State]:
        """Get a context for a call; what is None in its options is the session's."""
        yield from self.begin()
        if self.recall and not self.recalls:
            yield from self.tools([])
        asked = {"format": self.format, "view": self.view, **self._window()}
        asked |= {name: value for name, value in given.items() if value is not None}
        if self.view not in (None, MAIN) and self.policy is not None:
            asked.setdefault("policy", self.policy)
        context = yield contexts.post_context(self.id, **asked)
        self.last = State(self.id, context, asked, self.recalls)
        return self.last

    def _window(self) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": self.max_tokens}

    def explain(self, seq: int, view: str | None) -> Flow[Explanation]:
        """What became of an event in every call."""
        event = yield events.get_event(self.id, seq)
        listing = records.get_event_history(self.id, seq, view=view)
        calls: list[HistoryItem] = []
        while True:
            items, cursor = yield listing
            calls += items
            if cursor is None:
                return Explanation(event, calls)
            listing = listing.after(cursor)

    def fork(self, id: str, at: int | None, metadata: Mapping[str, Any] | None) -> Flow[Speaker]:
        """Create a fork, which has everything that this session was given."""
        yield from self.begin()
        made: ForkOut = yield sessions.fork_session(self.id, id=id, at=at, metadata=metadata)
        return replace(self, id=made.id, metadata=None, begun=True, last=None)

    def rewind(self, to: int) -> Flow[RewindOut]:
        """Go back to a seq; what was open behind it no longer is."""
        rewound: RewindOut = yield sessions.rewind_session(self.id, to=to)
        self.last = None
        return rewound


def _paired(given: Iterable[Any] | Mapping[str, Any], open_calls: Sequence[ToolCall]) -> Iterable[tuple[str, Any]]:
    """Each result with the id of its call."""
    known = {call.id for call in open_calls}
    if isinstance(given, Mapping):
        if known and not known & set(given):
            raise ValueError(
                f"a mapping says whose results are in it, by {known}; one result goes into a list: [result]"
            )
        yield from given.items()
        return
    if isinstance(given, str):
        given = [given]
    in_order: list[Any] = []
    for one in given:
        named = _named(one, known)
        if named is None:
            in_order.append(one)
        else:
            yield named
    if in_order and len(in_order) != len(open_calls):
        raise ValueError(
            f"there are {len(in_order)} results for {len(open_calls)} open tool calls; give one for each in order, or "
            "say whose they are: {call.id: result}"
        )
    yield from zip((call.id for call in open_calls), in_order, strict=False)


def _named(one: Any, known: set[str]) -> tuple[str, Any] | None:
    """A result that names its call: a pair, or a message in a provider's format."""
    if isinstance(one, tuple) and len(one) == 2 and (isinstance(one[0], ToolCall) or one[0] in known):
        return (one[0].id if isinstance(one[0], ToolCall) else one[0]), one[1]
    if isinstance(one, Mapping):
        for name, content in (("tool_call_id", "content"), ("tool_use_id", "content"), ("call_id", "output")):
            if one.get(name) in known and content in one:
                return one[name], one[content]
    return None


def _result(call_id: str, value: Any) -> EventIn:
    event: EventIn = {"type": "tool.result", "call_id": call_id}
    if isinstance(value, BaseException):
        event["content"], event["is_error"] = f"{type(value).__name__}: {value}", True
    elif isinstance(value, str) or _is_parts(value):
        event["content"] = value
    else:
        event["content"] = json.dumps(value, default=_text, ensure_ascii=False)
    return event


def _is_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) and "type" in part for part in value)


def _text(value: Any) -> Any:
    try:
        return plain(value)
    except TypeError:
        return str(value)
