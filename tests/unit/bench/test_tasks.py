"""The tasks' benchmark: its intervals, its bills, its file of results and its tables."""

import json
from pathlib import Path

import pytest

from bench.tasks.billing import Prices, Usage, is_too_long, usage_of
from bench.tasks.ledger import AGENT, PROVIDER, Call, Ledger, SettingError, Verdict, billed
from bench.tasks.local import TASKS, next_command
from bench.tasks.report import report
from bench.tasks.runners import Ended, local_agent, trial
from bench.tasks.statistics import mean_interval, paired_difference, percentile, wilson

PRICES = "fresh=3,read=0.3,write=3.75,hour=6,output=15"
SETTING = {"arms": ["none", "ours"], "model": "m", "prices": dict(fresh=3, read=0.3, write=3.75, hour=6, output=15)}


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (0, 0, 0.0, 1.0)],
)
def test_wilsons_interval(successes: int, trials: int, low: float, high: float) -> None:
    """(81, 263) is the example of Newcombe (1998)."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_a_paired_difference() -> None:
    """1 and 7 of 21 pairs differ in the example of Fagerland, Lydersen and Laake (2014)."""
    share, interval = paired_difference(1, 7, 21)
    assert share == pytest.approx(-6 / 21)
    assert interval == pytest.approx((-0.508, -0.013), abs=5e-4)
    assert paired_difference(0, 0, 0) == (0.0, (-1.0, 1.0))


def test_a_means_interval_and_percentiles() -> None:
    values = [float(number) for number in range(1, 101)]
    low, high = mean_interval(values)
    assert 44 < low < 50.5 < high < 57  # the mean's standard error is 2.9
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)
    assert mean_interval([]) == (0.0, 0.0)
    assert [percentile(values, percent) for percent in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile([], 50) == 0.0


def sse(*events: object) -> bytes:
    return (
        b"".join(b"event: e\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


ANTHROPIC = {
    "input_tokens": 5,
    "cache_read_input_tokens": 70,
    "cache_creation_input_tokens": 20,
    "cache_creation": {"ephemeral_5m_input_tokens": 12, "ephemeral_1h_input_tokens": 8},
}
CHAT = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 60}}
RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 9,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
}


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (json.dumps({"usage": ANTHROPIC | {"output_tokens": 9}}).encode(), Usage(5, 70, 12, 8, 9)),
        (
            sse({"message": {"usage": ANTHROPIC | {"output_tokens": 1}}}, {"usage": {"output_tokens": 9}}),
            Usage(5, 70, 12, 8, 9),
        ),
        (json.dumps({"usage": CHAT}).encode(), Usage(40, 60, 0, 0, 9)),
        (sse({"usage": None}, {"usage": CHAT}), Usage(40, 60, 0, 0, 9)),
        (json.dumps({"usage": RESPONSES}).encode(), Usage(10, 60, 30, 0, 9)),
        (sse({"response": {"usage": None}}, {"response": {"usage": RESPONSES}}), Usage(10, 60, 30, 0, 9)),
        (b'{"id": 1}', None),
        (b"not an answer", None),
    ],
)
def test_the_usage_that_an_answer_reports(body: bytes, usage: Usage | None) -> None:
    assert usage_of(body) == usage


def test_a_refusal_for_length() -> None:
    def error(message: str) -> bytes:
        return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()

    assert is_too_long(400, error("prompt is too long: 210000 tokens > 200000 maximum"))
    assert not is_too_long(400, error("messages: at least one message is required"))
    assert not is_too_long(200, error("prompt is too long: 210000 tokens > 200000 maximum"))
    assert not is_too_long(502, b"")


def test_prices() -> None:
    million = Usage(fresh=1_000_000, read=1_000_000, write=1_000_000, hour=1_000_000, output=1_000_000)
    assert Prices.parse(PRICES).of(million) == pytest.approx(28.05)
    for wrong in ("fresh=3", PRICES + ",other=1", PRICES + ",fresh=4", "fresh"):
        with pytest.raises(ValueError):
            Prices.parse(wrong)


def call(side: str, arm: str, task: str, attempt: int = 1, **more: object) -> Call:
    given = {"status": 200, "seconds": 1.0, "usage": Usage(output=100_000)} | more
    return Call(side, arm, task, attempt, **given)  # type: ignore[arg-type]


def test_the_providers_side_is_paid_and_the_agents_where_there_is_none() -> None:
    background = call(PROVIDER, "ours", "a", usage=Usage(fresh=1))
    both = [call(AGENT, "ours", "a"), call(PROVIDER, "ours", "a"), background]
    hosted = [call(AGENT, "rival", "a")]
    assert billed([*both, *hosted]) == [*both[1:], *hosted]


def test_results_survive_an_interruption_and_are_never_mixed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ledger = Ledger.resume(path, SETTING)
    ledger.add(call(PROVIDER, "none", "a"))
    ledger.add(Verdict("none", "a", 1, solved=True, ended="Submitted"))
    ledger.add(call(PROVIDER, "ours", "a"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "call", "arm"')  # killed while it wrote

    again = Ledger.resume(path, SETTING)
    assert (again.calls, again.verdicts) == (ledger.calls, ledger.verdicts)
    assert again.spent() == pytest.approx(3.0)
    assert again.is_done("none", "a", 2) and not again.is_done("ours", "a", 2)
    assert again.attempt("ours", "a") == 2, "the interrupted attempt stays apart"
    again.add(Verdict("ours", "a", 2, solved=False, ended="AuthenticationError", crashed=True))
    assert not again.is_done("ours", "a", 2) and again.is_done("ours", "a", 1)
    assert path.read_bytes().startswith(whole)
    assert Ledger.read(path).verdicts == again.verdicts
    with pytest.raises(SettingError, match=r"another setting: model;"):
        Ledger.resume(path, SETTING | {"model": "other"})


def test_the_tables(tmp_path: Path) -> None:
    """Crashed tasks and interrupted attempts are in no share and in no pair, and their price is stated apart."""
    ledger = Ledger.resume(tmp_path / "results.jsonl", SETTING)
    for task, none, ours in (("a", True, True), ("b", False, True), ("c", False, False)):
        for arm, solved in (("none", none), ("ours", ours)):
            for side in (AGENT, PROVIDER):
                ledger.add(call(side, arm, task, seconds=2.0 if arm == "ours" else 1.0))
            ledger.add(Verdict(arm, task, 1, solved, "Submitted"))
    ledger.add(call(AGENT, "none", "b", status=400, usage=None, too_long=True))
    ledger.add(call(PROVIDER, "ours", "a", usage=Usage(fresh=100_000)))
    ledger.add(call(AGENT, "ours", "d"))
    ledger.add(Verdict("ours", "d", 1, solved=False, ended="NotJudged", crashed=True))
    text = report(ledger)
    assert "| none | 3 | 1 | 6% to 79% | 0 | 1 | 1.000 | 1.000 | 1 | 0 |" in text
    assert "| ours | 3 | 2 | 21% to 94% | 1 | 1 | 2.000 | 2.000 | 0 | 0 |" in text
    assert "| none | 0 | 0 | 0 | 0 | 300,000 | 4.5000 | 1.5000 | 4.5000 |" in text
    assert "| ours | 100,000 | 0 | 0 | 0 | 300,000 | 4.8000 | 1.6000 | 2.4000 |" in text
    assert "| none | ours | 3 | 0 | 1 | -33.3% | -85.6% to +45.6% | -0.1000 | -0.3000 to +0.0000 |" in text
    assert "Spent: USD 10.8000, of which 1.5000 on 1 crashed or interrupted attempts." in text
    assert text.endswith("| ours | d | NotJudged |")


def test_the_data_set_of_local_tasks_is_one_file(tmp_path: Path) -> None:
    """A cache within its folder would be read as more tasks, and each run would do them twice as often."""
    folder = tmp_path / "dataset"
    agent = local_agent("anthropic/m", TASKS, folder)
    assert [one.name for one in folder.iterdir()] == ["test.jsonl"]
    names = [json.loads(line)["instance_id"] for line in (folder / "test.jsonl").read_text().splitlines()]
    assert names == [one.name for one in TASKS]
    assert not Path(agent.variables["HF_HOME"]).is_relative_to(folder)


def test_a_trial_of_harbor() -> None:
    assert trial({"verifier_result": {"rewards": {"reward": 1.0}}}) == Ended("Submitted", solved=True)
    assert trial({"verifier_result": {"rewards": {"reward": 0}}}) == Ended("Submitted")
    late = {"exception_info": {"exception_type": "AgentTimeoutError"}, "verifier_result": {"rewards": {"reward": 1}}}
    assert trial(late) == Ended("AgentTimeoutError", solved=True)
    assert not trial(late).crashed
    assert trial({"exception_info": {"exception_type": "EnvironmentStartError"}}).crashed
    assert trial({}).crashed


def test_the_scripted_model_uses_only_what_it_was_sent() -> None:
    task = next(one for one in TASKS if one.name == "local__limit-4")
    assert next_command(task, []) == "cat NOTES; echo '[step 0]'"
    last = f"[step {len(task.commands) - 2}]"
    assert "LIMIT = 731" in next_command(task, ["The limit = 731 was agreed on.\n[step 0]", last])
    assert "LIMIT = 1/" in next_command(task, ["[cleared]", last])


def test_a_patch_is_judged_by_the_repositorys_test(tmp_path: Path) -> None:
    patch = "--- a/module.py\n+++ b/module.py\n@@ -1,2 +1,2 @@\n def total(a, b):\n-    return a - b\n+    return {}\n"
    assert TASKS[0].judge(patch.format("a + b"), tmp_path / "right")
    assert not TASKS[0].judge(patch.format("a * b"), tmp_path / "wrong")
    assert not TASKS[0].judge("no patch", tmp_path / "none")
