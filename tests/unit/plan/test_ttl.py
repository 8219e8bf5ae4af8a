"""Pruning on a cold cache (rows S0.18 to S0.22 of docs/conformance.md): its conditions, the events, and their stubs."""

import json
from typing import Any

import pytest

from app.core.log.events import EventType, Json
from app.core.plan.pipeline import Plan
from app.core.plan.reducers.ttl import limits_of, prune_content
from app.core.plan.state.wording import TRUNCATED, limited
from app.core.policy.groups import Trigger, TtlPruning
from app.core.policy.policy import Policy
from tests.unit.builders import Log, simple_retention
from tests.unit.plan.test_economics import make_plan
from tests.unit.plan.test_expiry import dispositions_of

RULES = TtlPruning(ttl_seconds=300)


def pruning(**rules: Any) -> Policy:
    return Policy(
        evict="on_pressure",
        trigger=Trigger(),
        retention=simple_retention(),
        ttl_pruning=TtlPruning(**{"ttl_seconds": 300, **rules}),
    )


def talk(turns: int) -> tuple[Log, list[int]]:
    """Return turns with a call each, and the results' seqs."""
    log, results = Log(), []
    for turn in range(turns):
        log.user()
        call = log.call(tokens=700, body={"arguments": {"path": f"{turn}.py", "text": "word " * 300}})
        results.append(log.result(call, 700, body={"content": f"turn {turn}: " + "word " * 500}))
    return log, results


def content_of(found: Plan, seq: int) -> Any:
    return next(i.block().content for i in found.context.items if i.event.seq == seq)


@pytest.mark.parametrize(
    ("rules", "now", "used_at", "turns", "expected"),
    [
        ({"ttl_seconds": None}, 999.0, 0.0, 20, "disabled"),
        ({}, 999.0, None, 20, "armed"),
        ({}, 289.0, 0.0, 20, "fresh"),
        ({}, 290.0, 0.0, 0, "empty"),
        ({"keep_recent_turns": 20}, 290.0, 0.0, 20, "no_effect"),
        ({}, 290.0, 0.0, 11, "pruned"),
        ({"keep_recent_intact_turns": 0}, 290.0, 0.0, 10, "pruned_light"),
    ],
)
def test_s0_18_statuses(rules: Json, now: float, used_at: float | None, turns: int, expected: str) -> None:
    log, _ = talk(turns)
    if expected == "pruned_light":
        log.result(log.call("web_search"), 700, body={"content": "word " * 500})
    assert make_plan(log, pruning(**rules), now=now, used_at=used_at).pruning == expected


def test_s0_18_nothing_until_the_time_is_up_less_its_buffer() -> None:
    log, _ = talk(12)
    assert make_plan(log, pruning(), now=289.0).cause is None
    assert make_plan(log, pruning(), now=290.0).cause == "ttl"
    assert make_plan(log, pruning(), now=290.0, used_at=None).cause is None
    assert make_plan(log, pruning(ttl_seconds=None), now=9_999.0).cause is None


def test_s0_18_recent_turns_and_what_is_pruned_once_stay_so() -> None:
    log, results = talk(13)
    found = make_plan(log, pruning(), now=290.0)
    disposition = dispositions_of(log, found)
    assert [disposition[seq] for seq in results] == ["replaced"] * 3 + ["verbatim"] * 10
    assert make_plan(log, pruning(), found.state, now=290.0).cause is None


def test_s0_19_results_keep_their_pair_and_say_they_are_cut() -> None:
    log, results = talk(11)
    found = make_plan(log, pruning(), now=290.0)
    value = json.loads(content_of(found, results[0]))
    assert (value["tool"], value["truncated"], value["recall_seq"]) == ("read", True, results[0])
    assert value["result"].startswith("turn 0: ")
    assert value["result"].endswith(TRUNCATED)
    call = next(i for i in found.context.items if i.event.seq == results[0] - 1)
    arguments: Json = call.block().arguments
    assert arguments["text"].endswith(TRUNCATED)
    assert (arguments["truncated"], arguments["recall_seq"]) == (True, call.event.seq)


def test_s0_19_what_was_found_keeps_its_addresses() -> None:
    log = Log()
    log.user()
    items = [{"url": f"https://example.org/{n}", "title": f"t{n}", "text": "word " * 300, "rank": n} for n in range(3)]
    seq = log.result(log.call("web_search"), 2_000, body={"content": json.dumps({"hits": items})})
    for _ in range(10):
        log.user()
    value = json.loads(content_of(make_plan(log, pruning(), now=290.0), seq))
    assert [set(item) for item in value["items"]] == [{"url", "title", "text"}] * 3
    assert len(value["items"][0]["text"]) == RULES.result_chars + len(TRUNCATED)


