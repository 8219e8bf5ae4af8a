"""What the adapters share: messages of a framework are sent to be reconciled, and the plan for them is carried out.

An adapter asks for a `Fit` before each model call and reports what became of the call. It never stands in the way of
the framework: while the server is away, and for what it refuses, `fit` gives None, and the framework's own messages go
to the model as they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import httpx2

from palimpsest._flows import Flow, arun, run
from palimpsest._recall_tool import RECALL_PROPERTIES
from palimpsest._refusals import OUTAGES, is_about, is_outage, reason
from palimpsest._request import Request
from palimpsest._sending import error_said
from palimpsest._transport import AsyncTransport, Connections, Transport
from palimpsest.client import AsyncPalimpsest, Palimpsest
from palimpsest.errors import ConflictError, PalimpsestError, StatusError, UnreadableAnswer
from palimpsest.operations import contexts, events, sessions
from palimpsest.operations.names import Content, Format, Message
from palimpsest.types import ContextOut, OutcomeOut, PolicyDocument, RecallOut, UsageIn

T = TypeVar("T")
K = TypeVar("K")
TIMEOUT_SECONDS = 10.0
SESSIONS_KEPT = 1_000
"""Sessions whose settings and last call an adapter remembers."""
NOT_SENT = "not sent: the context only served to log the messages"
_log = logging.getLogger("palimpsest")


class Settings(TypedDict, total=False):
    """What every adapter can be given, beside the session's id."""

    client: Palimpsest | AsyncPalimpsest
    """Client of the server; its timeout and retries do not count here. Default: one from the environment."""
    model: str
    """Model that contexts are made for. Default: the one that the framework calls."""
    max_tokens: int
    """Window that contexts are made for. Default: that of the policy or the model."""
    policy: str | PolicyDocument
    """Name of a policy, or a document: the session's from then on. Default: what the session has."""
    metadata: Mapping[str, Any]
    """Metadata of new sessions."""
    outside_tokens: int
    """Size of what is sent beside messages, system prompt and tools, such as a schema of the answer."""
    recall: bool
    """Whether the model is given the recall tool. Default: no."""
    timeout: float
    """Seconds after which the framework's own messages go to the model instead."""


@dataclass(frozen=True)
class Fit:
    """The context of one model call, as what is to be done with the messages that were sent for it."""

    session: str
    context: ContextOut
    plan: Sequence[Mapping[str, Any]]
    """For each message `{"index", "action": "keep"|"replace"|"drop", "text"?, "parts"?, "seqs"}`."""
    inserted: Sequence[Mapping[str, Any]]
    """What stands between them, in order: `{"before": index, "kind", "role", "text", "id"?, "call_id"?}`."""
    asked: Mapping[str, Any] = field(repr=False)
    began: float = field(default_factory=time.monotonic, repr=False)

    def applied(
        self,
        own: Sequence[T],
        replaced: Callable[[T, Mapping[str, Any]], T | None],
        inserted: Callable[[Mapping[str, Any]], T],
    ) -> list[T]:
        """The framework's objects, one for each message that was sent, with the plan carried out.

        What is kept is the very same object. `replaced` makes the copy of one that says something else, or None if
        nothing of it is left; `inserted` makes a message that the framework does not have.
        """
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


def change(step: Mapping[str, Any], call_id: str | None = None) -> tuple[str, str | None]:
    """What becomes of a message's tool call or tool result with an id, or of its text: the action, and the new text.

    The new text of a tool call is its arguments as JSON. A part that came to no event of its own stays.
    """
    parts = step.get("parts")
    if not parts:
        return step["action"], step.get("text")
    return next(((one["action"], one.get("text")) for one in parts if one.get("call_id") == call_id), ("keep", None))


