"""OpenAI Agents SDK: keep every model call within its budget, and store the conversation in a `Session`.

    memory = PalimpsestSession("support-42", max_tokens=32_000)
    await Runner.run(agent, "Where is order 7?", session=memory, run_config=memory.run_config())

The filter budgets each call; the session gives a run the complete conversation so far. Either can be used alone.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    ModelResponse,
    MultiProvider,
    RunConfig,
    SessionABC,
    SessionSettings,
    handoff,
)
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.models.interface import Model, ModelProvider
from agents.run import CallModelData, ModelInputData

from palimpsest._adapt import Adapter, Budget, FittedContext, Settings
from palimpsest._flows import Abandoned, Flow
from palimpsest._recall_tool import RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS
from palimpsest._responses_items import items_of
from palimpsest.errors import InvalidRequestError, NotFoundError
from palimpsest.formats import as_dict
from palimpsest.formats.common import without_zeros
from palimpsest.formats.openai_responses import RESPONSES
from palimpsest.operations import events, sessions
from palimpsest.types import EventOut

if TYPE_CHECKING:
    from typing_extensions import Unpack

Item = Any
"""An input item: a mapping."""
NOT_COMPARED = frozenset({"id", "status", "type", "provider_data"})
_log = logging.getLogger("palimpsest")
_current: ContextVar[FittedContext | None] = ContextVar("palimpsest_fit", default=None)


class PalimpsestSession(Adapter, SessionABC):
    """A conversation stored by the server."""

    def __init__(
        self,
        session_id: str,
        *,
        session_settings: SessionSettings | None = None,
        require_history: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        """Create a session. With `require_history`, a run fails if the conversation so far cannot be read.

        By default a run continues with the part of the conversation that this process knows, which is nothing after a
        restart.
        """
        self._require_history = require_history
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self._budget = Budget("openai-responses", settings)
        self._model: str | Model | None = None  # the one that a run's configuration has for all agents
        self._unclaimed: list[str] = []  # items that the filter logged and the runner has not added yet
        self._unwritten: list[tuple[str, list[Item]]] = []  # items not written yet, each with its idempotency key
        self._known: list[Item] | None = None  # a copy of the conversation for outages
        self._blind = False  # whether the run lacks the conversation, so that its messages must not be reconciled

    def run_config(self, **more: Any) -> RunConfig:
        """Return a run configuration with which every call is budgeted and reported. `more` are fields of `RunConfig`.

        Agents' models must be given by name, as `run_config(model=…)`, or wrapped with `model`; calls of other models
        are budgeted but not reported.
        """
        more["model_provider"] = _Provider(self._budget, more.get("model_provider") or MultiProvider())
        self._model = more.get("model")
        if isinstance(self._model, Model):
            more["model"] = self.model(self._model)
        return RunConfig(call_model_input_filter=self.filter, **more)

    def model(self, model: Model) -> Model:
        """Wrap a model so that its calls are reported, and retried with a smaller input if they were too long."""
        return _ReportingModel(self._budget, model)

    def recall_tool(self) -> FunctionTool:
        """Return the recall tool, to be added to an agent's tools."""

        async def invoke(_: Any, arguments: str) -> str:
            try:
                given = json.loads(arguments or "{}")
            except ValueError as error:
                return f"the arguments are not JSON: {error}"
            return await self._budget.arun(self._budget.recall_result(self.session_id, given))

        return FunctionTool(RECALL, RECALL_DESCRIPTION, RECALL_PARAMETERS, invoke, strict_json_schema=False)

    async def filter(self, data: CallModelData[Any]) -> ModelInputData:
        """Replace a call's input by the items that fit, as `RunConfig.call_model_input_filter`."""
        sent, agent = data.model_data, data.agent
        _current.set(None)
        if self._blind:
            self._budget.count_unchanged(self.session_id)
            return sent
        model = self._model or agent.model
        name = model if isinstance(model, str) else getattr(model, "model", None)
        asked = self._budget.fit(
            self.session_id,
            sent.input,
            model=name if isinstance(name, str) else None,
            system=sent.instructions,
            tools=_tools(agent),
        )
        fit = await self._budget.arun(asked)
        _current.set(fit)
        if fit is None:
            return sent
        self._unwritten.clear()  # these items were among the messages
        new = (one["index"] for one in fit.context.to_dict()["appended"])
        self._unclaimed += [_fingerprint(sent.input[index]) for index in new if index is not None]
        return ModelInputData(input=_applied(fit), instructions=sent.instructions)

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the conversation, or its last `limit` items, as they were added.

        During an outage, return the part that this process knows; if it knows none and `require_history` is set, raise
        PalimpsestError.
        """
        self._unclaimed.clear()
        items = await self._budget.arun(self._load_conversation())
        last = resolve_session_limit(limit, self.session_settings)
        return items if last is None else items[-last:] if last > 0 else []

    async def add_items(self, items: list[Item]) -> None:
        """Append the items that the filter has not logged already. During an outage they are kept and written later."""
        new = []
        for item in items:
            fingerprint = _fingerprint(item)
            if fingerprint in self._unclaimed:
                self._unclaimed.remove(fingerprint)
            else:
                new.append(item)
        if self._known is not None:
            self._known += items
        if new:
            self._unwritten.append((str(uuid.uuid4()), new))
        await self._budget.arun(self._write())

    async def pop_item(self) -> Item | None:
        """Remove and return the last item. The log keeps it on another line."""
        found = await self._budget.arun(self._pop())
        self._unclaimed.clear()
        return found

    async def clear_session(self) -> None:
        """Start an empty conversation. The log keeps the previous lines; `Session.delete_session` erases them."""
        self._unclaimed, self._unwritten, self._known = [], [], None
        await self._budget.arun(self._rewind_to(0))

    def _load_conversation(self) -> Flow[list[Item]]:
        yield from self._write()
        if self._known is None and self._require_history:
            read: list[tuple[int, Item]] | None = yield from self._read()
        else:
            read = yield from self._budget.guard(self._read(), self.session_id)
        unwritten = [item for _, items in self._unwritten for item in items]
        self._blind = read is None and self._known is None
        if read is not None:
            self._known = [*(item for _, item in read), *unwritten]
        elif self._blind:
            _log.warning("session %s: the run continues without the previous conversation", self.session_id)
            return unwritten
        return list(self._known or ())

    def _read(self) -> Flow[list[tuple[int, Item]]]:
        found: list[EventOut] = []
        listing = events.list_events(self.session_id)
        try:
            while True:
                page, cursor = yield listing
                found += page
                if cursor is None:
                    return items_of(found)
                listing = listing.after(cursor)
        except NotFoundError as error:
            if error.slug is None:  # a proxy's response
                raise
            return []

    def _write(self) -> Flow[None]:
        for batch in list(self._unwritten):
            if (yield from self._budget.guard(self._append(*batch), self.session_id)) is None:
                return
            with suppress(ValueError):  # the filter has written it in the meantime
                self._unwritten.remove(batch)

    def _append(self, key: str, items: list[Item]) -> Flow[bool | None]:
        """Append items; if the server refuses them, send the complete conversation, where it accepts more."""
        try:
            yield events.append_messages(
                self.session_id, format="openai-responses", messages=items, idempotency_key=key
            )
        except InvalidRequestError:
            whole = [*(item for _, item in (yield from self._read())), *items]
            return (yield from self._budget.log_messages(self.session_id, whole)) or None
        return True

    def _pop(self) -> Flow[Item | None]:
        yield from self._write()
        items = yield from self._read()
        if not items:
            return None
        seq, item = items[-1]
        yield from self._rewind_to(seq - 1)
        self._known = [item for _, item in items[:-1]]
        return item

    def _rewind_to(self, seq: int) -> Flow[None]:
        try:
            yield sessions.rewind_session(self.session_id, to=seq)
        except NotFoundError:
            return


class _Provider(ModelProvider):
    """A provider whose models report their calls."""

    def __init__(self, budget: Budget, inner: ModelProvider) -> None:
        self._budget, self._inner = budget, inner

    def get_model(self, model_name: str | None) -> Model:
        return _ReportingModel(self._budget, self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _ReportingModel(Model):
    """A model whose calls are reported for the context that the filter made for them."""

    def __init__(self, budget: Budget, inner: Model) -> None:
        self._budget, self._inner = budget, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_retry_advice(self, request: Any) -> Any:
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        await self._inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    async def get_response(  # other arguments are passed through
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        budget, fit = self._budget, _current.get()
        while True:
            try:
                response = await self._inner.get_response(system_instructions, input, *rest, **more)
                break
            except Exception as error:
                fit = None if fit is None else await budget.arun(budget.report_failure(fit, error))
                if fit is None:
                    raise
                input = _applied(fit)
        if fit is not None:
            usage = response.usage
            counts: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            counts["input_tokens_details"] = as_dict(usage.input_tokens_details)
            await budget.arun(budget.report_success(fit, usage=without_zeros(RESPONSES.read({"usage": counts}).usage)))
        return response

    async def stream_response(  # other arguments are passed through
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> AsyncIterator[Any]:
        budget, fit = self._budget, _current.get()
        while True:
            whole, held = RESPONSES.accumulator(), list[Any]()
            tighter: FittedContext | None = None
            try:
                async for event in self._inner.stream_response(system_instructions, input, *rest, **more):
                    whole.feed(event)
                    held.append(event)
                    while whole.begun and held:
                        yield held.pop(0)
                failure = RESPONSES.read(whole.response()).failure
                if failure is not None and fit is not None:
                    tighter = await budget.arun(budget.report_failure(fit, _Failure(failure), retry=not whole.begun))
            except (Exception, GeneratorExit) as error:
                reason = Abandoned() if isinstance(error, GeneratorExit) else error
                if fit is not None:
                    tighter = await budget.arun(budget.report_failure(fit, reason, retry=not whole.begun))
                if tighter is None:
                    raise
                failure = {}
            if tighter is not None:
                fit, input = tighter, _applied(tighter)
                continue
            for event in held:
                yield event
            if fit is not None and failure is None:
                used = without_zeros(RESPONSES.read(whole.response()).usage)
                await budget.arun(budget.report_success(fit, usage=used))
            return


class _Failure(Exception):
    """The error in a failed response."""

    def __init__(self, failure: Mapping[str, Any]) -> None:
        super().__init__(str(failure.get("message") or failure))
        self.code = failure.get("code")


def _applied(fit: FittedContext) -> list[Item]:
    """Return the input with the plan applied. Replaced tool calls and results are as the server rendered them."""
    rendered = {(item["type"], item["call_id"]): item for item in fit.context.request["input"] if item.get("call_id")}

    def replaced(item: Item, step: Mapping[str, Any]) -> Item:
        if item.get("call_id"):
            return rendered.get((item["type"], item["call_id"]))
        content: Any = step["text"]
        if item.get("role") == "assistant" and isinstance(item.get("content"), list):
            content = [{"type": "output_text", "text": content, "annotations": []}]
        return {**item, "content": content}

    return fit.apply(fit.asked["messages"], replaced, _inserted)


def _inserted(one: Mapping[str, Any]) -> Item:
    if one["role"] == "tool":
        return {"type": "function_call_output", "call_id": one["call_id"], "output": one["text"]}
    return {"role": one["role"], "content": one["text"]}


def _tools(agent: Agent[Any]) -> list[dict[str, Any]]:
    """Return an agent's function tools and handoffs, for counting. Tools of MCP servers are not known here."""
    functions = [
        (tool.name, tool.description, tool.params_json_schema) for tool in agent.tools if isinstance(tool, FunctionTool)
    ]
    handoffs = [one if isinstance(one, Handoff) else handoff(one) for one in agent.handoffs]
    functions += [(one.tool_name, one.tool_description, one.input_json_schema) for one in handoffs]
    return [
        {"type": "function", "name": name, "description": description, "parameters": schema}
        for name, description, schema in functions
    ]


def _fingerprint(item: Item) -> str:
    """Return an item's content in a form that can be compared."""
    return json.dumps({n: v for n, v in item.items() if v is not None and n not in NOT_COMPARED}, sort_keys=True)
