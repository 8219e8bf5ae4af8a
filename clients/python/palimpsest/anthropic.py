"""Anthropic's SDK: keep every call of `messages.create` and `messages.stream` within its budget.

    Anthropic(middleware=[PalimpsestMiddleware("support-42")])

The program still passes its complete conversation with each call; the provider receives the context that the server
made of it. Tools, sampling, betas and `stream` are unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anthropic import Middleware

from palimpsest._adapt import Adapter, Budget, FittedContext, Settings
from palimpsest._flows import Abandoned, Flow
from palimpsest._names import session_name
from palimpsest.formats.anthropic import ANTHROPIC

if TYPE_CHECKING:
    from anthropic import APIResponse, AsyncAPIResponse
    from anthropic._middleware import AsyncCallNext, CallNext
    from anthropic._request import APIRequest
    from typing_extensions import Unpack

SESSION_HEADER = "x-palimpsest-session"
PATHS = ("/v1/messages", "/v1/messages?beta=true")
_log = logging.getLogger("palimpsest")


class PalimpsestMiddleware(Adapter, Middleware):
    """Client middleware for `Anthropic` and `AsyncAnthropic`.

    The session of a call is the one in its header `x-palimpsest-session` (`extra_headers`), else the one given here,
    else `metadata.user_id`. A call without a session is sent unchanged, and so is one that continues a thread.
    """

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        if settings.get("recall"):
            raise ValueError("the middleware cannot run tools; give the model the recall tool yourself")
        self._session = session
        self._budget = Budget("anthropic", settings)
        self._warned = False

    def handle(self, request: APIRequest, call_next: CallNext) -> APIResponse[Any]:
        """Send the budgeted request, and retry once with a smaller context if it was too long."""
        budget, asked = self._budget, self._request_fit(request)
        fit = None if asked is None else budget.run(asked)
        if fit is None:
            return call_next(_without_header(request))
        response = self._attempt(fit, request, call_next)
        if not response.http_response.is_success:
            response.http_response.read()
            tighter = budget.run(budget.report_failure(fit, _Refusal(response)))
            if tighter is None:
                return response
            fit, response = tighter, self._attempt(tighter, request, call_next)
            if not response.http_response.is_success:
                response.http_response.read()
                budget.run(budget.report_failure(fit, _Refusal(response), retry=False))
                return response
        if request.stream:
            stream = response.parse()
            stream._iterator = self._report_at_end(fit, stream._iterator)
        elif response.http_response.is_closed:  # it was read; otherwise the program reads it itself
            budget.run(self._report_answer(fit, response.http_response.json()))
        return response

    def _attempt(self, fit: FittedContext, request: APIRequest, call_next: CallNext) -> APIResponse[Any]:
        try:
            return call_next(_without_header(request, _body(fit, request)))
        except Exception as error:
            self._budget.run(self._budget.report_failure(fit, error, retry=False))
            raise

    def _report_at_end(self, fit: FittedContext, events: Iterator[Any]) -> Iterator[Any]:
        whole = ANTHROPIC.accumulator()
        try:
            for event in events:
                whole.feed(event)
                yield event
        except BaseException as error:
            done = (
                self._report_answer(fit, whole.response())
                if whole.ended
                else self._budget.report_failure(fit, _reason(error), retry=False)
            )
            self._budget.run(done)
            raise
        self._budget.run(self._report_answer(fit, whole.response()))

    async def handle_async(self, request: APIRequest, call_next: AsyncCallNext) -> AsyncAPIResponse[Any]:
        """Handle a request of an asynchronous client, as `handle` does."""
        budget, asked = self._budget, self._request_fit(request)
        fit = None if asked is None else await budget.arun(asked)
        if fit is None:
            return await call_next(_without_header(request))
        response = await self._aattempt(fit, request, call_next)
        if not response.http_response.is_success:
            await response.http_response.aread()
            tighter = await budget.arun(budget.report_failure(fit, _Refusal(response)))
            if tighter is None:
                return response
            fit, response = tighter, await self._aattempt(tighter, request, call_next)
            if not response.http_response.is_success:
                await response.http_response.aread()
                await budget.arun(budget.report_failure(fit, _Refusal(response), retry=False))
                return response
        if request.stream:
            stream = await response.parse()
            stream._iterator = self._areport_at_end(fit, stream._iterator)
        elif response.http_response.is_closed:
            await budget.arun(self._report_answer(fit, response.http_response.json()))
        return response

    async def _aattempt(
        self, fit: FittedContext, request: APIRequest, call_next: AsyncCallNext
    ) -> AsyncAPIResponse[Any]:
        try:
            return await call_next(_without_header(request, _body(fit, request)))
        except Exception as error:
            await self._budget.arun(self._budget.report_failure(fit, error, retry=False))
            raise

    async def _areport_at_end(self, fit: FittedContext, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        whole = ANTHROPIC.accumulator()
        try:
            async for event in events:
                whole.feed(event)
                yield event
        except BaseException as error:
            done = (
                self._report_answer(fit, whole.response())
                if whole.ended
                else self._budget.report_failure(fit, _reason(error), retry=False)
            )
            await self._budget.arun(done)
            raise
        await self._budget.arun(self._report_answer(fit, whole.response()))

    def _request_fit(self, request: APIRequest) -> Flow[FittedContext | None] | None:
        """Return the flow that requests the context of a call; None for a call to be sent unchanged."""
        body = request.json
        if request.method.lower() != "post" or request.url not in PATHS or not isinstance(body, Mapping):
            return None
        if not isinstance(body.get("messages"), Sequence):
            return None
        user = (body.get("metadata") or {}).get("user_id")
        session = dict(request.headers).get(SESSION_HEADER) or self._session or (user and session_name(str(user)))
        thread = body.get("thread") or {}
        if session is None or thread.get("type") == "continue":
            if not self._warned:
                self._warned = True
                what = "a call without a session" if session is None else "an increment of a thread"
                _log.warning("%s is sent unchanged", what)
            return None
        return self._budget.fit(
            str(session), body["messages"], model=body.get("model"), system=body.get("system"), tools=body.get("tools")
        )

    def _report_answer(self, fit: FittedContext, response: Mapping[str, Any]) -> Flow[None]:
        answer = ANTHROPIC.read(response)
        last = not answer.tool_calls and answer.stop_reason != "pause_turn"
        return self._budget.report_success(fit, usage=answer.usage, reply=answer.messages if last else ())


class _Refusal(Exception):
    """The provider's error response, for the report to the server."""

    def __init__(self, response: APIResponse[Any] | AsyncAPIResponse[Any]) -> None:
        self.status_code = response.http_response.status_code
        super().__init__(response.http_response.text)


