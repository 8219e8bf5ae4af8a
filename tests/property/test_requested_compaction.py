"""Requests for a compaction within a call, and their removal from its body."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.wire.bodies import parse
from app.core.wire.calls import BETA, RequestedCompaction, split_request

FORMS = st.sampled_from(["anthropic", "openai-responses", "openai", "gemini"])
OTHER = {"type": "clear_tool_uses_20250919", "keep": 3}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
triggers = values | st.fixed_dictionaries({"type": st.just("input_tokens"), "value": values})
entries = st.fixed_dictionaries(
    {"type": st.sampled_from(["compaction", "compact_20260112", "other"])},
    optional={"compact_threshold": values, "trigger": triggers, "pause_after_compaction": values},
)
fields = values | st.lists(entries | values, max_size=3)
fields = fields | st.fixed_dictionaries({"edits": fields}, optional={"more": values})
blocks = values | st.fixed_dictionaries({"type": st.just("compaction"), "content": values})
lists = values | st.lists(blocks | st.fixed_dictionaries({"content": st.lists(blocks, max_size=2)}), max_size=3)


@given(FORMS, fields, lists, st.lists(st.sampled_from([BETA, "other"]), max_size=3))
def test_any_field_is_removed_or_left_as_it_is(form: str, field: Any, messages: Any, betas: list[str]) -> None:
    call = {"model": "m", "input": messages, "messages": messages, "anthropic_beta": betas, "context_management": field}
    body = parse(json.dumps(call, indent=1).encode())
    rest, request = split_request(form, body)
    if request is None:
        assert rest is body
        return
    assert rest.value == json.loads(rest.text)
    assert split_request(form, rest) == (rest, None)
    own = {"context_management", "anthropic_beta"} if form == "anthropic" else {"context_management"}
    assert {name: rest.raw(name) for name in call.keys() - own} == {name: body.raw(name) for name in call.keys() - own}
    if form == "anthropic":
        assert rest.value.get("anthropic_beta", []) == [one for one in betas if one != BETA]


@pytest.mark.parametrize(
    ("form", "field", "request_", "rest"),
    [
        ("openai-responses", [{"type": "compaction"}], RequestedCompaction(None), None),
        ("openai-responses", [{"type": "compaction", "compact_threshold": 9}], RequestedCompaction(9), None),
        ("openai-responses", [{"type": "compaction"}, OTHER], RequestedCompaction(None), [OTHER]),
        ("anthropic", {"edits": [{"type": "compact_20260112"}]}, RequestedCompaction(150_000), None),
        (
            "anthropic",
            {
                "edits": [
                    OTHER,
                    {
                        "type": "compact_20260112",
                        "trigger": {"type": "input_tokens", "value": 50_000},
                        "pause_after_compaction": True,
                        "instructions": None,
                    },
                ]
            },
            RequestedCompaction(50_000, pauses=True),
            {"edits": [OTHER]},
        ),
    ],
)
def test_valid_requests_are_split_off(form: str, field: Any, request_: RequestedCompaction, rest: Any) -> None:
    body, request = split_request(form, parse(json.dumps({"context_management": field}).encode()))
    assert request == request_
    assert body.value.get("context_management") == rest
