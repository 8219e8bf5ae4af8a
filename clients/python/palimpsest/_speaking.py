"""Flows of a session: creating it, and appending prompts, messages, tools and results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypedDict

from palimpsest._flows import Flow, WithStatus
from palimpsest._recall_tool import RECALL
from palimpsest._sending import CallState, log_answer, next_context
from palimpsest.errors import InvalidRequestError, NothingToSendError
from palimpsest.explain import Explanation
from palimpsest.formats import FORMATS
from palimpsest.operations import contexts, events, records, sessions, tenant
from palimpsest.operations.names import AppendIn, Content, Format, Message, plain
from palimpsest.reply import ToolCall
from palimpsest.types import (
    AppendedOut,
    EventIn,
    EventOut,
    ForkOut,
    HistoryItem,
    InjectionIn,
    PolicyDocument,
    PreviewOut,
    RewindOut,
)

MAIN = "main"
CREATED = 201


class CallOptions(TypedDict, total=False):
    """Options of a call, as in `post_context`."""

    view: str | None
    model: str | None
    max_tokens: int | None
    outside_tokens: int | None
    wait_ms: int | None
    policy: str | PolicyDocument | None
    force: bool | None
    cache_last: bool | None
    injections: Sequence[InjectionIn] | None
    now: str | datetime | None


@dataclass
class SessionState:
    """A session's settings, and the client's knowledge of its state."""

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
    last: CallState | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}")

    def begin(self) -> Flow[None]:
        """Create the session or set its settings before its first use; a view other than `main` does not set them.

        The answer that a turn has not logged yet is logged first.
        """
        if self.last is not None:
            yield from log_answer(self.last)
        if self.begun:
            return
        of_session: dict[str, Any] = {"metadata": self.metadata}
        if self.view in (None, MAIN):
            of_session |= {"model": self.model, "policy": self.policy}
        if any(value is not None for value in of_session.values()):
            yield sessions.put_session(self.id, **of_session)
        self.begun = True

    def system(self, prompt: Content) -> Flow[AppendedOut]:
        """Set the system prompt; nothing is appended if it is the current one."""
        return (yield from self._set_current("system.prompt", "system", prompt))

    def tools(self, tools: Iterable[Message]) -> Flow[AppendedOut]:
        """Set the tools, with the recall tool unless it was declined."""
        given = [dict(plain(tool)) for tool in tools]
        names = [name for tool in given for name in FORMATS[self.format].tool_names(tool)]
        if self.recall is not False:
            if RECALL in names:
                raise ValueError(
                    f"one of your tools is named {RECALL} too: rename it, or open the session with recall=False"
                )
            given.append((yield tenant.recall_tool(format=self.format)))
            self.recalls = True
        return (yield from self._set_current("tools", "tools", given))

    def _set_current(self, kind: Literal["system.prompt", "tools"], block: str, content: Any) -> Flow[AppendedOut]:
        """Append a system prompt or tools unless they are current: new ones invalidate the provider's cache.

        The event's id is a hash of its content, so that appending it again changes nothing. If the content was appended
        before but is no longer current, it is appended again without an id.
        """
        yield from self.begin()
        event: EventIn = {"type": kind, "content": content}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
        named: EventIn = {**event, "id": f"{kind}:{digest}"}
        appended: AppendedOut
        status, appended = yield WithStatus(events.append_events(self.id, events=[named]))
        if status == CREATED or (yield from self._is_current(block, appended.events[0].seq, content)):
            return appended
        repeated: AppendedOut = yield events.append_events(self.id, events=[event])
        return repeated

    def _is_current(self, block: str, seq: int, content: Any) -> Flow[bool]:
        try:
            preview: PreviewOut = yield contexts.preview_context(self.id, format="blocks", **self._window())
        except NothingToSendError:
            return True  # the log has nothing else yet that could have replaced it
        except InvalidRequestError:  # no context fits; appending it again is correct in any case
            return False
        shown = [one["seq"] for one in preview.request["blocks"] if one["kind"] == block]
        if not shown or shown[-1] == seq:
            return bool(shown)
        event: EventOut = yield events.get_event(self.id, shown[-1])  # an earlier start may have appended it again
        same: bool = event.content == content
        return same

    def user(self, content: Content) -> Flow[AppendedOut]:
        """Append a message of the user."""
        return (yield from self.log([FORMATS[self.format].user(content)]))

    def log(self, messages: Sequence[Message]) -> Flow[AppendedOut]:
        """Append messages in the session's format."""
        yield from self.begin()
        appended: AppendedOut = yield events.append_messages(self.id, format=self.format, messages=messages)
        return appended

    def results(self, given: Iterable[Any] | Mapping[str, Any]) -> Flow[AppendedOut]:
        """Append the results of tool calls."""
        results, unanswered = _results(given, [] if self.last is None else self.last.open)
        if self.last is not None:
            yield from log_answer(self.last)
        appended: AppendedOut = yield events.append_events(self.id, events=results)
        if self.last is not None:
            self.last.open = unanswered
        return appended

    def call(self, options: CallOptions, *, user: Content | None = None, in_turn: bool = False) -> Flow[CallState]:
        """Get a context for a call, after a message of the user if one is given.

        Options that are None or absent are those of the session.
        """
        yield from self.begin()
        if self.recall and not self.recalls:
            yield from self.tools([])
        asked = {"format": self.format, "view": self.view, **self._window()}
        asked |= {name: value for name, value in options.items() if value is not None}
        if self.view not in (None, MAIN) and self.policy is not None:
            asked.setdefault("policy", self.policy)
        append: AppendIn | None = None
        if user is not None:
            append = {"format": self.format, "messages": [FORMATS[self.format].user(user)]}
        context = yield contexts.post_context(self.id, **asked, append=append)
        self.last = CallState(self.id, context, asked, recalls=self.recalls, in_turn=in_turn)
        return self.last

    def _window(self) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": self.max_tokens}

    def explain(self, seq: int, view: str | None) -> Flow[Explanation]:
        """Explain how every call showed an event."""
        event = yield events.get_event(self.id, seq)
        listing = records.get_event_history(self.id, seq, view=view)
        calls: list[HistoryItem] = []
        while True:
            items, cursor = yield listing
            calls += items
            if cursor is None:
                return Explanation(event, calls)
            listing = listing.after(cursor)

    def fork(self, id: str, at: int | None, metadata: Mapping[str, Any] | None) -> Flow[SessionState]:
        """Create a fork with the settings of this session."""
        yield from self.begin()
        made: ForkOut = yield sessions.fork_session(self.id, id=id, at=at, metadata=metadata)
        return replace(self, id=made.id, metadata=None, begun=True, last=None)

    def rewind(self, to: int) -> Flow[RewindOut]:
        """Rewind to a seq, and forget open tool calls."""
        if self.last is not None:
            yield from log_answer(self.last)
        rewound: RewindOut = yield sessions.rewind_session(self.id, to=to)
        self.last = None
        return rewound