def _reason(error: BaseException) -> BaseException:
    return Abandoned() if isinstance(error, GeneratorExit) else error


def _without_header(request: APIRequest, body: Mapping[str, Any] | None = None) -> APIRequest:
    """Return the request to send: without our header, and with another body if one is given."""
    headers = {name: value for name, value in request.headers.items() if name != SESSION_HEADER}
    return request.copy(headers=headers) if body is None else request.copy(headers=headers, body=body)


def _body(fit: FittedContext, request: APIRequest) -> dict[str, Any]:
    """Return the client's body with the context's messages and system prompt; unchanged if it is only recorded.

    The context's cache markers replace the client's own, since a request may have only four.
    """
    body: dict[str, Any] = dict(request.json)  # type: ignore[call-overload]  # a mapping, or there were no fit
    if fit.is_observed:
        return body
    made = fit.context.request
    for name in ("system", "cache_control"):
        body.pop(name, None)
    body |= {name: made[name] for name in ("system", "messages") if name in made}
    body["messages"] = _alternating(body["messages"])
    if body.get("tools"):
        marked = made.get("tools") or []
        plain = [_unmarked(tool) for tool in body["tools"]]
        body["tools"] = marked if [_unmarked(tool) for tool in marked] == plain else plain
    return body


def _alternating(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join consecutive messages of the user, such as a note and the user's next message.

    The provider treats them as one; proxies and other servers of its API refuse them.
    """
    joined: list[Mapping[str, Any]] = []
    for message in messages:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {**joined[-1], "content": [*_blocks(joined[-1]), *_blocks(message)]}
        else:
            joined.append(message)
    return joined


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _unmarked(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name != "cache_control"}
