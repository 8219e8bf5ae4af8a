"""The base of the adapters: send a framework's messages to the server, and apply the server's plan to them.

An adapter requests a `FittedContext` before each model call and reports the outcome of the call. No failure of the
server fails the model call: if a request is not answered within `timeout`, or the messages are refused, `fit` returns
None, and the messages go to the model unchanged. Only settings that have never worked raise an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import httpx2

from palimpsest._flows import Flow, arun, run
from palimpsest._recall_tool import RECALL_PROPERTIES
from palimpsest._refusals import OUTAGES, is_about, is_outage, reason
from palimpsest._request import Request
from palimpsest._sending import error_report
from palimpsest._transport import AsyncTransport, Connections, Options, Transport
from palimpsest.client import AsyncPalimpsest, Palimpsest
from palimpsest.errors import ConflictError, PalimpsestError, StatusError, UnreadableAnswer
from palimpsest.operations import contexts, events, sessions
from palimpsest.operations.names import Content, Format, Message
from palimpsest.types import ContextOut, OutcomeOut, PolicyDocument, RecallOut, UsageIn

T = TypeVar("T")
K = TypeVar("K")
TIMEOUT_SECONDS = 10.0
SESSIONS_KEPT = 1_000
"""The number of sessions whose settings and last call an adapter remembers."""
OBSERVED_VIEW = "~observed"
"""The view of contexts that are only recorded."""
NOT_SENT = "not sent: the context only served to log the messages"
_log = logging.getLogger("palimpsest")


class Settings(TypedDict, total=False):
    """Settings of every adapter, in addition to the session's id."""

    client: Palimpsest | AsyncPalimpsest
    """Client of the server; its timeout and retries are not used. Default: one configured by the environment."""
    model: str
    """Model that contexts are made for. Default: the one that the framework calls."""
    max_tokens: int
    """Window that contexts are made for. Default: that of the policy or the model."""
    policy: str | PolicyDocument
    """Name of a policy, or a document, to set for the session. Default: the session's current policy."""
    metadata: Mapping[str, Any]
    """Metadata of new sessions."""
    outside_tokens: int
    """Tokens sent in addition to messages, system prompt and tools, such as a schema of the answer."""
    recall: bool
    """Whether to give the model the recall tool. Default: no."""
    observe: bool
    """Whether to send all messages unchanged and only record the contexts, to see what they would save. Default: no."""
    holdout: float
    """Share of the sessions, drawn by their names, that are only observed, to measure the saving. Default: none."""
    timeout: float
    """Seconds to wait for each response; without a context by then, messages go to the model unchanged."""


@dataclass(frozen=True)
class FittedContext:
    """The context of one model call, as a plan for the messages that were sent for it."""

    session: str
    context: ContextOut
    plan: Sequence[Mapping[str, Any]]
    """For each message `{"index", "action": "keep"|"replace"|"drop", "text"?, "parts"?, "seqs"}`."""
    inserted: Sequence[Mapping[str, Any]]
    """Messages to insert, in order: `{"before": index, "kind", "role", "text", "id"?, "call_id"?}`."""
    asked: Mapping[str, Any] = field(repr=False)
    began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def is_observed(self) -> bool:
        """Whether the context is only recorded, and the framework's own messages are sent."""
        return self.context.view == OBSERVED_VIEW

    def apply(
        self,
        own: Sequence[T],
        replaced: Callable[[T, Mapping[str, Any]], T | None],
        inserted: Callable[[Mapping[str, Any]], T],
    ) -> list[T]:
        """Apply the plan to the framework's objects, one for each message that was sent.

        Kept messages are the same objects; all are kept if the context is only recorded. `replaced` returns a changed
        copy of a message, or None if nothing of it is left; `inserted` makes a message that the framework does not
        have.
        """
        if self.is_observed:
            return list(own)
        before: dict[int, list[T]] = {}
        for one in self.inserted:
            before.setdefault(one["before"], []).append(inserted(one))
        result: list[T] = []
        for index, (message, step) in enumerate(zip(own, self.plan, strict=True)):
            result += before.pop(index, ())
            changed = message if step["action"] == "keep" else None
            if step["action"] == "replace":
                changed = replaced(message, step)
            if changed is not None:
                result.append(changed)
        return [*result, *(one for rest in before.values() for one in rest)]


