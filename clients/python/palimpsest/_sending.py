"""Flows from a context to a logged reply: the provider's call, its failure, and recalls."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from palimpsest._flows import END, Abandoned, Emit, Flow, Invoke, Pull, chunks_of
from palimpsest._recall_tool import RECALL
from palimpsest._request import Request, path
from palimpsest.errors import InvalidRequestError, PalimpsestError, RecallLoop, ReplyNotLogged, StatusError
from palimpsest.formats import FORMATS, ProviderFormat, as_dict
from palimpsest.operations import contexts, events
from palimpsest.operations.names import AppendIn
from palimpsest.reply import LoggedAnswer, ParsedAnswer, ToolCall
from palimpsest.types import ContextOut, ErrorIn, EventIn, OutcomeOut, StepOutcomeIn

HTTP_STATUSES = range(100, 1_000)
RECALL_ROUNDS_MAX = 8
"""The maximum number of consecutive answers that do nothing but recall."""
_log = logging.getLogger("palimpsest")


@dataclass
class UnloggedAnswer:
    """An answer that is to be logged, with its outcome, by the request for the next context."""

    reply: LoggedAnswer
    latency_ms: int
    results: list[EventIn] = field(default_factory=list)
    """Results of the recall tool."""


class CallState:
    """A call in progress: its context, its open tool calls, and the answer that is not logged yet, if any.

    In a turn (`in_turn`), an answer with tool calls is logged together with their results.
    """

    def __init__(
        self, session: str, context: ContextOut, asked: Mapping[str, Any], *, recalls: bool, in_turn: bool
    ) -> None:
        self.session, self.context, self.asked = session, context, asked
        self.recalls, self.in_turn = recalls, in_turn
        self.began = time.monotonic()
        self.open: list[ToolCall] = []
        self.unlogged: UnloggedAnswer | None = None
        self.abandoned = False

    @property
    def format(self) -> ProviderFormat:
        """The format of the call."""
        return FORMATS[self.context.format]

    @property
    def latency_ms(self) -> int:
        """Milliseconds since the provider was called."""
        return int((time.monotonic() - self.began) * 1000)


def send(state: CallState, function: Callable[..., Any], extra: Mapping[str, Any]) -> Flow[LoggedAnswer]:
    """Send the context to the provider's function until an answer does more than recall; log every answer.

    An answer that only recalls is logged by the request for the next context, and in a turn one with other tool calls
    is left to `next_context`.
    """
    for _ in range(RECALL_ROUNDS_MAX):
        response = yield from _call_provider(state, function, extra)
        reply = yield from _read(state, response)
        recalls = [call for call in state.open if state.recalls and call.name == RECALL]
        others = [call for call in state.open if call not in recalls]
        only_recalls = bool(recalls) and not others and not state.abandoned
        if not only_recalls and not _awaits_results(state, others):
            yield from log_answer(state)
        results = yield from _answer_recalls(state, recalls)
        state.open = others
        if only_recalls:
            yield from next_context(state, results)
            continue
        if state.unlogged is not None:
            state.unlogged.results = results
        elif results:
            yield events.append_events(state.session, events=results)
        return replace(reply, tool_calls=list(others))
    raise RecallLoop(f"{RECALL_ROUNDS_MAX} answers in a row did nothing but recall")


def next_context(state: CallState, results: Sequence[EventIn]) -> Flow[None]:
    """Log the answer and its results, report its outcome, and get the next context, in one request.

    If the server refuses a part of it, the parts are sent one by one, so that only the refused one fails. Raises
    ReplyNotLogged if the server was not reached.
    """
    unlogged, state.unlogged = state.unlogged, None
    append: AppendIn = {"events": results}
    outcome: StepOutcomeIn | None = None
    if unlogged is not None:
        reply, followed = unlogged.reply, [*unlogged.results, *results]
        append = {"format": state.context.format, "messages": reply.messages, "events": followed}
        outcome = {"call_id": reply.call_id, "usage": reply.usage, "latency_ms": unlogged.latency_ms}
    try:
        state.context = yield contexts.post_context(state.session, **state.asked, append=append, outcome=outcome)
    except PalimpsestError as error:
        refused = isinstance(error, StatusError) and error.status < 500
        if unlogged is None or (isinstance(error, StatusError) and error.part == "context"):
            raise  # there is no answer to log, or it is logged
        if not refused:
            raise ReplyNotLogged(unlogged.reply, error) from error
    else:
        return
    state.unlogged = unlogged
    yield from log_answer(state)
    yield events.append_events(state.session, events=results)
    state.context = yield contexts.post_context(state.session, **state.asked)


def arguments(context: ContextOut, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provider's keyword arguments: the rendered request, the model, and the caller's own arguments."""
    given = FORMATS[context.format].arguments(context.request, extra)
    if "model" not in given and context.model is not None:
        given["model"] = context.model
    return given


