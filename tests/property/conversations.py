"""Random conversations in each provider's shape, as the provider accepts them, and mixed ones as layout blocks."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from app.core.log.event import Block, Kind
from tests.property.builders import arguments, contents
from tests.unit.render.formats.layouts import layout_of_messages

Message = dict[str, Any]

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12).map(lambda t: f"w{t}")
HOLOGRAM: Message = {"type": "hologram", "depth": [1]}
"""A part of a type that no provider has."""
maybe = st.sampled_from([{}, {}, {"x_unknown": [None, {"deep": 1}]}])
TOOLS = ("read", "ask_user", "mcp__git-log")
objects = st.dictionaries(words, st.one_of(words, st.integers(), st.none()), max_size=2)
json_texts = st.sampled_from(["", "{}", '{ "path" :"x" }', '{"a": [1, null], "b": "\\u00fc"}'])
malformed = st.sampled_from(['{"a": tr', "[1]", "null", '{"a": NaN}', "\x00"])
"""Arguments that a model may write instead of an object; its own format returns them unchanged."""


def parts(text_type: str, *others: Message) -> st.SearchStrategy[list[Message]]:
    """Return a strategy for a text in its provider's shape, among other parts of the provider."""
    text = st.builds(lambda t, more: {"type": text_type, "text": t, **more}, words, maybe)
    rest = st.lists(st.one_of(text, *([st.sampled_from(others)] if others else [])), max_size=2)
    return st.builds(lambda first, more: [first, *more], text, rest)


def rounds(
    draw: st.DrawFn, count_max: int, call: Callable[[str], Message], result: Callable[[str], Message]
) -> tuple[list[Message], list[Message]]:
    """Draw calls with distinct ids, and their results in any order."""
    ids = [f"tc_{number}" for number in range(draw(st.integers(1, count_max)))]
    return [call(i) for i in ids], [result(i) for i in draw(st.permutations(ids))]


_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}


@st.composite
def openai_turn(draw: st.DrawFn) -> list[Message]:
    kind = draw(st.sampled_from(["user", "user", "assistant", "round", "round", "system", "refusal", "function"]))
    more = draw(maybe)
    if kind in ("user", "system"):
        role = kind if kind == "user" else draw(st.sampled_from(["system", "developer"]))
        others = (_IMAGE, {"type": "input_audio", "input_audio": {"data": "AA=="}}, HOLOGRAM)
        content = draw(st.one_of(words, parts("text", *others) if kind == "user" else words))
        return [{"role": role, "content": content, **draw(st.sampled_from([{}, {"name": "ann"}])), **more}]
    if kind == "refusal":
        return [{"role": "assistant", **draw(st.sampled_from([{}, {"content": None}])), "refusal": "no", **more}]
    if kind == "function":
        call = {"name": "read", "arguments": "{}"}
        said = {"role": "assistant", "content": None, "function_call": call}
        return [said, {"role": "function", "name": "read", "content": "x"}]
    if kind == "assistant":
        return [{"role": "assistant", "content": draw(st.one_of(words, parts("text"))), **more}]
    silent = st.sampled_from([{}, {"content": None}, {"content": ""}, {"content": "\n\n"}])
    said = draw(st.one_of(silent, st.builds(lambda c: {"content": c}, words)))
    calls, results = rounds(draw, 3, lambda i: _openai_call(draw, i), lambda i: _openai_result(draw, i))
    return [{"role": "assistant", **said, "tool_calls": calls, **more}, *results]


def _openai_call(draw: st.DrawFn, call_id: str) -> Message:
    name = draw(st.sampled_from(TOOLS))
    if draw(st.integers(0, 4)) == 0:
        return {"id": call_id, "type": "custom", "custom": {"name": name, "input": draw(words)}}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": draw(json_texts)}, **draw(maybe)}


def _openai_result(draw: st.DrawFn, call_id: str) -> Message:
    content = draw(st.one_of(st.just(""), words, parts("text")))
    return {"role": "tool", "tool_call_id": call_id, "content": content, **draw(maybe)}


