"""OpenHands: a condenser, which keeps every model call of an agent within its budget.

Use `Agent(llm=…, tools=[…], condenser=PalimpsestCondenser())`. The conversation keeps all events; the model gets those
that fit. Events sent verbatim are the same objects as in the conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from openhands.sdk.context.condenser import CondenserBase
from openhands.sdk.context.view import View
from openhands.sdk.event import (
    ActionEvent,
    Condensation,
    LLMConvertibleEvent,
    MessageEvent,
    ObservationBaseEvent,
    SystemPromptEvent,
)
from openhands.sdk.llm import LLM, Message, TextContent
from openhands.sdk.llm.call_context import resolve_llm_call_context
from openhands.sdk.llm.exceptions import LLMContextWindowExceedError
from pydantic import ConfigDict, Field, PrivateAttr

from palimpsest._adapt import TIMEOUT_SECONDS, Adapter, Budget, FittedContext, Settings, keep, part_change
from palimpsest._flows import Flow
from palimpsest._names import session_name
from palimpsest.formats.common import usage_of, without_zeros
from palimpsest.types import UsageIn

if TYPE_CHECKING:
    from openhands.sdk.conversation import LocalConversation

Piece = tuple[LLMConvertibleEvent, ...]
"""The events of one message: the calls of one answer, or a single event."""


class ContextTooLong(LLMContextWindowExceedError):
    """A context that was too long for the provider, and for which there is no smaller one."""

    code = "context_length_exceeded"


@dataclass(frozen=True)
class _Call:
    """A model call whose outcome is not known yet."""

    fit: FittedContext | None
    """Its context; None if the messages were sent unchanged."""
    events: Sequence[str]
    """Ids of the view's events."""


class PalimpsestCondenser(Adapter, CondenserBase):
    """A condenser for agents. The session is the conversation's id, unless one is given.

    The fields are the adapters' settings. `client` is not stored with a conversation: a restored or forked one has a
    client configured by the environment.
    """

    model_config = ConfigDict(extra="forbid")

    session: str | None = None
    client: Any = Field(default=None, exclude=True, repr=False)
    model: str | None = None
    max_tokens: int | None = None
    policy: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    outside_tokens: int | None = None
    observe: bool = False
    timeout: float = TIMEOUT_SECONDS

    _budget: Budget = PrivateAttr()
    _calls: OrderedDict[str, _Call] = PrivateAttr(default_factory=OrderedDict)
    _retries: OrderedDict[str, _Call] = PrivateAttr(default_factory=OrderedDict)

    def model_post_init(self, context: Any, /) -> None:
        """Create the budget from the fields."""
        fields = {name: getattr(self, name, None) for name in Settings.__annotations__}
        given: Any = {name: value for name, value in fields.items() if value is not None}
        self._budget = Budget("openai", given)

    def handles_condensation_requests(self) -> bool:
        """Return whether contexts become smaller after an overflow: not if they are only recorded."""
        return not self.observe

    def condense(self, view: View, agent_llm: LLM | None = None) -> View | Condensation:
        """Return the view of a model call that fits; report the outcome of the call before.

        Raises ContextTooLong if a call was too long and there is no smaller context.
        """
        return self._budget.run(self._condense(view, agent_llm))

    async def acondense(self, view: View, agent_llm: LLM | None = None) -> View | Condensation:
        """Do the same as `condense` without blocking."""
        return await self._budget.arun(self._condense(view, agent_llm))

    def log(self, conversation: LocalConversation) -> bool:
        """Log the last answer of a run, which no model call has sent. Return whether the server accepted it."""
        view = conversation.state.view
        return self._budget.run(self._log(self._session_of(str(conversation.id)), view, conversation.agent.llm))

    def _session_of(self, conversation: str | None) -> str:
        if self.session is None and conversation is None:
            raise ValueError("no session is given: condense in a conversation, or give the condenser a session")
        return self.session or session_name(conversation or "")

    def _condense(self, view: View, llm: LLM | None) -> Flow[View | Condensation]:
        session = self._session_of(resolve_llm_call_context(None).session_id)
        failed = yield from self._report_answer(session, view, llm)
        ids = [event.id for event in view.events]
        if view.unhandled_condensation_request:
            if failed is not None and failed.events == ids:  # otherwise the user asked for it
                yield from self._prepare_retry(session, failed)
            return view if self.observe else Condensation(llm_response_id=_answer_id(_last_answer(view)) or "")
        pieces = _pieces(view.events)
        call = self._retries.pop(session, None)
        if call is None or call.events != ids:
            fit = yield from self._budget.fit(
                session,
                map(_chat_message, pieces),
                model=llm.model if llm else None,
                tools=_tools(view.events),
                window=llm.effective_max_input_tokens if llm else None,
            )
            call = _Call(fit, ids)
        keep(self._calls, session, call)
        if call.fit is None or self.observe:
            return view
        names = {event.tool_call_id: event.tool_name for event in view.events if isinstance(event, ActionEvent)}
        shown = call.fit.apply(pieces, _replaced, lambda one: _inserted(one, names))
        return View(events=[event for piece in shown for event in piece])

    def _report_answer(self, session: str, view: View, llm: LLM | None) -> Flow[_Call | None]:
        """Report the call before, if it was answered; otherwise return it."""
        call, answered = self._calls.pop(session, None), _last_answer(view)
        if call is None or answered is None or answered.id in call.events:
            return call
        if call.fit is not None:
            yield from self._budget.report_success(call.fit, usage=_usage(llm, answered))
        return None

    def _prepare_retry(self, session: str, call: _Call) -> Flow[None]:
        """Report that a call was too long, and keep a smaller context for the next one.

        Raises ContextTooLong if there is none, unless contexts are only recorded.
        """
        error, again = ContextTooLong(), None
        if call.fit is not None:
            again = yield from self._budget.report_failure(call.fit, error)
        if again is not None:
            keep(self._retries, session, _Call(again, call.events))
        elif not self.observe:
            raise error

    def _log(self, session: str, view: View, llm: LLM) -> Flow[bool]:
        yield from self._report_answer(session, view, llm)
        return (yield from self._budget.log_messages(session, [_chat_message(one) for one in _pieces(view.events)]))


