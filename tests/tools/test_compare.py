"""A comparison of two policies over one recording, against a stub of the server."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console

from palimpsest_tools.recordings.recording import MalformedRecording
from palimpsest_tools.replay.bill import Bill
from palimpsest_tools.replay.compare import Comparison, Pair, compare_session, difference_json, in_tokens_of, pairs
from palimpsest_tools.replay.compare_show import CompareJson, CompareTable
from palimpsest_tools.replay.options import NamedPolicy, Options, named_policy
from palimpsest_tools.replay.report import CallReport, Failure, SessionReport
from tests.tools.test_run import RECORDING, Wire, wired
from tests.tools.test_show import SERVER

BILL = Bill(600, 200, 0, 310.0)


def call(number: int, epoch: int, billed: float = 310.0) -> CallReport:
    bill = Bill(600, 200, 0, billed)
    return CallReport(number, 900 + number, 1_000, epoch, {"stubbed": epoch} if epoch else {}, 9 * epoch, bill, BILL)


def report(name: str, *calls: CallReport, failures: tuple[Failure, ...] = ()) -> SessionReport:
    return SessionReport("r", f"replay-1.{name}", "openai", 1_100, calls, failures, 20)


A = report("a", *(call(number, number // 3) for number in range(1, 8)))
B = report("b", *(call(number, number // 5, 155.0) for number in range(1, 8) if number != 4))


async def test_each_policy_gets_a_session_of_its_own_and_the_same_events() -> None:
    given: dict[str, Any] = {}

    def put(request: httpx2.Request) -> httpx2.Response:
        if request.method == "PUT":
            given[request.url.path.split("/")[3]] = json.loads(request.content)
        return wire(request)

    wire, seen = Wire(), []
    policies = (NamedPolicy("default", "default"), NamedPolicy("mine.json", {"evict": "on_pressure"}))
    async with wired(put) as client:
        made = await compare_session(
            client, RECORDING, "s", Options(max_tokens=500), policies, lambda one, side: seen.append((side, one))
        )
    named = {"metadata": {"recording": "r"}}
    assert given == {"s.a": {"policy": "default"} | named, "s.b": {"policy": {"evict": "on_pressure"}} | named}
    assert wire.logs["s.a"] == wire.logs["s.b"]
    assert [body["max_tokens"] for body in wire.asked] == [500] * 4
    assert sorted((side, one.number) for side, one in seen) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert (made.a.session, made.b.session, made.failures) == ("s.a", "s.b", False)


def test_calls_are_compared_by_their_number() -> None:
    rows = Comparison(A, B).pairs
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert (rows[3].b, rows[3].difference) == (None, None)
    assert (rows[4].a, rows[4].b, rows[4].difference) == (A.calls[4], B.calls[3], -155.0)
    assert pairs((), B.calls[:1]) == (Pair(1, None, B.calls[0]),)


def test_counts_of_another_estimator_are_converted_to_the_firsts_tokens() -> None:
    a = [replace(call(n, 0), estimator="exact", chars=4_000, estimate=1_000) for n in (1, 2)]
    b = [replace(call(n, 0), estimator="rough", chars=2_000, estimate=400) for n in (1, 2, 3)]
    scaled = in_tokens_of(a, b)
    assert [one.estimate for one in scaled] == [500] * 3  # half the text, so half the tokens
    assert [(one.bill.read_tokens, one.bill.billed) for one in scaled] == [(750, 387.5)] * 3
    same = [replace(one, estimator="exact") for one in b]
    assert in_tokens_of(a, same) == tuple(same)


def test_the_turning_points_are_where_either_opened_an_epoch() -> None:
    assert [row.number for row in Comparison(A, B).turning_points] == [1, 3, 5, 6, 7]
    assert Comparison(report("a"), report("b")).turning_points == ()


def test_the_difference_is_b_less_a() -> None:
    assert difference_json(Bill(0, 0, 100, 100.0), Bill(60, 0, 20, 26.0)) == {
        "tokens": -20,
        "billed": -74.0,
        "ratio": -0.74,
    }
    assert difference_json(Bill(), Bill())["ratio"] is None


def test_machines_get_both_reports_every_call_and_the_totals() -> None:
    out = io.StringIO()
    failed = Comparison(A, report("b", *B.calls, failures=(Failure("call 4", "context-infeasible", "too small"),)))
    with CompareJson(out, SERVER, ("default", "clip")) as show:
        show.start(RECORDING)
        show.call(A.calls[0], 0)
        for one in (Comparison(A, B), failed):
            show.report(one)
        show.summary([Comparison(A, B), failed])
    first, second, total = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["policies"] == {"a": "default", "b": "clip"}
    assert (first["a"], first["b"]) == (A.as_json(), B.as_json())
    assert first["calls"][3] == {
        "number": 4,
        "a": {
            "estimate": 904,
            "target": 1_000,
            "epoch": 1,
            "left_out": {"stubbed": 1},
            "saved_tokens": 9,
            "read_tokens": 600,
            "write_tokens": 200,
            "fresh_tokens": 0,
            "billed": 310.0,
        },
        "b": None,
        "difference": None,
    }
    assert first["difference"] == {"tokens": -800, "billed": 6 * 155.0 - 7 * 310.0, "ratio": -0.5714}
    assert (first["ok"], second["ok"], total["total"]["ok"]) == (True, False, False)
    assert total["total"]["calls"] == {"a": 14, "b": 12}
    assert total["total"]["difference"]["billed"] == 2 * first["difference"]["billed"]


def test_people_get_both_sides_and_the_totals() -> None:
    out = io.StringIO()
    with CompareTable(Console(file=out, width=160), SERVER, [RECORDING], ("default", "mine.json")) as show:
        show.start(RECORDING)
        for side, one in enumerate((A, B)):
            for made in one.calls:
                show.call(made, side)
        show.report(Comparison(A, B))
        show.summary([Comparison(A, B), Comparison(B, A)])
    text = out.getvalue()
    assert "A: default\nB: mine.json\n" in text
    assert "-155" in text
    assert "-57.1%" in text
    assert "+133.3%" in text
    assert "+0.0%" in text  # of the total
    assert "B: every context within its target; all 40 events" in text


def test_the_live_table_shows_the_latest_calls_of_both() -> None:
    out = io.StringIO()
    with CompareTable(Console(file=out, width=160, force_terminal=True), SERVER, [RECORDING], ("a", "b")) as show:
        show.start(RECORDING)
        show.call(A.calls[0], 0)
        show.call(B.calls[0], 1)
    assert "901" in out.getvalue()
    assert "2/4" in out.getvalue()


def test_a_policy_is_a_name_or_a_file(tmp_path: Path) -> None:
    assert named_policy("clip@1") == NamedPolicy("clip@1", "clip@1")
    file = tmp_path / "mine.json"
    file.write_text('{"evict": "on_pressure"}', encoding="utf-8")
    assert named_policy(str(file)) == NamedPolicy(str(file), {"evict": "on_pressure"})
    for text in ("[]", "{", "\x00"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(MalformedRecording):
            named_policy(str(file))
    with pytest.raises(OSError, match="missing"):
        named_policy(str(tmp_path / "missing.json"))