_OUTPUTS: dict[str, tuple[Message, Message]] = {
    "computer_call": (
        {"action": {"type": "click"}},
        {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}},
    ),
    "shell_call": (
        {"action": {"commands": ["ls"]}},
        {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    ),
    "local_shell_call": ({"action": {"type": "exec", "command": ["ls"]}}, {"output": "a"}),
    "apply_patch_call": ({"operation": {"type": "delete_file", "path": "x"}}, {"status": "completed"}),
}


@st.composite
def responses_turn(draw: st.DrawFn) -> list[Message]:
    kind = draw(st.sampled_from(["user", "user", "assistant", "round", "round", "system", "opaque"]))
    typed = draw(st.sampled_from([{}, {"type": "message"}, {"type": "message", "id": "m", "status": "completed"}]))
    if kind == "user":
        image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
        file = {"type": "input_file", "file_id": "f"}
        return [
            {**typed, "role": "user", "content": draw(st.one_of(words, parts("input_text", image, file, HOLOGRAM)))}
        ]
    if kind == "system":
        return [{**typed, "role": draw(st.sampled_from(["system", "developer"])), "content": draw(words)}]
    if kind == "opaque":
        return [draw(st.sampled_from([{"type": "web_search_call", "id": "w"}, {"type": "item_reference", "id": "z"}]))]
    reasoning = [{"type": "reasoning", "id": "rs", "summary": [], **draw(maybe)}] if draw(st.booleans()) else []
    if kind == "assistant":
        content = st.one_of(words, parts("output_text", {"type": "refusal", "refusal": "no"}, HOLOGRAM))
        return [*reasoning, {**typed, "role": "assistant", "content": draw(content)}]
    kinds = {}

    def call(call_id: str) -> Message:
        kinds[call_id] = draw(st.sampled_from(["function_call", "function_call", "custom_tool_call", *_OUTPUTS]))
        return _responses_call(draw, kinds[call_id], call_id)

    calls, results = rounds(draw, 3, call, lambda i: _responses_result(draw, kinds[i], i))
    return [*reasoning, *calls, *results]


def _responses_call(draw: st.DrawFn, kind: str, call_id: str) -> Message:
    item = {"type": kind, "call_id": call_id, **draw(st.sampled_from([{}, {"id": "fc", "status": "completed"}]))}
    if kind in _OUTPUTS:
        return {**item, **_OUTPUTS[kind][0]}
    name = draw(st.sampled_from(TOOLS))
    if kind == "custom_tool_call":
        return {**item, "name": name, "input": draw(words)}
    return {**item, "name": name, "arguments": draw(json_texts), **draw(maybe)}


def _responses_result(draw: st.DrawFn, kind: str, call_id: str) -> Message:
    item = {"type": f"{kind}_output", "call_id": call_id, **draw(maybe)}
    if kind in _OUTPUTS:
        return {**item, **_OUTPUTS[kind][1]}
    return {**item, "output": draw(st.one_of(st.just(""), words, parts("input_text")))}


_SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
_ANTHROPIC_USER: tuple[Message, ...] = (
    {"type": "image", "source": _SOURCE},
    {"type": "document", "source": {"type": "url", "url": "u"}},
)
_SERVER: list[Message] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]},
]
_THINKING: list[Message] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
]


@st.composite
def anthropic_turn(draw: st.DrawFn) -> list[Message]:
    kind = draw(st.sampled_from(["user", "user", "assistant", "round", "round", "system"]))
    if kind == "system":
        return [{"role": "system", "content": draw(st.one_of(words, parts("text")))}]
    if kind == "user":
        return [{"role": "user", "content": draw(st.one_of(words, parts("text", *_ANTHROPIC_USER, HOLOGRAM)))}]
    said = draw(parts("text", *_SERVER, HOLOGRAM))
    thought = draw(st.lists(st.sampled_from(_THINKING), max_size=2))
    if kind == "assistant":
        return [{"role": "assistant", "content": draw(st.one_of(words, st.just([*thought, *said])))}]
    calls, results = rounds(draw, 3, lambda i: _anthropic_call(draw, i), lambda i: _anthropic_result(draw, i))
    between = [part for call in calls for part in [*draw(st.sampled_from([[], thought, said])), call]]
    after = draw(st.one_of(st.just([]), parts("text", *_ANTHROPIC_USER, HOLOGRAM)))
    return [{"role": "assistant", "content": [*thought, *between]}, {"role": "user", "content": [*results, *after]}]


