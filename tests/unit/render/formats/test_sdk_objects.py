"""The SDKs' response objects are sent back in the form that requests permit, checked against the installed SDKs."""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

import openai.types.chat as chat
import openai.types.responses as responses
import pytest
from anthropic.types import MessageParam, parsed_message
from anthropic.types.beta import BetaContentBlock, BetaMessageParam
from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

from tests.unit.render.formats.layouts import round_trip

Json = dict[str, Any]
GO = {"role": "user", "content": "go"}


def unwrap(hint: Any) -> Any:
    while get_origin(hint) in (Annotated, Required, NotRequired):
        hint = get_args(hint)[0]
    return hint


def referenced(hint: Any, wanted: Callable[[Any], bool], found: list[Any]) -> list[Any]:
    """Return all classes of a kind that a type refers to."""
    hint = unwrap(hint)
    if inspect.isclass(hint) and wanted(hint):
        if hint not in found:
            found.append(hint)
            for inner in fields(hint).values():
                referenced(inner, wanted, found)
        return found
    for inner in get_args(hint):
        referenced(inner, wanted, found)
    return found


def fields(one: Any) -> Json:
    if is_typeddict(one):
        return get_type_hints(one, include_extras=True)
    return {name: field.annotation for name, field in one.model_fields.items()}


def kinds(one: Any) -> tuple[str, ...]:
    hint = unwrap(fields(one).get("type"))
    return get_args(hint) if get_origin(hint) is Literal else ()


def is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def allowed(*params: Any) -> dict[str, set[str]]:
    """Return the fields that a request's objects of each type may have."""
    found: dict[str, set[str]] = {}
    for param in params:
        for one in referenced(param, is_typeddict, []):
            for kind in kinds(one):
                found.setdefault(kind, set()).update(fields(one))
    return found


def objects(hint: Any, may: dict[str, set[str]]) -> Iterator[Json]:
    """Yield an object of each type that a response may hold, with every field set."""
    members = get_args(unwrap(hint)) or (hint,)
    models = [one for member in members for one in referenced(member, is_model, [])[:1]]
    for model in models:
        for kind in kinds(model):
            if kind in may:
                yield dict.fromkeys(fields(model), "x") | {"type": kind}


RESPONSES = allowed(responses.ResponseInputItemParam)
OUTPUT = get_args(responses.ParsedResponse.model_fields["output"].annotation)[0]
MESSAGES = allowed(MessageParam, BetaMessageParam)
BLOCKS = get_args(parsed_message.ParsedMessage.model_fields["content"].annotation)[0]
LISTS = {"shell_call_output": "output", "message": "content"}
CHAT = {"content", "refusal", "role", "name", "audio", "function_call", "tool_calls"}


@pytest.mark.parametrize("item", list(objects(OUTPUT, RESPONSES)), ids=lambda item: item["type"])
def test_an_item_of_an_answer_is_sent_with_the_fields_of_a_request(item: Json) -> None:
    kind = item["type"]
    if kind == "message":
        part = dict.fromkeys(fields(responses.ParsedResponseOutputText), "x") | {"type": "output_text"}
        item = {**item, "role": "assistant", "content": [part]}
    elif kind in LISTS:
        item[LISTS[kind]] = []
    empty = {name: None if name not in ("type", "role", "content", "output", "arguments", "name") else value
             for name, value in item.items()}  # fmt: skip
    empty |= {name: item[name] for name in ("call_id", "input", "id") if name in item}
    for given in (item, empty):
        sent = round_trip("openai-responses", [GO, given, {"role": "assistant", "content": "so"}])[1]
        assert sent["type"] == kind
        assert set(sent) <= RESPONSES[kind], set(sent) - RESPONSES[kind]
    assert None not in (value for name, value in sent.items() if name != "call_id")
    if kind == "message":
        assert set(sent["content"][0]) <= RESPONSES["output_text"]


@pytest.mark.parametrize(
    "block", [*objects(BLOCKS, MESSAGES), *objects(BetaContentBlock, MESSAGES)], ids=lambda block: block["type"]
)
def test_a_block_of_an_answer_is_sent_with_the_fields_of_a_request(block: Json) -> None:
    kind = block["type"]
    if kind == "text":
        cited = [
            {"type": one, "cited_text": "x", "file_id": None, "document_index": 0, "document_title": None}
            for one in ("char_location", "page_location", "content_block_location")
        ]
        block["citations"] = cited
    elif kind == "tool_use":
        block |= {"input": {"a": None}, "caller": None}
    dumped = {"id": "msg", "model": "m", "stop_reason": "end_turn", "usage": {}, "type": "message", "container": None}
    said = {**dumped, "role": "assistant", "content": [block, {"type": "text", "text": "so", "citations": None}]}
    sent = round_trip("anthropic", [GO, said, *results(block)])[1]
    assert set(sent) == {"role", "content"}
    assert sent["content"][-1] == {"type": "text", "text": "so"} or kind == "tool_use"
    shown = next(part for part in sent["content"] if part["type"] == kind)
    assert set(shown) <= MESSAGES[kind], set(shown) - MESSAGES[kind]
    if kind == "text":
        assert all(set(one) <= MESSAGES[one["type"]] for one in shown["citations"])


def results(block: Json) -> list[Json]:
    if block["type"] != "tool_use":
        return []
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]


def test_a_parsed_chat_message_is_sent_with_the_fields_of_a_request() -> None:
    message = chat.ParsedChatCompletionMessage[Any].model_validate(
        {
            "role": "assistant",
            "content": "x",
            "parsed": {"a": 1},
            "annotations": [],
            "audio": {"id": "audio_1", "data": "AA==", "expires_at": 1, "transcript": "x"},
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "read", "arguments": "{}", "parsed_arguments": {"a": 1}},
                }
            ],
        }
    )
    answered = {"role": "tool", "tool_call_id": "a", "content": "y"}
    sent = round_trip("openai", [GO, message.model_dump(), answered])[1]
    assert set(sent) <= CHAT
    assert sent["audio"] == {"id": "audio_1"}
    assert sent["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    silent = chat.ParsedChatCompletionMessage[Any].model_validate({"role": "assistant", "content": "x"})
    assert "tool_calls" not in round_trip("openai", [GO, silent.model_dump()])[1]


def test_a_vendors_own_items_are_returned_to_it() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "hm", "extra_content": {"google": {"s": 1}}}
    assert round_trip("openai", [GO, said]) == [GO, said]