def next_round(state: CallState, given: Iterable[Any] | Mapping[str, Any]) -> Flow[None]:
    """Log the answer of a turn's call with the results of its tool calls, and get the context of the next call."""
    results, unanswered = _results(given, state.open)
    yield from next_context(state, results)
    state.open = unanswered


def _results(
    given: Iterable[Any] | Mapping[str, Any], open_calls: Sequence[ToolCall]
) -> tuple[list[EventIn], list[ToolCall]]:
    """Return the events of results, and the tool calls that are still open. Raises ValueError if there are none."""
    pairs = list(_pair_with_calls(given, open_calls))
    if not pairs:
        raise ValueError("there are no results to append")
    answered = {call_id for call_id, _ in pairs}
    return [_result(*pair) for pair in pairs], [call for call in open_calls if call.id not in answered]


def _pair_with_calls(
    given: Iterable[Any] | Mapping[str, Any], open_calls: Sequence[ToolCall]
) -> Iterable[tuple[str, Any]]:
    """Yield each result with the id of its call."""
    known = {call.id for call in open_calls}
    if isinstance(given, Mapping):
        if known and not known & set(given):
            raise ValueError(
                f"a mapping of results must have call ids as keys, such as {known}; put a single result in a list"
            )
        yield from given.items()
        return
    if isinstance(given, str):
        given = [given]
    in_order: list[Any] = []
    for one in given:
        named = _with_call_id(one, known)
        if named is None:
            in_order.append(one)
        else:
            yield named
    if in_order and len(in_order) != len(open_calls):
        raise ValueError(
            f"there are {len(in_order)} results for {len(open_calls)} open tool calls; give one for each in order, or "
            "map them by call: {call.id: result}"
        )
    yield from zip((call.id for call in open_calls), in_order, strict=False)


def _with_call_id(one: Any, known: set[str]) -> tuple[str, Any] | None:
    """Return the call's id and the result if the result names its call: a pair, or a provider's message."""
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