def _call_provider(state: CallState, function: Callable[..., Any], extra: Mapping[str, Any]) -> Flow[Any]:
    """Return the provider's complete answer. If the context was too long, retry once with a smaller one."""
    while True:
        try:
            return (yield from _call_once(state, function, arguments(state.context, extra)))
        except _ProviderRefused as unanswered:  # noqa: PERF203 - twice at most
            if unanswered.again is None:
                if unanswered.error is None:
                    return unanswered.response
                raise unanswered.error from None
            state.context = yield unanswered.again


class _ProviderRefused(Exception):
    """The provider refused, by an error or in its response. `again` requests the context for a retry, if any."""

    def __init__(self, error: Exception | None, response: Any = None, again: Request[ContextOut] | None = None) -> None:
        self.error, self.response, self.again = error, response, again


def _call_once(state: CallState, function: Callable[..., Any], given: dict[str, Any]) -> Flow[Any]:
    swallow = _request_usage(state, given)
    state.began = time.monotonic()
    try:
        response = yield Invoke(function, given)
    except Exception as error:
        raise _ProviderRefused(error, again=(yield from failed(state, error))) from error
    enter = getattr(response, "__aenter__", None) or getattr(response, "__enter__", None)
    if enter is not None and not _iterable(response):  # a streaming helper
        leave = getattr(response, "__aexit__", None) or response.__exit__
        stream = yield Invoke(enter)
        return (yield from _read_stream(state, stream, Invoke(lambda: leave(None, None, None)), swallow))
    if _iterable(response):
        close = getattr(response, "close", None) or getattr(response, "aclose", None) or (lambda: None)
        return (yield from _read_stream(state, response, Invoke(close), swallow))
    failure = state.format.read(as_dict(response)).failure
    if failure is not None:
        raise _ProviderRefused(None, response, (yield from _report_error(state, _error(failure))))
    return response


def _iterable(response: Any) -> bool:
    return not hasattr(response, "model_dump") and (hasattr(response, "__next__") or hasattr(response, "__aiter__"))


def _request_usage(state: CallState, given: dict[str, Any]) -> bool:
    """Make a streamed chat completion report its usage; return whether to hide the extra chunk from the caller."""
    if state.context.format != "openai" or not given.get("stream") or "stream_options" in given:
        return False
    given["stream_options"] = {"include_usage": True}
    return True


def _read_stream(state: CallState, stream: Any, close: Invoke, swallow: bool) -> Flow[dict[str, Any]]:
    """Return the complete answer, emitting its chunks as they arrive, but none before the model has begun to answer."""
    whole, chunks, held = state.format.accumulator(), chunks_of(stream), list[Any]()
    try:
        while (chunk := (yield Pull(chunks))) is not END:
            whole.feed(chunk)
            if not (swallow and getattr(chunk, "usage", None) and not chunk.choices):
                held.append(chunk)
            while whole.begun and held:
                yield Emit(held.pop(0))
    except Abandoned as error:
        state.abandoned = True
        if whole.ended:
            with suppress(Exception):  # only usage figures are missing
                while (chunk := (yield Pull(chunks))) is not END:
                    whole.feed(chunk)
            yield close
            return whole.response()
        yield close
        yield from _log_partial(state, whole.text, error)
        raise
    except Exception as error:
        yield close
        again = yield from failed(state, error)
        if whole.begun:
            yield from _log_partial(state, whole.text, None)
        raise _ProviderRefused(error, again=None if whole.begun else again) from error
    yield close
    response = whole.response()
    failure = state.format.read(response).failure
    if failure is not None:
        again = yield from _report_error(state, _error(failure))
        if not whole.begun and again is not None:
            raise _ProviderRefused(None, response, again)
        for chunk in held:
            yield Emit(chunk)
        raise _ProviderRefused(None, response)
    for chunk in held:
        yield Emit(chunk)
    return response


def _log_partial(state: CallState, text: str, error: Exception | None) -> Flow[None]:
    """Log the text received before a stream broke, as partial. Incomplete tool calls are not logged."""
    if error is not None:
        yield from failed(state, error)
    if text:
        event: EventIn = {"type": "assistant.message", "content": text, "metadata": {"partial": True}}
        try:
            yield events.append_events(state.session, events=[event])
        except PalimpsestError as unreported:  # the caller must see the error that broke the stream
            _log.warning("the partial answer of call %s was not logged: %s", state.context.call_id, unreported)