def part_change(step: Mapping[str, Any], call_id: str | None = None) -> tuple[str, str | None]:
    """Return the action, and the new text if any, for the part of a message with a tool call's id, or for its text.

    The new text of a tool call is its arguments as JSON. A part without an event of its own is kept.
    """
    parts = step.get("parts")
    if not parts:
        return step["action"], step.get("text")
    return next(((one["action"], one.get("text")) for one in parts if one.get("call_id") == call_id), ("keep", None))


class Budget:
    """Contexts for a framework's model calls, and reports of their outcomes, as flows for `run` and `arun`."""

    def __init__(self, format: Format, settings: Settings) -> None:
        client = settings.get("client") or Palimpsest()
        self.format: Format = format
        self.recall = settings.get("recall", False)
        self.model = settings.get("model")
        self._of_session: dict[str, Any] = _given(settings, "policy", "metadata")
        self._of_call: dict[str, Any] = _given(settings, "max_tokens", "outside_tokens", "observe", "holdout")
        self._timeout = settings.get("timeout", TIMEOUT_SECONDS)
        self._options = client._transport.options.replace(None, None, self._timeout, 0, None)
        http = client._transport.http if isinstance(client, Palimpsest) else Connections()
        self._transport = Transport(self._options, http)
        self._given: AsyncTransport | None = None
        if isinstance(client, AsyncPalimpsest):
            self._given = AsyncTransport(self._options, client._transport.http)
        self._of_loops: dict[asyncio.AbstractEventLoop, tuple[AsyncTransport, AsyncGenerator[AsyncTransport]]] = {}
        self._sessions: OrderedDict[str, str | None] = OrderedDict()
        self.passed_through: OrderedDict[str, int] = OrderedDict()
        """The number of model calls whose messages were sent unchanged, by session."""
        self._warned: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._served = False  # whether the settings have worked before
        self.is_unreachable = False

    def run(self, flow: Flow[T]) -> T:
        """Run a flow, blocking."""
        return run(flow, self._transport)

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow. Each event loop has its own connections, unless an AsyncPalimpsest was given."""
        if self._given is not None:
            return await arun(flow, self._given)
        loop = asyncio.get_running_loop()
        if loop not in self._of_loops or self._of_loops[loop][0].http.is_closed:
            for ended in [one for one in list(self._of_loops) if one.is_closed()]:
                self._of_loops.pop(ended, None)
            opened = _connections(self._options)
            self._of_loops[loop] = await anext(opened), opened
        return await arun(flow, self._of_loops[loop][0])

    def fit(
        self,
        session: str,
        messages: Iterable[Message],
        *,
        model: str | None = None,
        system: Content | None = None,
        tools: Iterable[Message] | None = None,
        window: int | None = None,
    ) -> Flow[FittedContext | None]:
        """Request the context for a call with these messages; None if they are to be sent unchanged.

        `window` is the framework's own, which the setting `max_tokens` overrides.

        That is the case if the server is unreachable or refuses them, or if iterating over `messages` or `tools`, which
        may convert them lazily, raises. Raises StatusError for settings that have never worked, such as a wrong key.
        """
        fit = yield from self._request_fit(session, messages, self.model or model, system, tools, window)
        if fit is None:
            self.count_unchanged(session)
        return fit

    def count_unchanged(self, session: str) -> None:
        """Count a model call whose messages are sent unchanged."""
        keep(self.passed_through, session, self.passed_through.get(session, 0) + 1)

    def _request_fit(
        self,
        session: str,
        messages: Iterable[Message],
        model: str | None,
        system: Content | None,
        tools: Iterable[Message] | None,
        window: int | None,
    ) -> Flow[FittedContext | None]:
        of_call = {"max_tokens": window, **self._of_call} if window else self._of_call
        try:
            asked: dict[str, Any] = {"format": self.format, "model": model, **of_call, "messages": list(messages)}
            asked |= {"system": system or "", "tools": None if tools is None else list(tools)}
        except Exception as error:  # whatever the framework's objects raise
            self._warn_refused(session, "unreadable", repr(error))
            return None
        if session not in self._sessions and self._of_session:
            done = yield from self.request_or_none(
                sessions.put_session(session, model=model, **self._of_session), session
            )
            if done is None:
                return None
        if self.recall:
            asked["recall"] = True
        context = yield from self.request_or_none(contexts.post_context(session, **asked), session)
        return None if context is None else self._fit(session, context, asked)

    def _fit(self, session: str, context: ContextOut, asked: Mapping[str, Any]) -> FittedContext | None:
        try:
            sent = context.to_dict()
            if not _is_plan(sent, len(asked["messages"])):
                raise UnreadableAnswer("the context has no plan for these messages")
        except (UnreadableAnswer, AttributeError) as error:
            self.note_outage(error)
            return None
        keep(self._sessions, session, context.call_id)
        return FittedContext(session, context, sent["plan"], sent["inserted"], asked)

    def report_success(
        self, fit: FittedContext, *, usage: UsageIn | None = None, reply: Iterable[Message] = ()
    ) -> Flow[None]:
        """Report a successful call, and log the reply.

        Pass a `reply` only if the framework may not send it again, as for the last one of a run; any other is among the
        messages of the next call. Errors are logged, never raised.
        """
        latency = int((time.monotonic() - fit.began) * 1000)
        yield from self.try_report(
            contexts.report_outcome(fit.session, fit.context.call_id, usage=usage, latency_ms=latency)
        )
        messages = list(reply)
        if messages:  # only directly after the call's own messages; otherwise the next call sends it
            line, head = fit.context.to_dict()["line"], fit.context.head
            yield from self.try_report(
                events.append_messages(line, format=self.format, messages=messages, expected_head=head)
            )

    def report_failure(
        self, fit: FittedContext, error: BaseException, *, retry: bool = True
    ) -> Flow[FittedContext | None]:
        """Report the provider's error. If the context was too long, return a smaller one for a retry.

        No context is made without `retry`, as for a call whose answer has begun, or for one that is only observed.
        """
        latency = int((time.monotonic() - fit.began) * 1000)
        report = contexts.report_outcome(
            fit.session, fit.context.call_id, error=error_report(error), latency_ms=latency
        )
        outcome: OutcomeOut | None = yield from self.try_report(report)
        if (
            not retry
            or fit.is_observed
            or not isinstance(outcome, OutcomeOut)
            or outcome.action != "retry"
            or outcome.next is None
        ):
            return None
        wait = (outcome.next.body or {}).get("wait_ms")
        if wait is not None:  # the wait for summaries must end before our own timeout
            wait = min(wait, int(self._timeout * 500))
        again = contexts.post_context(fit.session, **fit.asked, retry_of=fit.context.call_id, wait_ms=wait)
        context = yield from self.request_or_none(again, fit.session)
        return None if context is None else self._fit(fit.session, context, fit.asked)

    def log_messages(self, session: str, messages: Sequence[Message]) -> Flow[bool]:
        """Log a complete list of messages without a model call. Return whether the server accepted it."""
        context = yield from self.request_or_none(
            contexts.post_context(session, format=self.format, messages=messages), session
        )
        if context is None or not context.call_id:
            return False
        yield from self.try_report(contexts.report_outcome(session, context.call_id, error={"message": NOT_SENT}))
        return True

    def recall_result(self, session: str, arguments: Any) -> Flow[str]:
        """Return the result of a call of the recall tool: JSON, or an error message for the model."""
        if not isinstance(arguments, Mapping):
            return "the arguments are not a JSON object"
        given = {name: value for name, value in arguments.items() if name in RECALL_PROPERTIES and value is not None}
        try:
            found: RecallOut = yield events.recall(session, call_id=self._sessions.get(session), **given)
        except PalimpsestError as error:
            if not isinstance(error, StatusError):
                self.note_outage(error)
            return str(error)
        return json.dumps(found.to_dict(), ensure_ascii=False)

    def request_or_none(self, asked: Request[T], session: str) -> Flow[T | None]:
        """Return the response to a request; None if the server is unreachable or refuses it. Raises as `guard` does."""

        def one() -> Flow[T]:
            answer: T = yield asked
            return answer

        return (yield from self.guard(one(), session))

    def guard(self, flow: Flow[T], session: str) -> Flow[T | None]:
        """Return the result of a flow; None if the server is unreachable or refuses a request of it.

        Raises StatusError for settings that have never worked.
        """
        try:
            answer = yield from flow
        except PalimpsestError as error:
            if not self._served and is_about(error, Settings.__annotations__):
                raise
            if is_outage(error):
                self.note_outage(error)
            else:
                self._warn_refused(session, getattr(error, "slug", None) or type(error).__name__, reason(error))
            return None
        except (TypeError, ValueError, RecursionError) as error:  # not representable as JSON
            self._warn_refused(session, "unreadable", repr(error))
            return None
        self._served = True
        if self.is_unreachable:
            self.is_unreachable = False
            _log.warning("the server is back at %s; contexts are within their budget again", self._options.base_url)
        return answer

    def try_report(self, asked: Request[T]) -> Flow[T | None]:
        """Return the response to a request; on any error, log it and return None."""
        try:
            answer: T = yield asked
        except ConflictError:  # it was reported before, or the conversation has continued
            return None
        except OUTAGES as error:
            self.note_outage(error)
            return None
        except (PalimpsestError, TypeError, ValueError, RecursionError) as error:
            _log.warning("the request to %s failed: %s", asked.path, error)
            return None
        return answer

    def note_outage(self, error: Exception) -> None:
        """Log an outage, once until the server is back."""
        if not self.is_unreachable:
            self.is_unreachable = True
            _log.warning("the server is unreachable, so messages go to the model unchanged until it is back: %s", error)

    def _warn_refused(self, session: str, kind: str, reason: str) -> None:
        """Log that the server refuses a session's messages, once for each session and kind of refusal."""
        if (session, kind) not in self._warned:
            keep(self._warned, (session, kind), None)
            _log.warning(
                "session %s: no context was made, so its messages go to the model unchanged: %s", session, reason
            )


