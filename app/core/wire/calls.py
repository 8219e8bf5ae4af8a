"""Model calls of the providers' APIs: their conversations, the compactions requested in them, and their new bodies.

A compaction is requested by a field of the body that many upstreams refuse.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from app.core.log.events import Json, canonical_json
from app.core.wire.bodies import Body, parse
from app.core.wire.compacted import FORMAT, LISTS, TYPES, CompactedPlace, sealed_in
from app.core.wire.gemini import GeminiReply, join_contents
from app.core.wire.providers import Endpoint
from app.core.wire.replies import Accumulator, AnthropicReply, ChatReply, ResponsesReply, mapping, objects

if TYPE_CHECKING:
    from app.core.render.formats.tools import NativeFormat


FIELD: Final = "context_management"
EDIT: Final = "compact_20260112"
"""The type of Anthropic's edit that requests a compaction."""
BETA: Final = "compact-2026-01-12"
"""The name of that edit among the beta features that a call enables."""
TRIGGER_TOKENS: Final = 150_000
"""The trigger of Anthropic's edit if it states none."""


@dataclass(frozen=True, slots=True)
class RequestedCompaction:
    """A compaction to make if a call's list has more than `tokens`; None: more than the window.

    `pauses`: the item is to be returned alone, without a reply.
    """

    tokens: int | None
    pauses: bool = False


def split_request(form: str, body: Body) -> tuple[Body, RequestedCompaction | None]:
    """Return a call's body without the request for a compaction in it, and that request.

    The body is returned as it is, with None, if there is no valid request, or if the list holds a compaction of the
    provider's own: then the request is the provider's, too.
    """
    found = None
    if FIELD in body.value and form in _SPLITS and not _holds_foreign_item(form, body):
        found = _SPLITS[form](body.value)
    if found is None:
        return body, None
    request, rest = found
    written = {name: json.dumps(value) for name, value in rest.items() if value}
    without = frozenset(name for name, value in rest.items() if not value)
    return parse(body.with_members(written, without=without).encode()), request


_Split = tuple[RequestedCompaction, Mapping[str, Json]] | None
"""A request, and the values of the fields that held it, without it; None or an empty value: the field is removed."""


def _split_entries(call: Mapping[str, Json]) -> _Split:
    """Split the field of a Responses call, a list."""
    entries = call[FIELD]
    own, others = _divide(entries, "compaction")
    stated = own.get("compact_threshold")
    tokens = _count_or_none(stated)
    if not own or (tokens is None) != (stated is None):
        return None
    return RequestedCompaction(tokens), {FIELD: others}


def _split_edits(call: Mapping[str, Json]) -> _Split:
    """Split the field of an Anthropic call, an object with a list, and the list of betas of some upstreams' bodies."""
    field = mapping(call[FIELD])
    own, others = _divide(field.get("edits"), EDIT)
    trigger = own.get("trigger")
    tokens = TRIGGER_TOKENS if trigger is None else _count_or_none(mapping(trigger).get("value"))
    if not own or tokens is None or mapping(trigger).get("type", "input_tokens") != "input_tokens":
        return None
    rest: dict[str, Json] = {FIELD: {**field, "edits": others} if others or len(field) > 1 else None}
    if isinstance(betas := call.get("anthropic_beta"), list):
        rest["anthropic_beta"] = [one for one in betas if one != BETA]
    return RequestedCompaction(tokens, own.get("pause_after_compaction") is True), rest


_SPLITS: Final[Mapping[str, Callable[[Mapping[str, Json]], _Split]]] = {
    FORMAT: _split_entries,
    "anthropic": _split_edits,
}


def _divide(entries: Json, kind: str) -> tuple[Mapping[str, Json], list[Json]]:
    """Return the first entry of a type, empty if there is none, and the entries of other types."""
    listed = entries if isinstance(entries, list) else []
    own = next((one for one in objects(listed) if one.get("type") == kind), {})
    return own, [one for one in listed if mapping(one).get("type") != kind]


