"""Code shared by the formats: tool definitions, names and ids, and the layout as plain blocks."""

from typing import Any, get_args

import pytest

from app.core.errors import InvalidRequest
from app.core.log.event import Block, Kind
from app.core.render.formats import FORMATS, FormatName
from app.core.render.formats.layout import Layout
from app.core.render.formats.tools import CallIds, NativeFormat, tool_name, write_tools
from app.resources.summaries.routes import ToolsOut
from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses
from tests.support.written_requests import write_in
from tests.unit.render.formats.layouts import call, result, says, user

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
SHAPES: dict[NativeFormat, dict[str, Any]] = {
    "openai": {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}},
    "openai-responses": {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA},
    "anthropic": {"name": "read", "description": "Reads.", "input_schema": SCHEMA},
}
BARE = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
BUILT_IN: dict[NativeFormat, dict[str, Any]] = {
    "openai": {"type": "custom", "custom": {"name": "patch"}},
    "openai-responses": {"type": "web_search"},
    "anthropic": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
}


def test_the_table_has_every_format_that_the_api_names() -> None:
    assert list(FORMATS) == list(get_args(FormatName))
    native = [name for name, form in FORMATS.items() if form.native]
    assert native == list(get_args(NativeFormat))
    assert native == [field.alias or name for name, field in ToolsOut.model_fields.items()]


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("given", [*SHAPES.values(), BARE])
def test_a_tool_in_any_shape_is_written_in_each(given: dict[str, Any], target: NativeFormat) -> None:
    assert write_tools([given], target) == [SHAPES[target]]


@pytest.mark.parametrize("target", SHAPES)
def test_a_providers_own_fields_and_tools_are_its_own(target: NativeFormat) -> None:
    own = {**SHAPES[target], "defer_loading": True}
    assert write_tools([own, *BUILT_IN.values()], target) == [own, BUILT_IN[target]]


@pytest.mark.parametrize("target", SHAPES)
def test_no_two_tools_get_one_name(target: NativeFormat) -> None:
    names = ["a.b", "a_b", "a/b", "a_b", "ü" * 70, "ä" * 70, "x" * 65]
    tools = write_tools([{"name": name, "parameters": SCHEMA} for name in names], target)
    written = [(tool.get("function") or tool)["name"] for tool in tools]
    assert len(set(written)) == len(written) == 6
    assert "a_b" in written
    assert all(tool_name(name) == name for name in written)


def test_a_call_bears_the_name_that_its_tool_was_given() -> None:
    names = ["a.b", "a_b", "x" * 65, "x" * 66]
    tools = tuple({"name": name, "parameters": SCHEMA} for name in names)
    blocks = [user(1)]
    for number, name in enumerate(names, 1):
        blocks += [call(2 * number, f"c{number}", name), result(2 * number + 1, f"c{number}")]
    layout = Layout(tools, 9, (), tuple(blocks))
    chat, responses, messages = (write_in(form, layout).request for form in SHAPES)
    chat_calls = [c["function"]["name"] for m in chat["messages"] for c in m.get("tool_calls", [])]
    assert chat_calls == [tool["function"]["name"] for tool in chat["tools"]]
    items = [item["name"] for item in responses["input"] if item.get("type") == "function_call"]
    assert items == [tool["name"] for tool in responses["tools"]]
    uses = [part["name"] for m in messages["messages"] for part in m["content"] if part["type"] == "tool_use"]
    assert uses == [tool["name"] for tool in messages["tools"]]
    assert len(set(uses)) == 4


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(system=(Block(Kind.SYSTEM, 1, "s"),)),
        Layout(blocks=(says(1, [{"type": "reasoning", "text": "hm"}]),)),
    ],
)
def test_an_empty_layout_still_has_a_message(layout: Layout) -> None:
    check_openai(write_in("openai", layout).request)
    check_openai_responses(write_in("openai-responses", layout).request)
    check_anthropic(write_in("anthropic", layout).request)
    check_gemini(write_in("gemini", layout).request)


def test_a_schema_without_a_type_is_an_objects_for_anthropic() -> None:
    tools = write_tools([{"name": "a", "parameters": {}}, {"name": "b", "parameters": None}], "anthropic")
    assert [tool["input_schema"]["type"] for tool in tools] == ["object", "object"]


def test_names_change_only_where_illegal() -> None:
    assert [tool_name(name) for name in ("read_file-2", "a.b/c d", "", None)] == [
        "read_file-2",
        "a_b_c_d",
        "tool",
        "tool",
    ]


def test_ids_that_look_alike_when_cleaned_stay_apart() -> None:
    ids = CallIds(40, unique=False)
    assert ids.call("call.1", 1, own=False) != ids.call("call/1", 2, own=False)
    assert ids.call("call.1", 3, own=True) == "call.1"


def test_a_suffixed_id_never_meets_one_that_was_there() -> None:
    ids = CallIds(8, unique=True)
    given = [ids.call(call_id, seq, own=True) for seq, call_id in enumerate(["a_3", "a", "xxxxxx_4", "a", "xxxxxx_4"])]
    assert given[:3] == ["a_3", "a", "xxxxxx_4"]
    assert len(set(given)) == 5
    assert all(len(call_id) <= 8 for call_id in given)


def test_the_plain_format_is_the_layout() -> None:
    layout = Layout(
        tools=(BARE,),
        tools_seq=2,
        system=(Block(Kind.SYSTEM, 1, "s"),),
        blocks=(user(3, "", native={"format": "openai", "head": {}}), call(4, "a"), result(5, "a", is_error=True)),
    )
    assert write_in("blocks", layout).request == {
        "blocks": [
            {"seq": 2, "kind": "tools", "content": [BARE]},
            {"seq": 1, "kind": "system", "content": "s"},
            {"seq": 3, "kind": "user", "content": ""},
            {"seq": 4, "kind": "call", "call_id": "a", "tool": "read", "arguments": {}},
            {"seq": 5, "kind": "result", "content": "found", "call_id": "a", "tool": "read", "is_error": True},
        ]
    }


def test_the_plain_format_reads_nothing() -> None:
    with pytest.raises(InvalidRequest):
        FORMATS["blocks"].read([])


@pytest.mark.parametrize("unique", [True, False])
def test_two_open_calls_with_one_id_are_distinguished_and_answered_in_order(unique: bool) -> None:
    ids = CallIds(40, unique=unique)
    assert [ids.call("c", 3, own=True), ids.call("c", 9, own=True)] == ["c", "c_9"]
    assert [ids.result("c"), ids.result("c")] == ["c", "c_9"]
    assert ids.call("c", 12, own=True) == ("c_12" if unique else "c")
    assert ids.result("c") == ("c_12" if unique else "c")
