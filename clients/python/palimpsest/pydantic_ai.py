"""Pydantic AI: keep every model request of an agent within its budget.

    Agent(model, capabilities=[PalimpsestCapability()])

The run's history keeps all messages; the model gets those that fit. Messages sent verbatim are the same objects as in
the history.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic_ai import RetryModelRequest
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset

from palimpsest._adapt import Adapter, Budget, FittedContext, Settings, part_change
from palimpsest._flows import Flow
from palimpsest._names import session_name
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS
from palimpsest.formats.common import usage_of
from palimpsest.types import UsageIn

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext
    from typing_extensions import Unpack


class PalimpsestCapability(Adapter, AbstractCapability[Any]):
    """A capability for agents. The session is the conversation's id, unless one is given."""

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        self._session = session
        self._budget = Budget("openai", settings)
        self._fit: FittedContext | None = None
        self._retry_fit: FittedContext | None = None

    async def for_run(self, ctx: RunContext[Any]) -> PalimpsestCapability:
        """Return a copy with the run's own state, so that runs may be concurrent."""
        return copy.copy(self)

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """Return the recall tool, if `recall` is set."""
        if not self._budget.recall:
            return None

        async def recall(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self._budget.arun(self._budget.recall_result(self._session_id_of(ctx), arguments))

        tool = Tool.from_schema(recall, RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS, takes_ctx=True)
        return FunctionToolset([tool])

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace the request's messages by those that fit."""
        pieces = _pieces(request_context.messages)
        self._fit, self._retry_fit = self._retry_fit, None
        if self._fit is None or len(self._fit.plan) != len(pieces):
            self._fit = await self._budget.arun(self._request_fit(ctx, request_context, pieces))
        if self._fit is None:
            return request_context
        shown = self._fit.apply(pieces, _replaced, _inserted)
        return replace(request_context, messages=_messages(shown))

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Report the usage, and log the last answer of a run."""
        fit, self._fit = self._fit, None
        if fit is not None:
            last = not any(isinstance(part, ToolCallPart) for part in response.parts)
            reply = [_response(response)] if last and _text(response) else []
            await self._budget.arun(self._budget.report_success(fit, usage=_usage(response), reply=reply))
        return response

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Report the error; if the request was too long, retry with a smaller one."""
        fit, self._fit = self._fit, None
        if fit is not None:
            self._retry_fit = await self._budget.arun(self._budget.report_failure(fit, error))
        if self._retry_fit is not None:
            raise RetryModelRequest from error
        raise error

    def _session_id_of(self, ctx: RunContext[Any]) -> str:
        if self._session is None and ctx.conversation_id is None:
            raise ValueError("no session is given: run the agent with a conversation_id, or give the capability one")
        return self._session or session_name(ctx.conversation_id or "")

    def _request_fit(
        self, ctx: RunContext[Any], request_context: ModelRequestContext, pieces: Sequence[_Piece]
    ) -> Flow[FittedContext | None]:
        parameters = request_context.model_request_parameters
        system = "\n\n".join(part.content for part in parameters.instruction_parts or () if part.content)
        return self._budget.fit(
            self._session_id_of(ctx),
            [piece.message for piece in pieces],
            model=request_context.model.model_name,
            system=system,
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description or "",
                        "parameters": tool.parameters_json_schema,
                    },
                }
                for tool in (*parameters.function_tools, *parameters.output_tools)
            ],
        )


@dataclass(frozen=True)
class _Piece:
    """A response, or a part of a request together with neighbouring parts that are no message of their own."""

    message: Mapping[str, Any] = field(repr=False)
    """The piece in the format of OpenAI's chat completions."""
    source: ModelMessage | None
    """The framework's message that it is or belongs to; None for one inserted by the server."""
    parts: tuple[Any, ...] = ()