def finish(state: CallState, response: Any) -> Flow[LoggedAnswer]:
    """Log an answer and report its usage; in a turn, one with tool calls is left to `next_context`."""
    reply = yield from _read(state, response)
    if not _awaits_results(state, state.open):
        yield from log_answer(state)
    return reply


def _awaits_results(state: CallState, calls: Sequence[ToolCall]) -> bool:
    """Return whether an answer with these tool calls is logged together with their results."""
    return state.in_turn and bool(calls) and not state.abandoned


def _read(state: CallState, response: Any) -> Flow[LoggedAnswer]:
    """Parse an answer that is to be logged, after the one before it."""
    yield from log_answer(state)
    parsed: ParsedAnswer = state.format.read(as_dict(response))
    reply = LoggedAnswer(
        parsed.content,
        parsed.tool_calls,
        response,
        parsed.usage,
        parsed.stop_reason,
        state.context.call_id,
        parsed.messages,
    )
    state.open = list(parsed.tool_calls)
    if parsed.failure is None:  # otherwise it was reported already
        state.unlogged = UnloggedAnswer(reply, state.latency_ms)
    return reply


def log_answer(state: CallState) -> Flow[None]:
    """Log the answer that is not logged yet, if there is one, and report its usage."""
    unlogged, state.unlogged = state.unlogged, None
    if unlogged is None:
        return
    reply = unlogged.reply
    try:
        if reply.messages:
            yield events.append_messages(
                state.session,
                format=state.context.format,
                messages=reply.messages,
                events=unlogged.results or None,
            )
    except PalimpsestError as error:
        raise ReplyNotLogged(reply, error) from error
    try:
        yield contexts.report_outcome(state.session, reply.call_id, usage=reply.usage, latency_ms=unlogged.latency_ms)
    except PalimpsestError as error:  # the next estimates are a little worse, and nothing else
        _log.warning("the usage of call %s was not reported: %s", reply.call_id, error)


def leave_turn(state: CallState, *, failing: bool) -> Flow[None]:
    """Log the answer that is not logged yet. An error that ends the turn (`failing`) is not replaced by another."""
    try:
        yield from log_answer(state)
    except ReplyNotLogged as error:
        if not failing:
            raise
        _log.warning("%s", error)


def failed(state: CallState, error: BaseException) -> Flow[Request[ContextOut] | None]:
    """Report a provider's error; what to ask for in place of the context that was too long, if it was."""
    return (yield from _report_error(state, error_report(error)))


def error_report(error: BaseException) -> ErrorIn:
    """Return a provider's error for a report. Google's SDK has the status as `code`, and the code as `status`."""
    reported: ErrorIn = {"message": str(error) or type(error).__name__}
    attributes = [getattr(error, name, None) for name in ("status_code", "code", "status")]
    for value in reversed(attributes):
        if isinstance(value, int) and value in HTTP_STATUSES:
            reported["status"] = value
        elif isinstance(value, str):
            reported["code"] = value
    return reported


def _error(failure: Mapping[str, Any]) -> ErrorIn:
    reported: ErrorIn = {"message": str(failure.get("message") or failure)}
    if isinstance(failure.get("code"), str):
        reported["code"] = failure["code"]
    return reported


def _report_error(state: CallState, error: ErrorIn) -> Flow[Request[ContextOut] | None]:
    try:
        outcome: OutcomeOut = yield contexts.report_outcome(
            state.session, state.context.call_id, error=error, latency_ms=state.latency_ms
        )
    except PalimpsestError as unreported:  # the caller must see the provider's error
        _log.warning("the error of call %s was not reported: %s", state.context.call_id, unreported)
        return None
    if outcome.action != "retry" or outcome.next is None:
        return None
    return Request(outcome.next.method, outcome.next.path, ContextOut, body=outcome.next.body)


def _answer_recalls(state: CallState, calls: Sequence[ToolCall]) -> Flow[list[EventIn]]:
    """Return the results of calls of the recall tool. If the server fails, the answer is logged without them."""
    results: list[EventIn] = []
    try:
        for call in calls:
            results.append((yield from _answer_recall(state, call)))  # noqa: PERF401 - no comprehension yields
    except PalimpsestError:
        yield from log_answer(state)
        raise
    return results


def _answer_recall(state: CallState, call: ToolCall) -> Flow[EventIn]:
    """Return the result of a call of the recall tool; errors in its arguments are returned to the model."""
    event: EventIn = {"type": "tool.result", "call_id": call.id}
    try:
        body = {**call.arguments, "call_id": state.context.call_id}
        event["content"] = json.dumps((yield Request("POST", path("sessions", state.session, RECALL), dict, body=body)))
    except (InvalidRequestError, ValueError) as error:
        event["content"], event["is_error"] = str(error), True
    return event
