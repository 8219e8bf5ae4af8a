"""The output of a replay for people and for machines."""

import io
import json

from rich.console import Console

from palimpsest_tools.recordings.recording import AppendEvents, ModelCall, Recording
from palimpsest_tools.replay.bill import Bill
from palimpsest_tools.replay.report import CallReport, Failure, SessionReport, relative_difference
from palimpsest_tools.replay.show import JsonLines, LiveTable, closing_lines, dispositions
from palimpsest_tools.server import Address, RunningServer

SERVER = RunningServer(Address("http://127.0.0.1:1"), "given")
RECORDING = Recording("r", None, None, None, (AppendEvents(()), ModelCall(None), ModelCall(None)))
CALLS = (
    CallReport(1, 900, 1000, 0, {}, 0, Bill(0, 900, 0, 1125.0), Bill(0, 900, 0, 1125.0)),
    CallReport(2, 800, 1000, 1, {"stubbed": 12, "dropped": 3}, 640, Bill(600, 200, 0, 310.0), Bill(900, 540, 0, 765.0)),
)


def report(*failures: Failure) -> SessionReport:
    return SessionReport("r", "replay-1", "anthropic", 1100, CALLS, failures, 20)


def test_machines_get_one_object_a_session_and_a_total() -> None:
    out = io.StringIO()
    with JsonLines(out, SERVER) as show:
        show.start(RECORDING)
        show.call(CALLS[0])
        show.report(report())
        show.report(report(Failure("call 2", "over-target", "too much")))
        show.summary([report(), report(Failure("call 2", "over-target", "too much"))])
    first, second, total = (json.loads(line) for line in out.getvalue().splitlines())
    assert first == {
        "recording": "r",
        "session": "replay-1",
        "format": "anthropic",
        "ok": True,
        "window_tokens": 1100,
        "events": 20,
        "calls": 2,
        "epochs": 2,
        "context_tokens_max": 900,
        "target_tokens": 1000,
        "left_out_at_end": {"stubbed": 12, "dropped": 3},
        "input": {
            "read_tokens": 600,
            "write_tokens": 1100,
            "fresh_tokens": 0,
            "read_share": 0.3529,
            "billed": 1435.0,
            "everything_tokens": 2340,
            "everything_read_share": 0.3846,
            "everything_billed": 1890.0,
            "against_everything": -0.2407,
        },
        "failures": [],
        "notes": [],
    }
    assert (second["ok"], second["failures"][0]["type"]) == (False, "over-target")
    assert (total["total"]["ok"], total["total"]["calls"], total["total"]["failures"]) == (False, 4, 1)
    assert total["total"]["input"]["billed"] == 2870.0


def test_people_get_the_server_a_table_and_a_verdict() -> None:
    out = io.StringIO()
    with LiveTable(Console(file=out, width=160), SERVER, [RECORDING]) as show:
        show.start(RECORDING)
        for call in CALLS:
            show.call(call)
        show.report(report())
        show.summary([report()])
    text = out.getvalue()
    assert "server: http://127.0.0.1:1 (given)" in text
    assert "3 dropped, 12 stubbed" in text
    assert "-24.1%" in text
    assert "every context within its target; all 20 events in the log as they were appended" in text


def test_the_live_table_follows_the_latest_calls() -> None:
    out = io.StringIO()
    with LiveTable(Console(file=out, width=160, force_terminal=True), SERVER, [RECORDING]) as show:
        show.start(RECORDING)
        for call in CALLS:
            show.call(call)
    assert "800" in out.getvalue()
    assert "2/2" in out.getvalue()


def test_failures_are_named_up_to_a_bound() -> None:
    failures = tuple(Failure(f"call {n}", "context-infeasible", "too small") for n in range(25))
    lines = closing_lines([report(*failures)])
    assert lines[0] == "failed: r: call 0: context-infeasible: too small"
    assert lines[-1] == "... and 5 more failures"


def test_small_things() -> None:
    assert dispositions({}) == "-"
    assert relative_difference(Bill(), Bill()) is None