def _pieces(messages: Sequence[ModelMessage]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            pieces.append(_Piece(_response(message), message))
            continue
        silent: list[Any] = []
        for part in message.parts:
            converted = _request_part(part)
            if converted is not None:
                pieces.append(_Piece(converted, message, (*silent, part)))
                silent = []
            elif pieces and pieces[-1].source is message:
                pieces[-1] = replace(pieces[-1], parts=(*pieces[-1].parts, part))
            else:
                silent.append(part)
    return pieces


def _messages(pieces: Sequence[_Piece]) -> list[ModelMessage]:
    """Return the framework's messages for pieces in order; complete messages are the same objects as before."""
    result: list[ModelMessage] = []
    for _, group in groupby(pieces, key=lambda piece: id(piece.source or piece)):
        together = list(group)
        source = together[0].source
        if isinstance(source, ModelResponse):
            result.append(source)
            continue
        parts = [part for piece in together for part in piece.parts]
        if source is None:
            result.append(ModelRequest(parts=parts))
        elif len(parts) == len(source.parts) and all(map(lambda one, own: one is own, parts, source.parts)):
            result.append(source)
        else:
            result.append(replace(source, parts=parts))
    return result


def _request_part(part: Any) -> dict[str, Any] | None:
    """Return a part of a request as a message; None if it is no message of its own."""
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
    if isinstance(part, (RetryPromptPart, RetryFeedbackPart)):
        return {"role": "user", "content": part.model_response()}
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        if isinstance(part.content, str):
            return {"role": "user", "content": part.content}
        return {
            "role": "user",
            "content": [_user_content(one) for one in part.content if not isinstance(one, CachePoint)],
        }
    return None


def _user_content(content: Any) -> dict[str, Any]:
    if isinstance(content, (str, TextContent)):
        return {"type": "text", "text": content if isinstance(content, str) else content.content}
    if isinstance(content, ImageUrl):
        return {"type": "image_url", "image_url": {"url": content.url}}
    if isinstance(content, BinaryContent) and content.is_image:
        return {"type": "image_url", "image_url": {"url": content.data_uri}}
    return {"type": "text", "text": f"[{content.kind} {getattr(content, 'identifier', '')}]"}


def _response(response: ModelResponse) -> dict[str, Any]:
    """Return a response as a message, without reasoning and the provider's built-in tools."""
    texts = [{"type": "text", "text": part.content} for part in response.parts if isinstance(part, TextPart)]
    message: dict[str, Any] = {"role": "assistant", "content": texts or None}
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if calls:
        message["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {"name": call.tool_name, "arguments": call.args_as_json_str()},
            }
            for call in calls
        ]
    return message


def _text(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def _inserted(one: Mapping[str, Any]) -> _Piece:
    if one["role"] == "tool":
        part: Any = ToolReturnPart(tool_name="", content=one["text"], tool_call_id=one["call_id"])
    else:
        part = (SystemPromptPart if one["role"] == "system" else UserPromptPart)(one["text"])
    return _Piece({}, None, (part,))


def _replaced(piece: _Piece, step: Mapping[str, Any]) -> _Piece | None:
    """Return the piece with other text or arguments, or without some of its calls; None if nothing is left."""
    if isinstance(piece.source, ModelResponse):
        parts = _response_parts(piece.source, step)
        return replace(piece, source=replace(piece.source, parts=parts)) if parts else None
    text = part_change(step)[1] or ""
    return replace(piece, parts=tuple(_with_text(part, text) if _request_part(part) else part for part in piece.parts))


def _with_text(part: Any, text: str) -> Any:
    if isinstance(part, ToolReturnPart):
        return ToolReturnPart(part.tool_name, text, part.tool_call_id, timestamp=part.timestamp, outcome=part.outcome)
    return replace(part, content=text)


def _response_parts(response: ModelResponse, step: Mapping[str, Any]) -> list[Any]:
    has_calls = any(isinstance(part, ToolCallPart) for part in response.parts)
    action, text = ("keep", None) if has_calls and not step.get("parts") else part_change(step)
    parts: list[Any] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            done, arguments = part_change(step, part.tool_call_id)
            if done != "drop":
                parts.append(part if done == "keep" else replace(part, args=json.loads(arguments or "{}")))
        elif not isinstance(part, TextPart) or action == "keep":
            parts.append(part)
        elif action == "replace" and text is not None:
            parts.append(replace(part, content=text))
            text = None
    return parts if any(isinstance(part, (TextPart, ToolCallPart)) for part in parts) else []


def _usage(response: ModelResponse) -> UsageIn | None:
    named = vars(response.usage)  # not the attributes, which are 0 for figures that were not set
    if not named.get("input_tokens"):
        return None
    figures = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    return usage_of(**{name: named.get(name) for name in figures})
