"""Signs of damage, and the spend on summaries."""

import json

import pytest

from app.core.record.over_time import Damage, by_rule, recalled_seqs, repeated_calls
from app.wings.pages.sessions import BAR, bar_scale, summary_spend


def call(seq: int, tool: str, **arguments: object) -> dict[str, object]:
    """Return a tool call as the API does."""
    return {"seq": seq, "tool": tool, "arguments": arguments}


def test_a_call_repeats_the_latest_equal_one() -> None:
    calls = [
        call(1, "read", path="a", lines=3),
        call(3, "read", path="b"),
        call(5, "read", lines=3, path="a"),
        call(7, "list", path="a", lines=3),
        call(9, "read", path="a", lines=3),
    ]
    assert list(repeated_calls(calls)) == [(1, 5, "read"), (5, 9, "read")]


def test_recalled_originals_are_those_with_content() -> None:
    items = [
        {"seq": 4, "content": "whole"},
        {"seq": 9, "visible": True, "snippet": "part"},
        {"path": "x", "missing": True},
    ]
    assert recalled_seqs(json.dumps({"items": items, "omitted": 0})) == [4]


@pytest.mark.parametrize(
    "content", ["", "no JSON", "[]", "null", '{"items": 3}', '{"items": [3]}', None, [{"type": "text"}]]
)
def test_other_results_recall_nothing(content: object) -> None:
    assert recalled_seqs(content) == []


def test_damage_is_counted_by_rule_and_tool() -> None:
    found = [
        Damage(n, n + 9, tool, 2, "stubbed", rule, "")
        for n, (rule, tool) in enumerate([("fold", "read"), ("economics", "list"), ("fold", "read")])
    ]
    assert by_rule(found) == [("fold", "read", 2), ("economics", "list", 1)]


def test_the_largest_figure_has_the_longest_bar() -> None:
    assert bar_scale([-50.0, 20.0]) * 50 == BAR
    assert bar_scale([]) == BAR


def test_spend_is_that_of_a_runs_author() -> None:
    def summary(id: str, model: str | None, tokens: int) -> dict[str, object]:
        return {"id": id, "model": model, "summarizer": "anthropic" if model else "extractive", "tokens": tokens}

    summaries = [summary("a", "claude", 100), summary("b", "claude", 50), summary("c", None, 30)]
    runs = [
        {"summaries": ["a", "b"], "tokens_read": 4000},
        {"summaries": ["c"], "tokens_read": 700},
        {"summaries": [], "tokens_read": 0},
        {"summaries": ["erased"], "tokens_read": 10},
    ]
    assert summary_spend(runs, summaries) == {
        "claude": {"runs": 1, "read": 4000, "summaries": 2, "written": 150},
        "extractive": {"runs": 1, "read": 700, "summaries": 1, "written": 30},
    }
