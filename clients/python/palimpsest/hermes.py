"""Hermes: a plugin with a context engine, which keeps every model call of an agent within its budget.

Enable the plugin and its engine in Hermes' `config.yaml`: `plugins: {enabled: [palimpsest]}` and
`context: {engine: palimpsest}`. The section `palimpsest` has the adapters' settings. Hermes 0.19 calls an engine only
to shorten a conversation for good, so the plugin's middleware `llm_execution` fits each request instead.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.context_engine import ContextEngine
from hermes_cli.config import load_config

from palimpsest._adapt import SESSIONS_KEPT, Adapter, Budget, FittedContext, Settings
from palimpsest._chat_messages import inserted, replaced
from palimpsest._names import session_name
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS
from palimpsest.formats.common import usage_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

SETTINGS = ("max_tokens", "policy", "model", "metadata", "outside_tokens", "recall", "observe", "holdout", "timeout")
"""Settings that `config.yaml` may have; the client is configured by the environment."""
CHAT = "chat_completions"
_log = logging.getLogger("palimpsest")


class PalimpsestEngine(Adapter, ContextEngine):
    """Keeps model calls within their budget, each agent's in the session of its own id.

    Hermes copies the registered engine for each agent and sub-agent; copies share connections and settings.
    """

    name = "palimpsest"

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Create an engine with the adapters' settings."""
        self._budget = Budget("openai", settings)
        self._windows: OrderedDict[str, PalimpsestEngine] = OrderedDict()
        self._warned_modes: set[str] = set()
        self._session = ""

    def __deepcopy__(self, _: Any) -> PalimpsestEngine:
        """Return an engine for another agent."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._session = ""
        return copied

    def on_session_start(self, session_id: str, **kwargs: Any) -> None:
        """Remember the agent's session, and the engine that has its window."""
        self._session = session_id
        self._windows[session_id] = self
        self._windows.move_to_end(session_id)
        if len(self._windows) > SESSIONS_KEPT:
            self._windows.popitem(last=False)

    def update_from_response(self, usage: dict[str, Any]) -> None:
        """Keep the figures that Hermes displays."""
        self.last_prompt_tokens = usage.get("prompt_tokens") or 0
        self.last_completion_tokens = usage.get("completion_tokens") or 0
        self.last_total_tokens = usage.get("total_tokens") or 0

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Return False: each request is fitted, and the conversation stays whole."""
        return False

    def has_content_to_compress(self, messages: list[dict[str, Any]]) -> bool:
        """Return False, so that `/compress` says that there is nothing to compress."""
        return False

    def compress(self, messages: list[dict[str, Any]], *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Return the messages unchanged."""
        return messages

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the recall tool, if the settings have it."""
        if not self._budget.recall:
            return []
        return [{"name": RECALL, "description": RECALL_DESCRIPTION, "parameters": RECALL_PARAMETERS}]

    def handle_tool_call(self, name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """Return the result of the recall tool as JSON."""
        if name != RECALL:
            return json.dumps({"error": f"unknown tool: {name}"})
        result = self._budget.run(self._budget.recall_result(session_name(self._session), args))
        return result if result.startswith("{") else json.dumps({"error": result})

    def execute(
        self,
        *,
        request: dict[str, Any],
        next_call: Callable[[dict[str, Any]], Any],
        session_id: str = "",
        api_mode: str = CHAT,
        **_: Any,
    ) -> Any:
        """Fit a request, execute it, and report its outcome: a middleware of the kind `llm_execution`."""
        engine = self._windows.get(session_id)
        if engine is None:  # the agent has another engine
            return next_call(request)
        name = session_name(session_id)
        if api_mode != CHAT:
            if api_mode not in self._warned_modes:
                self._warned_modes.add(api_mode)
                _log.warning("requests of the API mode %s go to the model unchanged", api_mode)
            self._budget.count_unchanged(name)
            return next_call(request)
        fit = self._budget.run(
            self._budget.fit(
                name,
                request["messages"],
                model=request.get("model"),
                tools=request.get("tools") or None,
                window=engine.context_length or None,
            )
        )
        if fit is None:
            return next_call(request)
        fitting = fit.apply(request["messages"], replaced, inserted)
        try:
            response = next_call({**request, "messages": fitting})
        except Exception as error:  # Hermes wraps the provider's errors
            self._budget.run(self._budget.report_failure(fit, getattr(error, "original", error), retry=False))
            raise
        self._report(fit, response)
        return response

    def _report(self, fit: FittedContext, response: Any) -> None:
        """Report the usage, and log the reply that ends a run."""
        usage = getattr(response, "usage", None)
        counts = None
        if usage is not None:
            details = getattr(usage, "prompt_tokens_details", None)
            counts = usage_of(
                input_tokens=getattr(usage, "prompt_tokens", None),
                output_tokens=getattr(usage, "completion_tokens", None),
                cache_read_tokens=getattr(details, "cached_tokens", None),
            )
        choices = getattr(response, "choices", None)
        message = choices[0].message if choices else None
        reply: list[dict[str, Any]] = []
        if message is not None and message.content and not message.tool_calls:
            reply = [{"role": "assistant", "content": message.content}]
        self._budget.run(self._budget.report_success(fit, usage=counts, reply=reply))


def register(context: Any) -> None:
    """Register the engine and its middleware: the entry point of the plugin."""
    section: Any = load_config().get("palimpsest") or {}
    unknown = sorted(section.keys() - set(SETTINGS))
    if unknown:
        raise ValueError(f"config.yaml: palimpsest has no setting {', '.join(unknown)}")
    engine = PalimpsestEngine(**section)
    context.register_context_engine(engine)
    context.register_middleware("llm_execution", engine.execute)
