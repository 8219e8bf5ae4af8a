"""Microsoft Agent Framework: keep every model call of an agent within its budget.

Use `Agent(client=…, context_providers=[PalimpsestProvider()])`. The provider adds a chat middleware, which the
framework calls before each model call of a run. The agent's session has the same id in Palimpsest. Its messages stay
unchanged; only those sent to the model are replaced. `PalimpsestStrategy` is for places that accept only a compaction
strategy.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_framework import (
    EXCLUDED_KEY,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    ContextProvider,
    FunctionTool,
    Message,
    ResponseStream,
)

from palimpsest import _blocks
from palimpsest._adapt import Adapter, Budget, FittedContext, Settings, part_change
from palimpsest._names import session_name
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS

if TYPE_CHECKING:
    from typing_extensions import Unpack

OURS = "_palimpsest"
"""The property that marks messages inserted by a strategy."""
_log = logging.getLogger("palimpsest")
CallNext = Callable[[], Awaitable[None]]


class PalimpsestProvider(Adapter, ContextProvider):
    """Keeps every model call of an agent within its budget, and gives it the recall tool if `recall` is set."""

    def __init__(self, *, session: str | None = None, **settings: Unpack[Settings]) -> None:
        """Create a provider. `session` is the id in Palimpsest; by default that of the agent's session."""
        super().__init__("palimpsest")
        self._session = session
        self._budget = Budget("anthropic", settings)
        self._middleware = PalimpsestMiddleware(self._budget, session)

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Add the middleware and, if set, the recall tool."""
        context.extend_middleware(self.source_id, self._middleware)
        if self._budget.recall:
            sid = self._session or session_name(session.session_id)

            async def recall(**arguments: Any) -> str:
                return await self._budget.arun(self._budget.recall_result(sid, arguments))

            tool = FunctionTool(name=RECALL, description=RECALL_DESCRIPTION, func=recall, input_model=RECALL_PARAMETERS)
            context.extend_tools(self.source_id, [tool])


class PalimpsestMiddleware(ChatMiddleware):
    """Sends the model a context that fits, and retries once with a smaller one. `PalimpsestProvider` adds it."""

    def __init__(self, budget: Budget, session: str | None = None) -> None:
        self._budget, self._session = budget, session

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Replace the messages by those that fit, and report the outcome of the call."""
        fit = await self._fit(context)
        if fit is None:
            await call_next()
            return
        own = context.messages
        context.messages = _applied(fit, own)
        if context.stream:
            await call_next()
            context.result = self._stream_answer(fit, own, context, call_next)
            return
        while True:
            try:
                await call_next()
            except Exception as error:  # noqa: PERF203 - twice at most
                fit = await self._retry_smaller(fit, error, own, context)
            else:
                break
        if isinstance(context.result, ChatResponse):
            await self._report_answer(fit, context.result)

    async def _fit(self, context: ChatContext) -> FittedContext | None:
        session = self._session or (session_name(context.session.session_id) if context.session else None)
        options = context.options or {}
        if session is None or options.get("conversation_id"):
            _log.debug("not budgeted: the call has no session, or its provider keeps the conversation")
            return None
        tools = (
            one.to_json_schema_spec() if isinstance(one, FunctionTool) else one
            for one in options.get("tools") or ()
            if isinstance(one, FunctionTool | Mapping)
        )
        messages = (_anthropic_message(one) for one in context.messages)
        model = options.get("model") or getattr(context.client, "model", None)
        flow = self._budget.fit(session, messages, model=model, system=options.get("instructions"), tools=tools)
        return await self._budget.arun(flow)

    async def _retry_smaller(
        self, fit: FittedContext, error: Exception, own: Sequence[Message], context: ChatContext, *, retry: bool = True
    ) -> FittedContext:
        again = await self._budget.arun(self._budget.report_failure(fit, error, retry=retry))
        if again is None:
            raise error
        context.messages = _applied(again, own)
        return again

    def _stream_answer(
        self, fit: FittedContext, own: Sequence[Message], context: ChatContext, call_next: CallNext
    ) -> ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        """Return the answer's stream. If it fails as too long before its first piece, it is retried once."""
        stream: Any = context.result

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            nonlocal stream, fit
            begun = False
            while True:
                try:
                    async for update in stream:
                        begun = True
                        yield update
                    return
                except GeneratorExit:  # the caller stopped reading
                    await stream.close()
                    raise
                except Exception as error:
                    fit = await self._retry_smaller(fit, error, own, context, retry=not begun)
                await call_next()
                stream = context.result

        async def finished(_: Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
            response: ChatResponse[Any] = await stream.get_final_response()
            await self._report_answer(fit, response)
            return response

        return ResponseStream(updates(), finalizer=finished)

    async def _report_answer(self, fit: FittedContext, response: ChatResponse[Any]) -> None:
        used: Mapping[str, Any] = response.usage_details or {}
        usage = _blocks.usage(
            used.get("input_token_count"),
            used.get("cache_read_input_token_count"),
            used.get("output_token_count"),
            used.get("cache_creation_input_token_count"),
        )
        calls = any(content.type == "function_call" for one in response.messages for content in one.contents)
        reply = [] if calls else [_anthropic_message(one) for one in response.messages]
        await self._budget.arun(self._budget.report_success(fit, usage=usage, reply=reply))


class PalimpsestStrategy(Adapter):
    """A compaction strategy, `Agent(compaction_strategy=PalimpsestStrategy(session="…"))`.

    It does not see the agent's session, tools, instructions or answers: set the size of these (`outside_tokens`), and
    create one strategy per conversation. Messages that are left out stay in the list, marked as excluded, as with the
    framework's own strategies.
    """

    def __init__(self, *, session: str, **settings: Unpack[Settings]) -> None:
        self._session = session
        self._budget = Budget("anthropic", settings)

    async def __call__(self, messages: list[Message]) -> bool:
        """Mark messages that are left out, and insert those that replace them. Return whether anything changed."""
        own = [one for one in messages if OURS not in one.additional_properties]
        before = _state(messages)
        fit = await self._budget.arun(self._budget.fit(self._session, map(_anthropic_message, own)))
        shown = own if fit is None else _applied(fit, own)
        kept = {id(one) for one in shown}
        left, result = deque(own), list[Message]()
        for one in own:
            one.additional_properties[EXCLUDED_KEY] = id(one) not in kept
        for one in shown:
            while left and id(left[0]) not in kept:
                result.append(left.popleft())
            if left and one is left[0]:
                left.popleft()
            else:
                one.additional_properties |= {OURS: True, EXCLUDED_KEY: False}
            result.append(one)
        messages[:] = [*result, *left]
        return before != _state(messages)


def _state(messages: Sequence[Message]) -> list[tuple[int, bool]]:
    return [(id(one), bool(one.additional_properties.get(EXCLUDED_KEY))) for one in messages]


def _applied(fit: FittedContext, own: Sequence[Message]) -> list[Message]:
    return fit.apply(own, _replaced, _inserted)


def _anthropic_message(own: Message) -> dict[str, Any]:
    """Return a message in the format `anthropic`."""
    role = "user" if own.role == "tool" else own.role
    return _blocks.message(role, (_block(content) for content in own.contents))


def _block(content: Content) -> _blocks.Block | None:
    if content.type == "text":
        return _blocks.text(content.text)
    if content.type == "text_reasoning":
        return _blocks.thinking(content.text, content.protected_data)
    if content.type == "function_call" and content.call_id:
        return _blocks.call(content.call_id, content.name or "", content.parse_arguments())
    if content.type == "function_result" and content.call_id:
        return _blocks.result(content.call_id, content.result, is_error=content.exception is not None)
    if content.type in ("data", "uri") and content.uri and (content.media_type or "").startswith("image/"):
        return _blocks.image(content.uri, content.media_type)
    return None


def _replaced(own: Message, step: Mapping[str, Any]) -> Message | None:
    contents: list[Content] = []
    for content in own.contents:
        action, text = part_change(step, content.call_id if content.type.startswith("function_") else None)
        if action == "keep":
            contents.append(content)
        elif action == "replace" and content.type == "function_result":
            contents.append(Content.from_function_result(content.call_id or "", result=text))
        elif action == "replace" and content.type == "function_call":
            contents.append(Content.from_function_call(content.call_id or "", content.name or "", arguments=text))
        elif action == "replace" and content.type == "text" and not any(one.type == "text" for one in contents):
            contents.append(Content.from_text(text or ""))
    changed = copy.copy(own)
    changed.contents, changed.raw_representation = contents, None
    changed.additional_properties = dict(own.additional_properties)
    return changed if contents else None


def _inserted(one: Mapping[str, Any]) -> Message:
    if one["role"] == "tool":
        return Message("tool", [Content.from_function_result(one["call_id"], result=one["text"])])
    return Message(one["role"], [one["text"]])