def _count_or_none(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _holds_foreign_item(form: str, body: Body) -> bool:
    """Return whether a list holds a compaction that is not ours."""
    items = objects(body.value.get(LISTS.get(form, "")))
    if form != FORMAT:
        items = [part for one in items for part in objects(one.get("content"))]
    return any(one.get("type") in TYPES and sealed_in(one) is None for one in items)


MARKERS_MAX: Final = 4
"""Cache markers that Anthropic accepts in one request."""
AT_PROVIDER: Final = "conversation-at-provider"
NOT_IN_LOG: Final = "not-in-log"
"""Reasons why a call is not budgeted: its history is at the provider, or the messages to count are not in the log."""
HELD_OUT: Final = "held-out"
"""Reason why a call is sent unchanged although a context was made."""
ATTRIBUTION: Final = "x-anthropic-billing-header:"
"""Start of the text that Claude Code puts first in its system prompt, and that differs in every call."""
NO_BODY: Final = Body("{}", ())


class NotBudgeted(Exception):
    """The conversation of a call is not in its body, or cannot be read there; the message is a short reason."""


_REPLIES: Final[Mapping[str, type[Accumulator]]] = {
    "anthropic": AnthropicReply,
    "openai": ChatReply,
    "openai-responses": ResponsesReply,
    "gemini": GeminiReply,
}


@dataclass(frozen=True, slots=True)
class CallConversation:
    """A call's conversation, in its provider's format, and its body.

    `attribution` are the blocks of the system prompt that are kept unchanged. `previous` is the id of the reply that
    the messages continue; `place` is that of the compaction item that they continue, with a placeholder for the item
    among them. `continuable`: a later call may name this call's reply. `stored`: the provider keeps the
    reply's items. `hides_usage`: the usage at the end of the stream is for the gateway, and is not passed to the
    client. `served_tokens` is the window with which the upstream runs its models; None if it is the models' own.
    `observed`: the client's own bytes are sent, and the context is only recorded. `held_out` is the session's group if
    a share of sessions is held out of reduction, None if none is.
    `compaction` is the one that the call requests.
    """

    format: "NativeFormat"
    messages: Sequence[Json]
    body: Body = NO_BODY
    system: Json = None
    tools: Json = None
    model: str | None = None
    attribution: tuple[Json, ...] = ()
    previous: str | None = None
    continuable: bool = False
    hides_usage: bool = False
    stored: bool = True
    place: CompactedPlace | None = None
    served_tokens: int | None = None
    observed: bool = False
    held_out: bool | None = None
    compaction: RequestedCompaction | None = None

    def accumulator(self) -> Accumulator:
        """Return an accumulator for the call's reply."""
        return _REPLIES[self.format](stored=self.stored)


def read_conversation(endpoint: Endpoint, body: Body) -> CallConversation:
    """Return the conversation of a call. Raises NotBudgeted."""
    call = body.value
    model, tools = call.get("model"), call.get("tools")
    name = model if isinstance(model, str) and model else endpoint.model
    if endpoint.format == "openai-responses":
        return _read_responses(body, name)
    if endpoint.format == "gemini":
        return _read_gemini(body, name)
    if endpoint.versioned and "anthropic_version" not in call:
        raise NotBudgeted("unknown-format")
    messages = call.get("messages")
    if not isinstance(messages, list) or not messages:
        raise NotBudgeted("no-messages")
    if endpoint.format == "openai":
        asks = mapping(call.get("stream_options")).get("include_usage") is True
        hides = call.get("stream") is True and not asks and endpoint.takes_options
        return CallConversation("openai", messages, body, None, tools, name, hides_usage=hides)
    if call.get("compaction") is not None:  # the response is no reply, and replaces the client's list only
        raise NotBudgeted("compaction")
    attribution, system = _split_attribution(call.get("system"))
    thread = mapping(call.get("thread"))
    previous = thread.get("previous_message_id") if thread.get("type") == "continue" else None
    if previous is not None and not isinstance(previous, str):
        raise NotBudgeted(AT_PROVIDER)
    return CallConversation(
        "anthropic", messages, body, system, tools, name, attribution, previous, continuable=bool(thread)
    )


def _read_responses(body: Body, model: str | None) -> CallConversation:
    call = body.value
    given, previous = call.get("input"), call.get("previous_response_id")
    if call.get("conversation") is not None or call.get("prompt") is not None:
        raise NotBudgeted(AT_PROVIDER)
    items: Sequence[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    if not items and previous is None:
        raise NotBudgeted("no-messages")
    if any(mapping(item).get("type") == "item_reference" for item in items):
        raise NotBudgeted(AT_PROVIDER)
    return CallConversation(
        "openai-responses",
        items,
        body,
        call.get("instructions"),
        call.get("tools"),
        model,
        previous=previous if isinstance(previous, str) else None,
        continuable=True,
        stored=call.get("store") is not False,
    )


def _read_gemini(body: Body, model: str | None) -> CallConversation:
    call = body.value
    if call.get("cachedContent") is not None or call.get("cached_content") is not None:
        raise NotBudgeted(AT_PROVIDER)
    contents = _list(call.get("contents"))
    if not contents:
        raise NotBudgeted("no-messages")
    system = call.get(_system_name(body))
    parts = system.get("parts") if isinstance(system, Mapping) else system
    parts = [parts] if isinstance(parts, Mapping) else parts  # the API takes one part for a list
    return CallConversation("gemini", join_contents(contents), body, parts, call.get("tools"), model)


def _system_name(body: Body) -> str:
    """Return the spelling of the system instruction's field; the API takes two."""
    other = "system_instruction"
    return other if other in body.value else "systemInstruction"


def holds_results(message: Json) -> bool:
    """Return whether an Anthropic message holds results of the calls in the message before it."""
    return any(mapping(part).get("type") == "tool_result" for part in _list(mapping(message).get("content")))


def write_body(
    conversation: CallConversation, request: Body, following: Sequence[Json] = (), *, counts: bool = False
) -> bytes:
    """Return the call's body with the messages and system prompt of a context's `request`; the rest is unchanged.

    Cache markers are the context's, as far as those on the call's tools leave room. Streamed chat completions are made
    to include usage. A call that continues a reply becomes one with the whole conversation. `following` are messages to
    append to those of an Anthropic request. A call that counts tokens (`counts`) keeps its own system prompt.
    """
    body = conversation.body
    replaced: dict[str, str] = {}
    without: frozenset[str] = frozenset()
    if conversation.format == "anthropic":
        replaced = _anthropic_members(conversation, request, following, counts=counts)
    elif conversation.format == "gemini":
        replaced["contents"] = request.raw("contents") or "[]"
        if (system := request.raw("systemInstruction")) is not None:
            replaced[_system_name(body)] = system
    elif conversation.format == "openai":
        replaced["messages"] = request.raw("messages") or "[]"
        if conversation.hides_usage:
            options = mapping(body.value.get("stream_options"))
            replaced["stream_options"] = json.dumps({**options, "include_usage": True})
    else:
        replaced["input"] = request.raw("input") or "[]"
        instructions = request.raw("instructions")
        if instructions is not None:
            replaced["instructions"] = instructions
        if conversation.previous is not None:
            without = frozenset({"previous_response_id"})
    return body.with_members(replaced, without=without).encode()


def _anthropic_members(
    conversation: CallConversation, request: Body, following: Sequence[Json], *, counts: bool
) -> dict[str, str]:
    call = conversation.body.value
    messages, system = request.raw("messages") or "[]", None if counts else request.raw("system")
    value = {name: given for name, given in request.value.items() if name != "system" or not counts}
    kept = [*_list(call.get("tools")), *(_list(call.get("system")) if counts else ())]
    own_markers = sum("cache_control" in mapping(part) for part in kept) + ("cache_control" in call)
    marked = _marked_parts(value)
    if len(marked) + own_markers > MARKERS_MAX:
        for part in marked[: len(marked) + own_markers - MARKERS_MAX]:  # the next call reads the newest
            del part["cache_control"]
        messages = canonical_json(value["messages"])
        system = None if system is None else canonical_json(value["system"])
    if following:
        messages = canonical_json([*json.loads(messages), *map(_unmarked, following)])
    if conversation.attribution and not counts:
        rest = _list(json.loads(system)) if system is not None else []
        system = canonical_json([*conversation.attribution, *rest])
    replaced = {"messages": messages} if system is None else {"messages": messages, "system": system}
    if conversation.previous is not None:
        tools = request.raw("tools")
        replaced |= {"thread": '{"type":"create"}', **({} if tools is None else {"tools": tools})}
    return replaced


def _marked_parts(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a context's request that carry cache markers, in order."""
    messages = [mapping(message).get("content") for message in _list(request.get("messages"))]
    lists = [request.get("system"), *messages]
    return [part for parts in lists for part in _list(parts) if isinstance(part, dict) and "cache_control" in part]


def _unmarked(message: Json) -> Json:
    """Return a message without the client's cache markers."""
    parts = mapping(message).get("content")
    if not isinstance(message, Mapping) or not isinstance(parts, list):
        return message
    plain = [{k: v for k, v in one.items() if k != "cache_control"} if isinstance(one, dict) else one for one in parts]
    return {**message, "content": plain}


def _split_attribution(system: Json) -> tuple[tuple[Json, ...], Json]:
    """Split a system prompt into the leading blocks that change with every call, and the rest (None if empty)."""
    if not isinstance(system, list):
        return (), system
    count = 0
    while count < len(system) and str(mapping(system[count]).get("text")).startswith(ATTRIBUTION):
        count += 1
    return tuple(system[:count]), system[count:] or None


def _list(value: Json) -> list[Any]:
    return value if isinstance(value, list) else []