class Budget:
    """Contexts for the model calls of a framework, and what became of them, as flows for `run` and `arun`."""

    def __init__(self, format: Format, settings: Settings) -> None:
        client = settings.get("client") or Palimpsest()
        self.format: Format = format
        self.recall = settings.get("recall", False)
        self.model = settings.get("model")
        self._of_session: dict[str, Any] = _given(settings, "policy", "metadata")
        self._of_call: dict[str, Any] = _given(settings, "max_tokens", "outside_tokens")
        self._timeout = settings.get("timeout", TIMEOUT_SECONDS)
        self._options = client._transport.options.changed(None, None, self._timeout, 0, None)
        http = client._transport.http if isinstance(client, Palimpsest) else Connections()
        self._transport = Transport(self._options, http)
        self._given = client._transport.http if isinstance(client, AsyncPalimpsest) else None
        self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncTransport]
        self._of_loops = weakref.WeakKeyDictionary()
        self._sessions: OrderedDict[str, str | None] = OrderedDict()
        self.passed_through: OrderedDict[str, int] = OrderedDict()
        """For each session the number of model calls whose messages went as they were."""
        self._warned: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._served = False  # whether the settings have worked once
        self.away = False

    def run(self, flow: Flow[T]) -> T:
        """Do what a flow asks for, and wait for it."""
        return run(flow, self._transport)

    async def arun(self, flow: Flow[T]) -> T:
        """Do what a flow asks for. Each event loop has connections of its own, unless an AsyncPalimpsest was given."""
        loop = asyncio.get_running_loop()
        transport = self._of_loops.get(loop)
        if transport is None:
            transport = self._of_loops[loop] = AsyncTransport(self._options, self._given or httpx2.AsyncClient())
        return await arun(flow, transport)

    def fit(
        self,
        session: str,
        messages: Iterable[Message],
        *,
        model: str | None = None,
        system: Content | None = None,
        tools: Iterable[Message] | None = None,
    ) -> Flow[Fit | None]:
        """The context for a call with these messages; None if they are to go to the model as they are.

        That is so while the server is away, and for what it refuses. `messages` and `tools` may be converted while they
        are iterated over; what cannot be converted goes as it is, too. Raises StatusError for settings that have never
        worked, such as a wrong key.
        """
        fit = yield from self._asked(session, messages, self.model or model, system, tools)
        if fit is None:
            self.passes(session)
        return fit

    def passes(self, session: str) -> None:
        """Count a model call whose messages go as they are."""
        _keep(self.passed_through, session, self.passed_through.get(session, 0) + 1)

    def _asked(
        self,
        session: str,
        messages: Iterable[Message],
        model: str | None,
        system: Content | None,
        tools: Iterable[Message] | None,
    ) -> Flow[Fit | None]:
        try:
            asked: dict[str, Any] = {"format": self.format, "model": model, **self._of_call, "messages": list(messages)}
            asked |= {"system": system or "", "tools": None if tools is None else list(tools)}
        except Exception as error:  # whatever the framework's objects raise
            self._refused(session, "unreadable", repr(error))
            return None
        if session not in self._sessions and self._of_session:
            done = yield from self.ask(sessions.put_session(session, model=model, **self._of_session), session)
            if done is None:
                return None
        if self.recall:
            asked["recall"] = True
        context = yield from self.ask(contexts.post_context(session, **asked), session)
        return None if context is None else self._fit(session, context, asked)

    def _fit(self, session: str, context: ContextOut, asked: Mapping[str, Any]) -> Fit | None:
        try:
            sent = context.to_dict()
            if not _is_plan(sent, len(asked["messages"])):
                raise UnreadableAnswer("the context has no plan for these messages")
        except (UnreadableAnswer, AttributeError) as error:
            self.lost(error)
            return None
        _keep(self._sessions, session, context.call_id)
        return Fit(session, context, sent["plan"], sent["inserted"], asked)

    def answered(self, fit: Fit, *, usage: UsageIn | None = None, reply: Iterable[Message] = ()) -> Flow[None]:
        """Report that the model answered, and log the reply.

        A `reply` is given where the framework may not send it again: the last one of a run. Any other is in the
        messages of the next call. Whatever goes wrong here is logged, never raised.
        """
        latency = int((time.monotonic() - fit.began) * 1000)
        yield from self.report(
            contexts.report_outcome(fit.session, fit.context.call_id, usage=usage, latency_ms=latency)
        )
        said = list(reply)
        if said:  # nowhere but behind the call's own messages; otherwise the next call brings it
            line, head = fit.context.to_dict()["line"], fit.context.head
            yield from self.report(events.append_messages(line, format=self.format, messages=said, expected_head=head))

    def failed(self, fit: Fit, error: BaseException) -> Flow[Fit | None]:
        """Report the provider's error. If the context was too long after all: a tighter one, to call again with."""
        latency = int((time.monotonic() - fit.began) * 1000)
        report = contexts.report_outcome(fit.session, fit.context.call_id, error=error_said(error), latency_ms=latency)
        outcome: OutcomeOut | None = yield from self.report(report)
        if not isinstance(outcome, OutcomeOut) or outcome.action != "retry" or outcome.next is None:
            return None
        wait = (outcome.next.body or {}).get("wait_ms")  # for summaries; the answer has to be here in time all the same
        if wait is not None:
            wait = min(wait, int(self._timeout * 500))
        again = contexts.post_context(fit.session, **fit.asked, retry_of=fit.context.call_id, wait_ms=wait)
        context = yield from self.ask(again, fit.session)
        return None if context is None else self._fit(fit.session, context, fit.asked)

    def logged(self, session: str, messages: Sequence[Message]) -> Flow[bool]:
        """Log a complete list without a model call. Return whether the server took it."""
        context = yield from self.ask(contexts.post_context(session, format=self.format, messages=messages), session)
        if context is None or not context.call_id:
            return False
        yield from self.report(contexts.report_outcome(session, context.call_id, error={"message": NOT_SENT}))
        return True

    def recalled(self, session: str, arguments: Any) -> Flow[str]:
        """The result of a call of the recall tool: JSON, or what is wrong with its arguments."""
        if not isinstance(arguments, Mapping):
            return "the arguments are not a JSON object"
        given = {name: value for name, value in arguments.items() if name in RECALL_PROPERTIES and value is not None}
        try:
            found: RecallOut = yield events.recall(session, call_id=self._sessions.get(session), **given)
        except PalimpsestError as error:
            if not isinstance(error, StatusError):
                self.lost(error)
            return str(error)
        return json.dumps(found.to_dict(), ensure_ascii=False)

    def ask(self, asked: Request[T], session: str) -> Flow[T | None]:
        """The answer; None during an outage, or if the server refuses what is asked. Raises as `guard` does."""

        def one() -> Flow[T]:
            answer: T = yield asked
            return answer

        return (yield from self.guard(one(), session))

    def guard(self, flow: Flow[T], session: str) -> Flow[T | None]:
        """The result of a flow; None during an outage, or if the server refuses what the flow asks for.

        Raises StatusError for settings that have never worked.
        """
        try:
            answer = yield from flow
        except PalimpsestError as error:
            if not self._served and is_about(error, Settings.__annotations__):
                raise
            if is_outage(error):
                self.lost(error)
            else:
                self._refused(session, getattr(error, "slug", None) or type(error).__name__, reason(error))
            return None
        except (TypeError, ValueError, RecursionError) as error:  # what JSON cannot hold
            self._refused(session, "unreadable", repr(error))
            return None
        self._served = True
        if self.away:
            self.away = False
            _log.warning("the server is back at %s; contexts are within their budget again", self._options.base_url)
        return answer

    def report(self, asked: Request[T]) -> Flow[T | None]:
        """The answer; None if there is none, whatever the reason, which is logged."""
        try:
            answer: T = yield asked
        except ConflictError:  # somebody said it before, or the conversation has gone on
            return None
        except OUTAGES as error:
            self.lost(error)
            return None
        except (PalimpsestError, TypeError, ValueError, RecursionError) as error:
            _log.warning("%s was not reported: %s", asked.path, error)
            return None
        return answer

    def lost(self, error: Exception) -> None:
        """Say that there is an outage, if it has not been said."""
        if not self.away:
            self.away = True
            _log.warning("the server is away, so messages go to the model as they are until it is back: %s", error)

    def _refused(self, session: str, kind: str, reason: str) -> None:
        """Say, once for a session and a kind of refusal, that the server does not take its messages."""
        if (session, kind) not in self._warned:
            _keep(self._warned, (session, kind), None)
            _log.warning(
                "session %s: no context was made, so its messages go to the model as they are: %s", session, reason
            )


class Adapter:
    """What all adapters can be asked."""

    _budget: Budget

    @property
    def passed_through(self) -> Mapping[str, int]:
        """For each session the number of model calls whose messages went as they were, of the last 1,000 such sessions.

        It counts calls during an outage and those that the server refused a context.
        """
        return dict(self._budget.passed_through)


def _given(settings: Settings, *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names and value is not None}


def _keep(kept: OrderedDict[K, T], key: K, value: T) -> None:
    """Keep a value, the newest SESSIONS_KEPT of them."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > SESSIONS_KEPT:
        kept.popitem(last=False)


def _is_plan(sent: Mapping[str, Any], count: int) -> bool:
    """Whether a context has what `Fit` and the adapters read of it."""
    plan, inserted = sent.get("plan"), sent.get("inserted")
    if not isinstance(plan, list) or not isinstance(inserted, list) or len(plan) != count:
        return False
    texts = all(isinstance(sent.get(name), str) for name in ("call_id", "line"))
    steps = all(isinstance(step, dict) and step.get("action") in ("keep", "replace", "drop") for step in plan)
    between = all(isinstance(one, dict) and {"before", "role", "text"} <= one.keys() for one in inserted)
    return texts and steps and between and isinstance(sent.get("request"), dict)