@pytest.mark.parametrize(
    "odd", ['{"a": NaN}', "[" * 500 + "]" * 500, "[" * 50_000, '{"a": "\\ud800", "b": [1]}', "[1e999]"]
)
def test_text_that_only_looks_like_json_is_shortened(odd: str) -> None:
    log = Log()
    log.user()
    seq = log.result(log.call(), 2_000, body={"content": odd})
    for _ in range(10):
        log.user()
    text = content_of(make_plan(log, pruning(), now=290.0), seq)
    assert json.loads(text)["recall_seq"] == seq
    assert text.encode()


def test_s0_19_files_by_path_and_other_texts_by_their_beginning() -> None:
    log = Log()
    log.user()
    file = log.assistant(900, body={"content": "First line\n" + "x" * 3_000, "path": "fi:a.csv", "mime": "text/csv"})
    text = log.assistant(2_000, body={"content": "y" * 5_000, "path": "so:b"})
    without_path = log.assistant(2_000, body={"content": "z" * 5_000})
    for _ in range(10):
        log.user()
    found = make_plan(log, pruning(), now=290.0)
    assert content_of(found, file).startswith(
        "[TRUNCATED FILE] path=fi:a.csv mime=text/csv size=3011 summary=First line"
    )
    assert content_of(found, text).startswith("[TRUNCATED] " + "y" * 4_000 + "...")
    assert content_of(found, without_path) == "z" * 5_000
    assert prune_content(log.events[0], RULES) is None


def test_s0_20_limits() -> None:
    value = {
        "text": "a" * 1_500,
        "ref": "ref:" + "b" * 2_000,
        "list": list(range(60)),
        "dict": {str(n): n for n in range(100)},
    }
    cut = limited(value, limits_of(RULES, 1_000))
    assert cut["text"] == "a" * 1_000 + TRUNCATED
    assert cut["ref"] == value["ref"]
    assert (len(cut["list"]), cut["list"][-1]) == (51, "... (10 more)")
    assert (len(cut["dict"]), cut["dict"]["..."]) == (81, "(20 more)")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("base64", "QUJD" * 1_000, True),
        ("base64", "QUJD" * 1_001, False),
        ("url", "data:image/png;base64," + "QUJD" * 500, True),
        ("url", "data:image/png;base64," + "QUJD" * 1_000, False),
        ("data", "no base64, but a text. " * 100, False),
        ("data", ["QUJD" * 300], True),
        ("text", "QUJD" * 300, False),
    ],
)
def test_s0_20_base64_stays_whole_or_goes_whole(name: str, value: Any, kept: bool) -> None:
    cut = limited({name: value}, limits_of(RULES, 1_000))[name]
    assert (cut == value) == kept
    assert kept or cut.endswith(TRUNCATED)
    assert kept or "QUJD" not in cut or name == "text"


def test_s0_21_recent_turns_lose_what_is_bulky_and_intact_ones_nothing() -> None:
    log = Log()
    image = {"type": "image", "data": "A" * 5_000, "mime": "image/png"}
    seen, found_seqs, read = [], [], []
    for _ in range(5):
        log.user()
        found_seqs.append(log.result(log.call("web_search"), 900, body={"content": "word " * 600}))
        read.append(log.result(log.call("read"), 900, body={"content": "word " * 600}))
        seen.append(log.assistant(1_500, body={"content": [{"type": "text", "text": "see"}, image]}))
    found = make_plan(log, pruning(), now=290.0)
    disposition = dispositions_of(log, found)
    assert [disposition[seq] for seq in found_seqs] == ["replaced"] * 3 + ["verbatim"] * 2
    assert {disposition[seq] for seq in read} == {"verbatim"}
    assert [disposition[seq] for seq in seen] == ["replaced"] * 3 + ["verbatim"] * 2
    assert "see" in content_of(found, seen[0])


def test_s0_21_more_images_stay_only_as_far_as_there_is_room() -> None:
    log = Log()
    for _ in range(4):
        log.user()
        log.assistant(9_000, body={"content": [{"type": "image", "data": "A" * 6_000}]})
    found = make_plan(log, pruning(keep_recent_intact_turns=0, image_chars=7_000), now=290.0)
    disposition = dispositions_of(log, found)
    assert [disposition[event.seq] for event in log.events if event.type is EventType.ASSISTANT_MESSAGE] == [
        "replaced",
        "replaced",
        "replaced",
        "verbatim",
    ]


def test_s0_22_the_model_is_told_once() -> None:
    log, _ = talk(12)
    found = make_plan(log, pruning(), now=290.0)
    assert found.notice is not None
    assert found.notice.startswith("[SYSTEM MESSAGE] Context was pruned because the session TTL (300s) was exceeded")
    assert found.context.by_source["ephemeral"] > 12
    assert make_plan(log, pruning(), found.state, now=291.0, used_at=290.0).notice is None
