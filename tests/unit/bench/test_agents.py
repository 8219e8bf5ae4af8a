"""The agents' benchmark on a session small enough to compute by hand."""

import json
from typing import Any

import pytest

from app.core.render.formats import FORMATS
from bench.agents.driver import Slice, spread
from bench.agents.replay import AgentResults, Background
from bench.agents.rows import Row, rows_table
from bench.agents.steps import NO_CALL, next_call
from bench.agents.tables import lived_table, steps_table, worker_table
from bench.agents.traffic import WRITERS, a_life, body_of
from palimpsest_tools.recordings import neutral

LINE: dict[str, Any] = {
    "id": "one",
    "system": "Be brief.",
    "tools": None,
    "messages": [
        {"role": "user", "content": "Which file has the answer?"},
        {
            "role": "assistant",
            "content": "Two of them.",
            "tool_calls": [
                {"id": "a", "name": "grep", "arguments": {"q": "x"}},
                {"id": "b", "name": "grep", "arguments": '{"q": "y"}'},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "src/a.py"},
        {"role": "tool", "tool_call_id": "b", "content": "src/b.py"},
        {"role": "assistant", "content": "src/a.py, then."},
    ],
}
RECORDING = neutral.recording(LINE, 1)
EXPECTED: dict[str, list[list[Any]]] = {
    "anthropic": [
        [{"role": "user", "content": [{"type": "text", "text": "Which file has the answer?"}]}],
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Two of them."},
                    {"type": "tool_use", "id": "a", "name": "grep", "input": {"q": "x"}},
                    {"type": "tool_use", "id": "b", "name": "grep", "input": {"q": "y"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "src/a.py"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "src/b.py"},
                ],
            },
        ],
    ],
    "openai": [
        [{"role": "user", "content": "Which file has the answer?"}],
        [
            {
                "role": "assistant",
                "content": "Two of them.",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "grep", "arguments": '{"q": "x"}'}},
                    {"id": "b", "type": "function", "function": {"name": "grep", "arguments": '{"q": "y"}'}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "src/a.py"},
            {"role": "tool", "tool_call_id": "b", "content": "src/b.py"},
        ],
    ],
    "openai-responses": [
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Which file has the answer?"}],
            }
        ],
        [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two of them."}]},
            {"type": "function_call", "call_id": "a", "name": "grep", "arguments": '{"q": "x"}'},
            {"type": "function_call", "call_id": "b", "name": "grep", "arguments": '{"q": "y"}'},
            {"type": "function_call_output", "call_id": "a", "output": "src/a.py"},
            {"type": "function_call_output", "call_id": "b", "output": "src/b.py"},
        ],
    ],
}


@pytest.mark.parametrize("form", WRITERS)
def test_an_agent_posts_before_each_call_what_happened_since_the_last(form: str) -> None:
    life = a_life([RECORDING], 0, form)
    assert [[json.loads(text) for text in step.messages] for step in life.steps] == EXPECTED[form]
    assert [step.events for step in life.steps] == [1, 5]
    posted = json.loads(body_of(form, life.steps[1].messages))
    drafts = FORMATS[form].read(posted["messages"])
    assert [draft["type"] for draft in drafts] == ["assistant.message", "tool.call", "tool.call"] + ["tool.result"] * 2


def test_a_short_recording_is_repeated_in_the_same_session_with_new_call_ids() -> None:
    life = a_life([RECORDING], 0, "anthropic", events=7)
    assert len(life.steps) == 4
    again = json.loads(life.steps[3].messages[1])
    assert [part["tool_use_id"] for part in again["content"]] == ["a_1", "b_1"]


def test_an_import_posts_the_first_events_and_no_more() -> None:
    life = a_life([RECORDING], 0, "openai", events=60)
    assert [len(messages) for messages in life.batches(6)] == [4]
    (whole,) = life.batches(10**6)
    assert len(whole) == 2 * len(life.steps)


def test_large_imports_are_cut_into_requests() -> None:
    life = a_life([RECORDING], 0, "openai", events=1_200)
    batches = list(life.batches(1_200))
    assert len(batches) == 3
    assert [text for batch in batches for text in batch] == [text for step in life.steps for text in step.messages]


