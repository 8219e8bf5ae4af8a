"""The window of a call in a terminal."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from palimpsest._model import decode
from palimpsest.types import CallBlockOut, CallItem, Manifest, PreviewOut, TokensOut

from app.core.policy.policy import parse_policy
from palimpsest_tools.look import context
from palimpsest_tools.look.calls import NumberedCall, RecordedCalls
from palimpsest_tools.look.context import AppendedSince, CallWindow
from palimpsest_tools.look.rules import CallRules, cache_line, rules_of
from palimpsest_tools.look.window import Part, bar, cells_of, legend, window_of

SOURCES = {"tools": 50, "system": 50, "summaries": 0, "history": 300, "current_turn": 90, "ephemeral": 10}


def tokens(**more: Any) -> TokensOut:
    sizes = {"estimate": 500, "target": 800, "limit": 1000, "reserve": 100, "outside": 0, "limit_assumed": False}
    about = {**sizes, "estimator": "tiktoken:o200k_base", "by_source": SOURCES, "calibration": None}
    made: TokensOut = decode(TokensOut, {**about, **more})
    return made


def block(index: int, size: int, **more: Any) -> CallBlockOut:
    about = {"index": index, "from_seq": index, "seq": index, "kind": "user", "source": "history", "mark": "verbatim"}
    content = {"tool": None, "name": None, "text": f"text {index}"}
    made: CallBlockOut = decode(CallBlockOut, {**about, **content, "tokens": size, **more})
    return made


def test_the_parts_of_a_window_add_up_to_it() -> None:
    window = window_of(tokens(), ())
    assert [(part.glyph, part.tokens) for part in window.parts] == [
        *(("t", 50), ("s", 50), ("h", 300), ("c", 90), ("f", 10), (".", 300), ("-", 100), ("r", 100))
    ]
    assert (window.tokens, window.left, window.bound) == (1000, 300, 800)


def test_injected_content_takes_nothing_of_the_target() -> None:
    injected = block(9, 60, source="ephemeral", mark="injected", name="hook")
    window = window_of(tokens(estimate=560, by_source={**SOURCES, "ephemeral": 70}), [injected])
    sizes = {part.glyph: part.tokens for part in window.parts}
    assert (sizes["i"], sizes["f"], sizes["-"], window.left, window.tokens) == (60, 10, 40, 300, 1000)


def test_tokens_outside_the_request_move_the_marks_and_not_the_room() -> None:
    window = window_of(tokens(outside=50, target=750), ())
    assert (window.parts[0].glyph, window.left, window.marks[0].place, window.tokens) == ("o", 250, 800, 1000)


def test_the_lower_of_threshold_and_target_bounds_the_room() -> None:
    window = window_of(tokens(), (), threshold=450)
    assert ([mark.name for mark in window.marks], window.left, window.bound) == (["threshold", "target"], -50, 450)
    assert [mark.name for mark in window_of(tokens(), (), threshold=900).marks] == ["target"]
    assert context.room_left(-50, 450) == "50 tokens over the 450 above which content is left out"


@pytest.mark.parametrize("width", [8, 40, 41, 79, 120])
def test_a_bar_fills_its_width_and_shows_every_part(width: int) -> None:
    parts = [Part(glyph, glyph, size) for glyph, size in zip("abcdefgh", (1, 1, 5000, 3, 900, 77, 1, 2), strict=True)]
    cells = cells_of(parts, width)
    assert (sum(cells), min(cells)) == (width, 1)


def test_a_bar_marks_its_target_and_needs_no_colours() -> None:
    assert bar(window_of(tokens(), (), threshold=600), 40, colours=False) == [
        "tttssshhhhhhhhhhhcccc" + "f" + ".........." + "----rrrr",
        "                        ^ threshold 600",
        "                    target 800 ^",
    ]
    coloured, *_ = bar(window_of(tokens(), ()), 40, colours=True)
    assert "\x1b[" in coloured


def test_a_legend_explains_every_character_of_the_bar() -> None:
    lines = legend(window_of(tokens(), ()))
    assert [line.split()[0] for line in lines[1:-1]] == list("tshcf.-r")
    assert lines[3] == "h     300    30%  history"
    assert lines[-1].split() == ["1,000", "the", "window"]


def call(number: int, view: str = "main", **more: Any) -> NumberedCall:
    about = {"call_id": f"call-{number}", "created_at": "2026-01-01T00:00:00Z", "line": "s@line.1", "view": view}
    settings = {"head": 9, "epoch": 2, "model": "gpt-4o", "estimate": 480, "input_tokens": None}
    made: CallItem = decode(CallItem, {**about, **settings, **more})
    return NumberedCall(number, made, False)


def window(reported: NumberedCall | None = None, **more: Any) -> CallWindow:
    sizes = {"cause": "budget", "tokens": {**tokens().to_dict(), **more.pop("tokens", {})}}
    blocks = more.pop("blocks", (block(1, 50), block(2, 300, kind="result", tool="read")))
    return CallWindow(call(57), decode(Manifest, sizes), blocks, reported, more.pop("rules", None), **more)


NOW = datetime(2026, 1, 1, 0, 3, tzinfo=UTC)


def test_the_room_that_is_left_comes_first_and_then_the_call() -> None:
    lines = context.describe(window(), NOW, 100, colours=False)
    assert lines[:2] == [
        "300 of 800 tokens remain before content must be left out",
        "Call 57 of view main of s@line.1, made 2026-01-01 00:00:00 (3 minutes ago), model gpt-4o, epoch 2 (budget)",
    ]


def test_a_call_that_failed_is_told() -> None:
    about = {"reported_at": "2026-01-01T00:00:01Z", "usage": {}, "latency_ms": None, "error": {"status": 529}}
    failed = replace(window(), one=call(57, outcome={**about, "overflow": False}, overflow=False))
    assert context.describe(failed, NOW, 100, colours=False)[1].endswith("epoch 2 (budget), outcome: error 529")


def test_estimates_and_the_providers_counts_are_labelled() -> None:
    assert context.counts(tokens(), call(57), None) == [
        "Estimate: 500 tokens, by tiktoken:o200k_base",
        "Provider's count: none was reported",
    ]
    learned = tokens(calibration={"ratio": 1.084, "margin": 0.02, "samples": 40}, limit_assumed=True)
    assert context.counts(learned, call(57), call(55, input_tokens=510)) == [
        "Estimate: 500 tokens, by tiktoken:o200k_base times 1.08, as learned from 40 reports",
        "Provider's count: 510 input tokens for call 55, estimated at 480",
        "The window of 1,000 is assumed: no model is named, or its window is not known",
    ]
    own = call(57, input_tokens=510)
    assert context.counts(tokens(), own, own)[1] == "Provider's count: 510 input tokens for this call"


def test_only_counts_of_the_same_view_up_to_the_call_are_shown() -> None:
    calls = (
        call(1, input_tokens=1),
        call(2, input_tokens=2),
        call(1, "title", input_tokens=3),
        call(3),
        call(4, input_tokens=4),
    )
    found = context.last_reported(RecordedCalls("s@line.1", calls), calls[3])
    assert found == calls[1]
    assert context.last_reported(RecordedCalls("s@line.1", calls[3:4]), calls[3]) is None


def test_the_largest_blocks_are_listed_with_their_events() -> None:
    many = (*(block(n, n) for n in range(1, 12)), block(30, 400, from_seq=2, kind="note", mark="summary"))
    lines = context.largest(many, 60)
    assert lines[:4] == [
        "The 10 largest of 12 blocks:",
        "TOKENS  EVENT  BLOCK  SHOWN     TEXT",
        "   400   2-30  note   summary   text 30",
        "    11     11  user   verbatim  text 11",
    ]
    assert len(lines) == 12


def preview(cause: str | None, *changes: dict[str, Any]) -> PreviewOut:
    about = {"cause": cause, "tokens": {**tokens().to_dict(), "estimate": 440}, "diff": {"changes": list(changes)}}
    made: PreviewOut = decode(PreviewOut, about)
    return made


def change(seq: int, size: int, to: str = "stubbed", kind: str = "changed", **more: Any) -> dict[str, Any]:
    return {"from_seq": seq, "to_seq": seq, "change": kind, "from": "verbatim", "to": to, "tokens": size, **more}


def test_what_the_next_call_leaves_out_is_told_with_the_rules() -> None:
    changes = (
        change(3, -20, reducer="economics", reason="not_among_last_2"),
        change(4, -300, "summarized", to_seq=8, reducer="fold", reason="summary s1", summary="s1"),
        change(9, 40, "verbatim", "added"),
    )
    follows = window(appended=AppendedSince(4, 425, False), preview=preview("budget", *changes))
    assert context.describe(follows, NOW, 100, colours=False)[-6:] == [
        "",
        "Provider's cache: last used by this call, 3 minutes ago",
        "Appended since this call: 4 events with 425 tokens",
        "Next call, as things are: 440 of 800 tokens, in a new epoch (budget), and changes:",
        "  -300 tokens  events 4 to 8: replaced by a summary, by fold: summary s1",
        "  -20 tokens  event 3: shown as a stub, by economics: not_among_last_2",
    ]
    many = [change(seq, -seq) for seq in range(1, 9)]
    lines = context.following(window(appended=AppendedSince(1, 9, False), preview=preview("budget", *many)), NOW)
    assert (lines[4], lines[-1], len(lines)) == ("  -8 tokens  event 8: shown as a stub", "  … 3 more", 10)


def test_a_next_call_that_changes_nothing_or_cannot_be_made_is_told() -> None:
    same = context.following(window(appended=AppendedSince(0, 0, False), preview=preview(None)), NOW)
    assert same[2:] == [
        "Appended since this call: no events",
        "Next call, as things are: 440 of 800 tokens, in the same epoch; nothing more is left out",
    ]
    refused = context.following(window(appended=AppendedSince(1000, 9, True), infeasible="it does not fit"), NOW)
    assert refused[2:] == [
        "Appended since this call: more than 1,000 events with 9 tokens",
        "Next call: no context can be made: it does not fit",
    ]
    assert context.following(window(), NOW) == []


def test_a_session_without_calls_has_the_window_of_its_next_call() -> None:
    first: PreviewOut = decode(PreviewOut, {"line": "s@line.1", "tokens": tokens().to_dict()})
    lines = context.describe_preview(first, 80, colours=False)
    assert lines[0].startswith("300 of 800 tokens remain")
    assert lines[1] == "No call of s@line.1 is recorded; the next call would have this window:"
    assert lines[-1].startswith("Estimate: 500 tokens")


def record(**more: Any) -> Manifest:
    about = {"model": "claude-sonnet-4", "format": "anthropic", "tokens": tokens(outside=50, target=750).to_dict()}
    made: Manifest = decode(Manifest, {**about, **more})
    return made


@pytest.mark.parametrize(
    ("policy", "threshold", "seconds"),
    [
        ({}, 750, 300),
        ({"trigger": {"ratio": 0.5}}, 450, 300),
        ({"trigger": {"tokens": 600}, "cache": {"ttl_seconds": 3600}}, 550, 3600),
        ({"trigger": {"reserve": 400}}, 550, 300),
    ],
)
def test_the_threshold_and_the_caches_lifetime_are_those_of_the_policy(
    policy: dict[str, Any], threshold: int, seconds: int
) -> None:
    assert rules_of(parse_policy(policy), record()) == CallRules(threshold, seconds)


def test_a_model_without_a_known_cache_has_that_of_its_formats_provider() -> None:
    assert rules_of(parse_policy({}), record(model=None)).cache_seconds == 300
    assert rules_of(parse_policy({}), record(model=None, format="openai")).cache_seconds is None
    lasting = parse_policy({"cache": {"ttl_seconds": 60}})
    assert rules_of(lasting, record(model=None, format="openai")).cache_seconds == 60


def test_the_caches_end_is_told_as_far_as_it_is_known() -> None:
    made, used = datetime(2026, 1, 1, tzinfo=UTC), "Provider's cache: last used by this call, 3 minutes ago"
    assert cache_line(made, None, NOW) == used
    assert cache_line(made, 300, NOW) == f"{used}; expires in 2 minutes, at 00:05:00, if it lives 300 seconds"
    assert cache_line(made, 60, NOW) == f"{used}; expired 2 minutes ago, at 00:01:00, if it lives 60 seconds"


def test_the_threshold_of_the_policy_bounds_the_window() -> None:
    found = context.window_json(window(rules=CallRules(450, 300)))
    assert (found["left"], found["bound"], found["cache_seconds"]) == (-50, 450, 300)


def test_machines_get_the_largest_blocks_and_the_room() -> None:
    found = context.window_json(window())
    assert (found["left"], found["bound"], found["call"]["number"], found["reported"]) == (300, 800, 57, None)
    assert [one["index"] for one in found["blocks"]] == [2, 1]
    assert (found["appended"], found["next"]) == (None, None)
    follows = context.window_json(
        window(appended=AppendedSince(4, 425, False), preview=preview("budget", change(3, -20)))
    )
    assert follows["appended"] == {"events": 4, "tokens": 425, "more": False}
    assert (follows["next"]["cause"], follows["next"]["diff"]["changes"][0]["tokens"]) == ("budget", -20)
