"""Google ADK: keep every model call of a runner within its budget.

Use `Runner(…, plugins=[PalimpsestPlugin()])` or `App(…, plugins=[PalimpsestPlugin()])`. ADK's session stays unchanged;
before each model call of any agent, the contents of that request are replaced by contents that fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from palimpsest import _contents
from palimpsest._adapt import Adapter, Budget, FittedContext, Settings
from palimpsest._names import session_name
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS
from palimpsest.formats.common import without_zeros
from palimpsest.formats.gemini import usage

if TYPE_CHECKING:
    from typing_extensions import Unpack

CALLS_KEPT = 1_000
"""The number of model calls in progress that are remembered; outcomes of older ones are not reported."""


class PalimpsestPlugin(Adapter, BasePlugin):
    """Keeps every model call of all agents within its budget, and gives them the recall tool if `recall` is set."""

    def __init__(
        self, *, session: str | Callable[[CallbackContext], str] | None = None, **settings: Unpack[Settings]
    ) -> None:
        """Create a plugin.

        `session` is the id in Palimpsest, or a function that returns it; by default ADK's `app:user:session`.
        """
        super().__init__(name="palimpsest")
        self._session = session
        self._budget = Budget("gemini", settings)
        self._calls: OrderedDict[tuple[str, str], _Call] = OrderedDict()

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Replace the request's contents by those that fit."""
        if (
            llm_request.previous_interaction_id
        ):  # the provider stores the conversation; the request has only new contents
            return None
        sid = self._session_id(callback_context)
        if self._budget.recall:
            llm_request.append_tools([_Recall(self._budget, sid)])
        own, config = llm_request.contents, llm_request.config
        fit = await self._budget.arun(
            self._budget.fit(
                sid,
                _contents.messages(own),
                model=llm_request.model,
                system=_contents.system(config.system_instruction),
                tools=_contents.tools(config.tools or ()),
            )
        )
        if fit is not None:
            llm_request.contents = _contents.apply_fit(fit, own)
            self._calls[_key(callback_context)] = _Call(fit, own)
            if len(self._calls) > CALLS_KEPT:
                self._calls.popitem(last=False)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Report the usage, and log the last answer of a run."""
        call = self._calls.get(_key(callback_context))
        if call is None:
            return None
        call.begun = True
        if llm_response.partial:
            return None
        del self._calls[_key(callback_context)]
        content = llm_response.content
        if content is None and llm_response.error_code:
            error = RuntimeError(llm_response.error_message or llm_response.error_code)
            await self._budget.arun(self._budget.report_failure(call.fit, error, retry=False))
            return None
        metadata = llm_response.usage_metadata
        reply: list[dict[str, Any]] = []
        if content is not None and not any(part.function_call for part in content.parts or ()):
            reply = list(_contents.messages([content]))
        used = None if metadata is None else without_zeros(usage(metadata.model_dump()))  # ADK's LiteLlm sets zeros
        await self._budget.arun(self._budget.report_success(call.fit, usage=used, reply=reply))
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Report the error. If the request was too long and no answer had begun, retry with a smaller one."""
        call = self._calls.pop(_key(callback_context), None)
        if call is None:
            return None
        again = await self._budget.arun(self._budget.report_failure(call.fit, error, retry=not call.begun))
        if again is None:
            return None
        llm_request.contents = _contents.apply_fit(again, call.own)
        self._calls[_key(callback_context)] = _Call(again, call.own, begun=True)
        model: Any = callback_context.get_invocation_context().agent
        try:
            responses = [one async for one in model.canonical_model.generate_content_async(llm_request)]
        except Exception as once_more:
            self._calls.pop(_key(callback_context), None)
            await self._budget.arun(self._budget.report_failure(again, once_more, retry=False))
            return None  # the first error is raised
        return responses[-1] if responses else None

    def _session_id(self, context: CallbackContext) -> str:
        if callable(self._session):
            return self._session(context)
        own = context.session
        return self._session or session_name(own.app_name, own.user_id, own.id)


@dataclass
class _Call:
    """A model call in progress."""

    fit: FittedContext
    own: Sequence[types.Content]
    begun: bool = field(default=False)
    """Whether a part of the answer has arrived, or the call is a retry."""


def _key(context: CallbackContext) -> tuple[str, str]:
    return context.invocation_id, f"{context.agent_name} {context.branch or ''}"


class _Recall(BaseTool):
    def __init__(self, budget: Budget, session: str) -> None:
        super().__init__(name=RECALL, description=RECALL_DESCRIPTION)
        self._budget, self._sid = budget, session

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=RECALL, description=RECALL_DESCRIPTION, parameters_json_schema=RECALL_PARAMETERS
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return {"result": await self._budget.arun(self._budget.recall_result(self._sid, args))}
