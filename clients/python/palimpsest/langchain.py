"""LangChain: keep every model call of an agent within its budget.

    create_agent(model, tools, middleware=[PalimpsestMiddleware()])

The graph's state keeps all messages; the model gets those that fit. Messages sent verbatim are the same objects as in
the state.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ModelCallResult, ToolCallRequest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.block_translators.openai import convert_to_openai_data_block
from langchain_core.messages.content import is_data_content_block
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command

from palimpsest._adapt import Adapter, Budget, FittedContext, Settings, part_change
from palimpsest._flows import Flow
from palimpsest._names import session_name
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS
from palimpsest.formats.common import usage_of
from palimpsest.types import UsageIn

if TYPE_CHECKING:
    from typing_extensions import Unpack

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
SILENT_BLOCKS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})
CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call", "input_json_delta", "tool_call_chunk"})


class PalimpsestMiddleware(Adapter, AgentMiddleware[Any, Any, Any]):
    """Middleware for agents of `create_agent`. The session is the thread's id, unless one is given.

    With `recall=True` it is a `PalimpsestRecallMiddleware`, since only that one adds a node for tools to the graph.
    """

    def __new__(cls, session: str | None = None, **settings: Unpack[Settings]) -> PalimpsestMiddleware:
        """Choose the class. Raises TypeError if `recall` is set for a subclass that cannot answer the recall tool."""
        if settings.get("recall") and not issubclass(cls, PalimpsestRecallMiddleware):
            if cls is not PalimpsestMiddleware:
                raise TypeError("a middleware with recall=True must be a subclass of PalimpsestRecallMiddleware")
            return super().__new__(PalimpsestRecallMiddleware)
        return super().__new__(cls)

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        super().__init__()
        self._session = session
        self._budget = Budget("openai", settings)
        self.tools = [_recall_tool()] if self._budget.recall else []

    @property
    def name(self) -> str:
        """The name in the agent's graph, the same for both classes."""
        return PalimpsestMiddleware.__name__

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Call the model with the messages that fit, and retry with fewer if they were too long."""
        budget, own = self._budget, _all_messages(request)
        fit = budget.run(self._request_fit(request, own))
        while fit is not None:
            try:
                response = handler(_with_context(request, own, fit))
            except Exception as error:  # noqa: PERF203 - twice at most
                fit = budget.run(budget.report_failure(fit, error))
                if fit is None:
                    raise
            else:
                budget.run(self._report_answer(fit, response))
                return response
        return handler(request)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelCallResult[Any]:
        """Call the model asynchronously; see `wrap_model_call`."""
        budget, own = self._budget, _all_messages(request)
        fit = await budget.arun(self._request_fit(request, own))
        while fit is not None:
            try:
                response = await handler(_with_context(request, own, fit))
            except Exception as error:  # noqa: PERF203 - twice at most
                fit = await budget.arun(budget.report_failure(fit, error))
                if fit is None:
                    raise
            else:
                await budget.arun(self._report_answer(fit, response))
                return response
        return await handler(request)

    def _session_id_of(self, runtime: Any) -> str:
        thread = getattr(getattr(runtime, "execution_info", None), "thread_id", None)
        if self._session is None and thread is None:
            raise ValueError(
                "no session is given: call the agent with config={'configurable': {'thread_id': '…'}}, or give the "
                "middleware a session"
            )
        return self._session or session_name(str(thread))

    def _request_fit(self, request: ModelRequest[Any], own: Sequence[BaseMessage]) -> Flow[FittedContext | None]:
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        return self._budget.fit(
            self._session_id_of(request.runtime),
            (openai_message(message) for message in own),
            model=model if isinstance(model, str) else None,
            tools=(convert_to_openai_tool(tool) for tool in request.tools),
        )

    def _report_answer(self, fit: FittedContext, response: Any) -> Flow[None]:
        reply = next((one for one in getattr(response, "result", [response]) if isinstance(one, AIMessage)), None)
        usage = None if reply is None else _usage(reply)
        last = [] if reply is None or reply.tool_calls or not reply.content else [openai_message(reply)]
        return self._budget.report_success(fit, usage=usage, reply=last)


class PalimpsestRecallMiddleware(PalimpsestMiddleware):
    """The middleware that gives the agent the recall tool, and answers it."""

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Answer calls of the recall tool; run all other tools."""
        call = request.tool_call
        if call["name"] != RECALL:
            return handler(request)
        text = self._budget.run(self._budget.recall_result(self._session_id_of(request.runtime), call["args"]))
        return ToolMessage(text, tool_call_id=call["id"], name=RECALL)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Answer calls of the recall tool asynchronously; see `wrap_tool_call`."""
        call = request.tool_call
        if call["name"] != RECALL:
            return await handler(request)
        text = await self._budget.arun(self._budget.recall_result(self._session_id_of(request.runtime), call["args"]))
        return ToolMessage(text, tool_call_id=call["id"], name=RECALL)


def openai_message(message: BaseMessage) -> dict[str, Any]:
    """Return a message in the format of OpenAI's chat completions, without reasoning."""
    role = message.role if isinstance(message, ChatMessage) else ROLES.get(message.type, "user")
    if isinstance(message.content, str):
        content: Any = message.content
    else:
        content = [part for block in message.content if (part := _part(block)) is not None]
    converted: dict[str, Any] = {"role": role, "content": content or None if role == "assistant" else content}
    if isinstance(message, ToolMessage):
        converted["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and message.tool_calls:
        converted["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": _json(call["args"])}}
            for call in message.tool_calls
        ]
    return converted