def _anthropic_call(draw: st.DrawFn, call_id: str) -> Message:
    name = draw(st.sampled_from(TOOLS))
    return {"type": "tool_use", "id": call_id, "name": name, "input": draw(objects), **draw(maybe)}


def _anthropic_result(draw: st.DrawFn, call_id: str) -> Message:
    text = st.builds(lambda t: {"type": "text", "text": t}, words)
    content = st.one_of(st.just(""), words, st.lists(st.one_of(text, st.just(_ANTHROPIC_USER[0])), max_size=2))
    fields: Message = {} if draw(st.integers(0, 3)) == 0 else {"content": draw(content)}
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        **fields,
        **draw(st.sampled_from([{}, {"is_error": True}, {"is_error": False}])),
    }


_SIGNED: Message = {"thoughtSignature": "c2ln"}
_PNG: Message = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
_GEMINI_USER: tuple[Message, ...] = (
    _PNG,
    {"fileData": {"mimeType": "application/pdf", "fileUri": "https://files.example/1"}},
    {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}, "mediaResolution": {"level": "LOW"}},
    {"hologram": {"depth": [1]}},
)
_GEMINI_MODEL: tuple[Message, ...] = (
    {"text": "hm", "thought": True},
    {"text": "", **_SIGNED},
    {"executableCode": {"language": "PYTHON", "code": "1"}, **_SIGNED},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
)


def gemini_parts(*others: Message) -> st.SearchStrategy[list[Message]]:
    """Return a strategy for a text among other parts of the provider."""
    text = st.builds(lambda t, more: {"text": t, **more}, words, st.sampled_from([{}, _SIGNED, {"partMetadata": {}}]))
    rest = st.lists(st.one_of(text, st.sampled_from(others)), max_size=2)
    return st.builds(lambda first, more: [first, *more], text, rest)


@st.composite
def gemini_turn(draw: st.DrawFn) -> list[Message]:
    """Draw a content of the user and one of the model; two of the model in a row would be refused."""
    user = {"role": "user", "parts": draw(gemini_parts(*_GEMINI_USER))}
    if draw(st.integers(0, 2)) == 0:
        return [user, {"role": "model", "parts": draw(gemini_parts(*_GEMINI_MODEL))}]
    named = draw(st.booleans())
    calls, results = rounds(draw, 3, lambda i: _gemini_call(draw, i), lambda i: _gemini_result(draw, i))
    if not named:  # paired by name, in order
        kinds = {call["functionCall"].pop("id"): call["functionCall"]["name"] for call in calls}
        order = sorted(results, key=lambda one: list(kinds).index(one["functionResponse"]["id"]))
        results = [one for one in order if one["functionResponse"].pop("id")]
    names = [call["functionCall"]["name"] for call in calls]
    for number, one in enumerate(results):
        answer = one["functionResponse"]
        answer["name"] = names[int(answer["id"].removeprefix("tc_"))] if named else names[number]
    before, after = draw(st.sampled_from([[], list(_GEMINI_MODEL[:1])])), draw(gemini_parts(*_GEMINI_MODEL))
    more = draw(st.one_of(st.just([]), gemini_parts(*_GEMINI_USER)))
    model = {"role": "model", "parts": [*before, *calls, *draw(st.sampled_from([[], after]))]}
    return [user, model, {"role": "user", "parts": [*results, *more]}]