class Adapter:
    """The interface that all adapters share."""

    _budget: Budget

    @property
    def passed_through(self) -> Mapping[str, int]:
        """The number of model calls whose messages were sent unchanged, by session, for the last 1,000 such sessions.

        These are calls for which the server made no context, or whose messages could not be converted.
        """
        return dict(self._budget.passed_through)


async def _connections(options: Options) -> AsyncGenerator[AsyncTransport]:
    """Yield connections of the running loop, which closes them when it shuts down its asynchronous generators."""
    http = httpx2.AsyncClient()  # nothing is awaited before the yield, so a loop opens one only
    try:
        yield AsyncTransport(options, http)
    finally:
        await http.aclose()


def _given(settings: Settings, *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names and value is not None}


def keep(kept: OrderedDict[K, T], key: K, value: T) -> None:
    """Store a value, and drop the oldest above SESSIONS_KEPT."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > SESSIONS_KEPT:
        kept.popitem(last=False)


def _is_plan(sent: Mapping[str, Any], count: int) -> bool:
    """Return whether a context has the fields that `FittedContext` and the adapters use."""
    plan, inserted = sent.get("plan"), sent.get("inserted")
    if not isinstance(plan, list) or not isinstance(inserted, list) or len(plan) != count:
        return False
    texts = all(isinstance(sent.get(name), str) for name in ("call_id", "line"))
    steps = all(isinstance(step, dict) and step.get("action") in ("keep", "replace", "drop") for step in plan)
    between = all(isinstance(one, dict) and {"before", "role", "text"} <= one.keys() for one in inserted)
    return texts and steps and between and isinstance(sent.get("request"), dict)