def _pieces(events: Sequence[LLMConvertibleEvent]) -> list[Piece]:
    def message_of(numbered: tuple[int, LLMConvertibleEvent]) -> str | int:
        number, event = numbered
        return event.llm_response_id if isinstance(event, ActionEvent) else number

    return [tuple(event for _, event in group) for _, group in groupby(enumerate(events), message_of)]


def _chat_message(piece: Piece) -> dict[str, Any]:
    """Return a piece as a message, with all images."""
    message = LLMConvertibleEvent.events_to_messages(list(piece))[0]
    return message.to_chat_dict(
        cache_enabled=False,
        vision_enabled=True,
        function_calling_enabled=True,
        force_string_serializer=False,
        send_reasoning_content=False,
    )


def _tools(events: Sequence[LLMConvertibleEvent]) -> list[Any]:
    """Return the definitions of the agent's tools, as it sends them."""
    prompts = [event for event in events if isinstance(event, SystemPromptEvent)]
    return [tool.to_openai_tool(add_security_risk_prediction=True) for prompt in prompts[-1:] for tool in prompt.tools]


def _answer_id(event: LLMConvertibleEvent | None) -> str | None:
    return getattr(event, "llm_response_id", None)


def _last_answer(view: View) -> LLMConvertibleEvent | None:
    return next(filter(_answer_id, reversed(view.events)), None)


def _usage(llm: LLM | None, answered: LLMConvertibleEvent) -> UsageIn | None:
    usages = reversed(llm.metrics.token_usages) if llm else ()
    found = next((one for one in usages if one.response_id == _answer_id(answered)), None)
    if found is None:
        return None
    return without_zeros(
        usage_of(
            input_tokens=found.prompt_tokens,
            cache_read_tokens=found.cache_read_tokens,
            cache_write_tokens=found.cache_write_tokens,
            output_tokens=found.completion_tokens,
        )
    )


def _replaced(piece: Piece, step: Mapping[str, Any]) -> Piece | None:
    """Return the piece with other text or arguments, or without some of its calls; None if nothing is left."""
    first = piece[0]
    if isinstance(first, ObservationBaseEvent):
        return (_message_event(first, part_change(step, first.tool_call_id)[1]),)
    if not isinstance(first, ActionEvent):
        return (_message_event(first, part_change(step)[1]),)
    action, text = part_change(step) if step.get("parts") else ("keep", None)
    thought = first.thought if action == "keep" else [TextContent(text=text)] if text else []
    calls = [one for event in piece if isinstance(event, ActionEvent) and (one := _changed_call(event, step))]
    if not calls:
        return (_message_event(first, "".join(one.text for one in thought)),) if thought else None
    begin = {
        "thought": thought,
        "reasoning_content": first.reasoning_content,
        "thinking_blocks": first.thinking_blocks,
        "responses_reasoning_item": first.responses_reasoning_item,
    }
    return (calls[0].model_copy(update=begin), *calls[1:])


def _changed_call(event: ActionEvent, step: Mapping[str, Any]) -> ActionEvent | None:
    action, arguments = part_change(step, event.tool_call_id)
    if action == "drop":
        return None
    if action == "keep":
        return event
    call = event.tool_call.model_copy(update={"arguments": arguments or "{}"})
    return event.model_copy(update={"tool_call": call})


def _message_event(own: LLMConvertibleEvent, text: str | None) -> MessageEvent:
    """Return an event with the message of another and this text, without its calls."""
    changed = {"content": [TextContent(text=text or "")], "tool_calls": None}
    return MessageEvent(source=own.source, llm_message=own.to_llm_message().model_copy(update=changed))


def _inserted(one: Mapping[str, Any], names: Mapping[str, str]) -> Piece:
    message = Message(role=one["role"], content=[TextContent(text=one["text"])])
    if one["role"] == "tool":
        message.tool_call_id, message.name = one["call_id"], names.get(one["call_id"], "unknown")
    return (MessageEvent(source="environment", llm_message=message),)
