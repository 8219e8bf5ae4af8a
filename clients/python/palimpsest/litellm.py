"""LiteLLM: keep every chat completion of `acompletion`, a Router or the proxy within its budget.

Set `litellm.callbacks = [PalimpsestHook()]`, and pass a session's id with each call: `litellm_session_id="…"`, or the
proxy's header `x-litellm-session-id`. LiteLLM calls the hook before each attempt at a deployment, with its model, so
that retries and fallbacks are budgeted for the model they use. The blocking `litellm.completion` has no such hook.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from litellm.integrations.custom_logger import CustomLogger

from palimpsest._adapt import Adapter, Budget, FittedContext, Settings
from palimpsest._chat_messages import Message, inserted, replaced
from palimpsest._names import session_name
from palimpsest.formats import FORMATS, as_dict
from palimpsest.formats.common import without_zeros

if TYPE_CHECKING:
    from typing_extensions import Unpack

CALLS_KEPT = 1_000
"""The number of calls in progress that are remembered; outcomes of older ones are not reported."""
_log = logging.getLogger("palimpsest")


class PalimpsestHook(Adapter, CustomLogger):
    """Keeps chat completions within their budget. Calls without a session, and other kinds of calls, stay unchanged.

    A hook cannot retry: after a call that was too long, the next attempt for the same conversation gets a smaller
    context, such as a Router's by `context_window_fallbacks=[{"gpt": ["gpt"]}]`.
    """

    def __init__(
        self, *, session: Callable[[Mapping[str, Any]], str | None] | None = None, **settings: Unpack[Settings]
    ) -> None:
        """Create a hook. `session` returns the id for a call's keyword arguments; by default LiteLLM's session id."""
        if settings.get("recall"):
            raise ValueError("a hook of LiteLLM cannot answer the recall tool; give it to your agent instead")
        super().__init__()
        self._session = session or _session_of
        self._budget = Budget("openai", settings)
        self._fits_in_progress: OrderedDict[str, FittedContext] = OrderedDict()
        self._retry_fits: OrderedDict[str, tuple[Sequence[Message], FittedContext]] = OrderedDict()
        self._warned_no_session = False

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Replace the call's messages by those that fit."""
        messages = kwargs.get("messages")
        if getattr(call_type, "value", call_type) not in ("acompletion", "completion") or not messages:
            return None
        session = self._session(kwargs)
        if session is None:
            if not self._warned_no_session:
                self._warned_no_session = True
                _log.warning("calls without a litellm_session_id go to the model unchanged")
            return None
        own = messages.own if isinstance(messages, _Fitting) else messages
        before, fit = self._retry_fits.pop(session, (None, None))
        if before != own or fit is None:
            flow = self._budget.fit(session, own, model=kwargs.get("model"), tools=kwargs.get("tools") or None)
            fit = await self._budget.arun(flow)
        if fit is None:
            return {**kwargs, "messages": own}
        _keep(self._fits_in_progress, str(kwargs.get("litellm_call_id")), fit)
        return {**kwargs, "messages": _Fitting(fit.apply(own, replaced, inserted), own)}

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: Any
    ) -> None:
        """Report the usage, and log the reply."""
        await self._report_answer(request_data, response)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Report the usage of a streamed answer, and log the reply."""
        await self._report_answer(kwargs, response_obj)

    async def async_post_call_failure_deployment_hook(
        self, request_data: Mapping[str, Any], exception: Exception, call_type: Any, fallback_depth: int | None = None
    ) -> None:
        """Report the error; if the call was too long, keep a smaller context for the next attempt."""
        await self._report_error(request_data, exception)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Report the error of a streamed answer, as `async_post_call_failure_deployment_hook` does."""
        await self._report_error(kwargs, kwargs.get("exception") or RuntimeError("the call failed"))

    async def _report_answer(self, about: Mapping[str, Any], response: Any) -> None:
        fit = self._fits_in_progress.pop(str(about.get("litellm_call_id")), None)
        if fit is None or not hasattr(response, "choices"):
            return
        answer = FORMATS["openai"].read(as_dict(response))
        reply = [] if answer.tool_calls else answer.messages
        usage = (
            without_zeros(answer.usage) if _is_usage_reported(about) else None
        )  # LiteLLM sets zeros for the Messages API
        await self._budget.arun(self._budget.report_success(fit, usage=usage, reply=reply))

    async def _report_error(self, about: Mapping[str, Any], error: BaseException) -> None:
        fit = self._fits_in_progress.pop(str(about.get("litellm_call_id")), None)
        if fit is None:
            return
        again = await self._budget.arun(self._budget.report_failure(fit, error))
        if again is not None:
            _keep(self._retry_fits, fit.session, (fit.asked["messages"], again))


class _Fitting(list[Message]):
    """Messages that fit, with the original ones in case LiteLLM sends them again."""

    def __init__(self, messages: Sequence[Message], own: Sequence[Message]) -> None:
        super().__init__(messages)
        self.own = own


def _keep(kept: OrderedDict[str, Any], key: str, value: Any) -> None:
    kept[key] = value
    if len(kept) > CALLS_KEPT:
        kept.popitem(last=False)


def _session_of(kwargs: Mapping[str, Any]) -> str | None:
    for about in (kwargs, kwargs.get("metadata"), kwargs.get("litellm_metadata")):
        for name in ("litellm_session_id", "session_id"):
            if isinstance(about, Mapping) and about.get(name):
                return session_name(str(about[name]))
    return None


def _is_usage_reported(about: Mapping[str, Any]) -> bool:
    """Return whether the provider reported the usage for this call: LiteLLM guesses it for streams without usage."""
    if about.get("cache_hit"):
        return False
    options = about.get("optional_params") or about
    return not options.get("stream") or bool((options.get("stream_options") or {}).get("include_usage"))