def test_median_99th_percentile_and_longest() -> None:
    assert spread([n / 1000 for n in range(1, 201)]) == (100.5, 199.0, 200.0)


def a_slice(calls: int, seconds: float, p50: float, opening: float | None = None) -> Slice:
    return Slice(
        calls=calls,
        seconds=seconds,
        context=(p50, 2 * p50, 3 * p50),
        append=(p50, p50, p50),
        step=(2 * p50, 3 * p50, 4 * p50),
        opening=opening,
        openings=0 if opening is None else 1,
        cpu={"api": 0.2},
        client_cpu=0.01,
        lag=None,
        context_kb=10.0,
        posted_kb=1.0,
    )


def test_ratios_are_of_each_round_and_then_their_median() -> None:
    none = (Background(None, 1.0, 0),) * 3
    base = AgentResults(4, "floor", (a_slice(10, 1.0, 1.0), a_slice(10, 0.5, 2.0), a_slice(10, 2.0, 1.0)), none)
    slices = (a_slice(10, 2.0, 3.0), a_slice(10, 2.0, 2.0), a_slice(10, 2.0, 9.0, 50.0))
    ours = AgentResults(4, "ours", slices, tuple(Background(cpu, 1.0, 1_000_000) for cpu in (1.0, 2.0, 6.0)))
    other = AgentResults(4, "other", slices, tuple(Background(cpu, 1.0, 1_000_000) for cpu in (2.0, 2.0, 9.0)))
    rows = [row.strip("| ").split(" | ") for row in lived_table([base, ours]).splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["4", "floor", "10", "1.0"],
        ["4", "ours", "5", "3.0"],
        ["4", "ours / floor", "0.50 ×", "3.00 ×"],
    ]
    rows = [row.strip("| ").split(" | ") for row in steps_table([base, ours]).splitlines()[2:]]
    assert [row[2:5] for row in rows] == [["10", "2.0", "3"], ["5", "6.0", "9"], ["0.50 ×", "3.00 ×", "3.00 ×"]]
    assert worker_table([base, ours, other]).splitlines()[2:] == [
        "| 4 | ours | 3.00 | 2.0 | 1.0 | 3.0 | 3.3% | 50.0 |",
        "| 4 | ours / other |  | 0.67 × | 1.00 × | 0.70 × |  |  |",
        "| 4 | other | 3.00 | 2.0 | 1.0 | 3.0 | 3.3% | 50.0 |",
    ]


def answer(epoch: int, estimate: int, ratio: float | None) -> bytes:
    learned = None if ratio is None else {"ratio": ratio, "margin": 0.1, "samples": 2}
    tokens = {"estimate": estimate, "target": 9_000, "calibration": learned}
    value = {"call_id": f"c{epoch}", "epoch": epoch, "request": {"said": '"epoch":9'}, "tokens": tokens}
    return json.dumps(value, separators=(",", ":")).encode()


def test_a_step_reports_tokens_that_do_not_depend_on_earlier_reports() -> None:
    first = next_call(answer(1, 1_000, None), "one-3.0", NO_CALL)
    assert (first.id, first.cached) == ("c1", 0)
    assert 950 <= first.tokens <= 1_000
    learned = next_call(answer(1, 2_200, 1.1), "another-3.0", first)
    assert abs(learned.tokens - 2 * first.tokens) <= 1
    assert learned.cached == first.tokens
    assert next_call(answer(2, 500, 1.1), "one-3.0", learned).cached == 0
    usage = json.loads(b"{%b}" % learned.outcome("anthropic"))["usage"]
    assert usage["input_tokens"] + usage["cache_read_tokens"] == learned.tokens
    assert json.loads(b"{%b}" % learned.outcome("openai"))["usage"]["input_tokens"] == learned.tokens


def test_a_row_has_medians_and_a_ratio_where_there_is_something_to_compare_with() -> None:
    row = Row("context", ".1f", {"floor": [1.0, 2.0, 9.0], "ours": [5.0]})
    none = Row("a context that opened an epoch", ".0f", {"ours": [7.0]})
    assert rows_table([row, none], ["floor", "ours"]).splitlines()[2:] == [
        "| context | 2.0 | 5.0 | 2.50 × |",
        "| a context that opened an epoch |  | 7 |  |",
    ]