def _gemini_call(draw: st.DrawFn, call_id: str) -> Message:
    fields: Message = draw(st.sampled_from([{}, {"args": {}}])) or {"args": draw(objects)}
    call = {"id": call_id, "name": draw(st.sampled_from([*TOOLS, "default_api:read.file"])), **fields}
    return {"functionCall": call, **draw(st.sampled_from([{}, _SIGNED]))}


def _gemini_result(draw: st.DrawFn, call_id: str) -> Message:
    shapes = st.sampled_from([{"output": "x"}, {"result": ""}, {"error": "no"}, {}, {"output": {"a": [1, None]}}])
    media = draw(st.sampled_from([{}, {}, {"parts": [_PNG]}, {"scheduling": "SILENT"}]))
    answer = {"id": call_id, "name": "", "response": draw(st.one_of(shapes, objects)), **media}
    return {"functionResponse": answer}


TURNS = {
    "openai": openai_turn(),
    "openai-responses": responses_turn(),
    "anthropic": anthropic_turn(),
    "gemini": gemini_turn(),
}


@st.composite
def conversations(draw: st.DrawFn, form: str) -> list[Message]:
    """Draw messages that begin with the user's, optionally after OpenAI system messages; no call id is used twice."""
    turns = [_renamed(turn, number) for number, turn in enumerate(draw(st.lists(TURNS[form], max_size=6)))]
    prompts = [{"role": "system", "content": "You help."}, {"role": "system", "content": "Be brief."}]
    system = prompts[: draw(st.integers(0, 2))] if form.startswith("openai") else []
    first = {"role": "user", "parts": [{"text": "hi"}]} if form == "gemini" else {"role": "user", "content": "hi"}
    return [*system, first, *(message for turn in turns for message in turn)]


def _renamed(turn: list[Message], number: int) -> list[Message]:
    """Return the turn with call ids that no other turn has."""
    renamed: list[Message] = json.loads(json.dumps(turn).replace('"tc_', f'"tc_{number}_'))
    return renamed


@st.composite
def neutral_blocks(draw: st.DrawFn) -> list[Block]:
    """Draw a message, or a round of calls with texts among them and its results."""
    kind = draw(st.sampled_from([Kind.USER, Kind.ASSISTANT, Kind.SYSTEM, Kind.NOTE, Kind.CALL, Kind.CALL]))
    if kind is Kind.NOTE:
        return [Block(kind, 0, draw(words))]
    if kind is not Kind.CALL:
        return [Block(kind, 0, draw(contents))]
    ids = draw(st.lists(st.sampled_from(["a", "a_4", "call.1", "call/1", "x" * 90, "Ω"]), min_size=1, unique=True))
    blocks = []
    for call_id in ids[:3]:
        if draw(st.booleans()):
            blocks.append(Block(Kind.ASSISTANT, 0, draw(contents)))
        tool = draw(st.sampled_from([*TOOLS, "shell/run it", "ü" * 70]))
        blocks.append(Block(Kind.CALL, 0, call_id=call_id, tool=tool, arguments=draw(arguments)))
    for call_id in draw(st.permutations(ids[:3])):
        content, replaced = (draw(words), True) if draw(st.booleans()) else (draw(contents), False)
        error = draw(st.booleans())
        blocks.append(Block(Kind.RESULT, 0, content, call_id=call_id, is_error=error, replaced=replaced))
    return blocks


@st.composite
def mixed_blocks(draw: st.DrawFn) -> tuple[Block, ...]:
    """Draw a conversation of neutral events and every provider's own messages, as a session may hold them."""
    blocks = [Block(Kind.USER, 0, "hi")]
    for _ in range(draw(st.integers(1, 5))):
        form = draw(st.sampled_from([*TURNS, None, None]))
        if form is None:
            blocks += draw(neutral_blocks())
        else:
            layout = layout_of_messages(form, draw(TURNS[form]))
            blocks += [*layout.system, *layout.blocks]
    return tuple(replace(block, seq=seq) for seq, block in enumerate(blocks, 2))