def _part(block: str | Mapping[str, Any]) -> Any:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if block.get("type") in SILENT_BLOCKS | CALL_BLOCKS:
        return None
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]}
    if is_data_content_block(dict(block)):
        return convert_to_openai_data_block(dict(block))
    return block


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _all_messages(request: ModelRequest[Any]) -> list[BaseMessage]:
    """Return the system message, if any, and the other messages."""
    return [*([] if request.system_message is None else [request.system_message]), *request.messages]


def _with_context(request: ModelRequest[Any], own: Sequence[BaseMessage], fit: FittedContext) -> ModelRequest[Any]:
    messages: list[Any] = fit.apply(own, _replaced, _inserted)
    if request.system_message is not None:  # it is always kept, and always first
        messages = messages[1:]
    return request.override(messages=messages)


def _inserted(one: Mapping[str, Any]) -> BaseMessage:
    if one["role"] == "tool":
        return ToolMessage(one["text"], tool_call_id=one["call_id"])
    return SystemMessage(one["text"]) if one["role"] == "system" else HumanMessage(one["text"])


def _replaced(message: BaseMessage, step: Mapping[str, Any]) -> BaseMessage | None:
    """Return a copy of a message with other text, arguments or fewer calls; None if nothing is left."""
    if not isinstance(message, AIMessage) or not message.tool_calls:
        action, text = part_change(step, getattr(message, "tool_call_id", None))
        return message.model_copy(update={"content": text}) if action == "replace" else message
    calls, blocks = list[ToolCall](), message.content
    for call in message.tool_calls:
        action, text = part_change(step, call["id"])
        if action == "replace" and text is not None:
            calls.append(ToolCall(**{**call, "args": json.loads(text)}))
        elif action == "keep":
            calls.append(call)
        blocks = _with_call(blocks, call["id"], action, text)
    action, text = part_change(step) if step.get("parts") else ("keep", None)
    if action != "keep":
        blocks = _with_text(blocks, text if action == "replace" else None)
    rest = {name: value for name, value in message.additional_kwargs.items() if name != "tool_calls"}
    changed = message.model_copy(update={"content": blocks, "tool_calls": calls, "additional_kwargs": rest})
    return changed if calls or changed.text else None


def _with_call(content: Any, call_id: str | None, action: str, text: str | None) -> Any:
    """Return content in which the block of a tool call, which some providers have, matches the changed call."""
    if isinstance(content, str) or action == "keep":
        return content
    blocks: list[Any] = []
    for block in content:
        if isinstance(block, str) or block.get("type") not in CALL_BLOCKS or block.get("id") != call_id:
            blocks.append(block)
        elif action == "replace" and text is not None:
            name = "input" if "input" in block else "args" if "args" in block else "arguments"
            blocks.append({**block, name: text if isinstance(block.get(name), str) else json.loads(text)})
    return blocks


def _with_text(content: Any, text: str | None) -> Any:
    """Return content with all blocks but reasoning and calls replaced by a text, or removed."""
    if isinstance(content, str):
        return text or ""
    kept = SILENT_BLOCKS | CALL_BLOCKS
    others = [block for block in content if not isinstance(block, str) and block.get("type") in kept]
    calls_from = next((at for at, block in enumerate(others) if block["type"] in CALL_BLOCKS), len(others))
    new = [{"type": "text", "text": text}] if text else []
    return [*others[:calls_from], *new, *others[calls_from:]]


def _usage(reply: AIMessage) -> UsageIn | None:
    if reply.usage_metadata is None:
        return None
    details = reply.usage_metadata.get("input_token_details") or {}
    return usage_of(
        input_tokens=reply.usage_metadata["input_tokens"],
        cache_read_tokens=details.get("cache_read"),
        cache_write_tokens=details.get("cache_creation"),
        output_tokens=reply.usage_metadata["output_tokens"],
    )


def _recall_tool() -> StructuredTool:
    def unreachable(**_: Any) -> str:
        raise RuntimeError("the recall tool is answered by PalimpsestMiddleware, which this agent does not have")

    return StructuredTool(name=RECALL, description=RECALL_DESCRIPTION, args_schema=RECALL_PARAMETERS, func=unreachable)
