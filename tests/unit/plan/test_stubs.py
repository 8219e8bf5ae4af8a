"""Cost of making stubs: each text is counted once, and no known count is repeated."""

from collections import Counter as Tally
from dataclasses import dataclass, field, replace

from app.core.plan.pipeline import Plan, PlanInputs, plan
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START, from_json, to_json
from app.core.plan.state.stubs import erase_quotes
from app.core.policy.groups import Economics, Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import CALL_TOKENS, HEURISTIC, Counter, TextKind
from app.core.tokens.scales import AREA
from tests.unit.builders import COUNTER, Log

RULES = Retention(keep_last=1, per_tool=True, min_tokens=0, identifiers=0.1, dense=1.0, superseded=False)
POLICY = Policy(evict="economic", retention=RULES, economics=Economics(factor=1.0, least_tokens=0, at_risk=1.0))


@dataclass(eq=False)
class Counting:
    """An estimator that records the texts it counts."""

    name: str = "heuristic"
    margin: float = 0.1
    texts: Tally[str] = field(default_factory=Tally)

    def count(self, text: str, kind: TextKind) -> int:
        self.texts[text] += 1
        return HEURISTIC.count(text, kind)


def log_of_writes(rounds: int = 6) -> Log:
    """Return rounds of a call with a long argument and its long result, counted as at an append."""
    log = Log()
    log.user()
    for number in range(rounds):
        arguments = {"path": f"src/part_{number}.py", "text": f"first_line_{number} = 1\n" * 100}
        tokens = COUNTER.call("write", arguments, None, None)
        call = log.call("write", tokens, body={"arguments": arguments})
        content = f"wrote src/part_{number}.py\n" * 100
        log.result(call, COUNTER.result(content), body={"content": content})
    log.assistant(tokens=1)
    log.user(tokens=1)
    return log


def make_plan(log: Log, counter: Counter, *, recall: bool, room: int = 2_000) -> Plan:
    budget = Budget(room, 0, 0, room, room, room, POLICY.low_water)
    return plan(PlanInputs(log.events, log.turn, counter, used_at=0.0, recall=recall), budget, POLICY, START)


def shown_texts(context: Context) -> dict[int, str]:
    return {i.event.seq: str(i.block().content or i.block().arguments) for i in context.items if i.stub}


def test_a_stub_counts_each_of_its_texts_once_and_never_the_event_that_was_counted() -> None:
    log, estimator = log_of_writes(), Counting()
    found = make_plan(log, Counter(estimator, AREA), recall=False)
    assert {stub.reason.split("_")[0] for stub in found.state.stubs} >= {"not", "arguments"}
    logged = {str(event.body.get("content")) for event in log.events if event.body}
    assert not logged & set(estimator.texts)
    assert not any("first_line_1 = 1\n" * 100 in text.replace("\\n", "\n") for text in estimator.texts)
    assert max(estimator.texts[text] for text in estimator.texts if text != "write") == 1


def test_a_stub_counts_what_it_shows_with_and_without_its_hint() -> None:
    log = log_of_writes()
    for recall in (True, False):
        found = make_plan(log, COUNTER, recall=recall)
        texts = shown_texts(found.context)
        assert texts
        assert all((f"seq {seq}" in text) is recall for seq, text in texts.items())
        for item in found.context.items:
            block = item.block()
            if item.stub is None:
                continue
            name = COUNTER.estimator.count("write", TextKind.DATA) + CALL_TOKENS
            call = item.event.call_seq is None
            whole = COUNTER.arguments(block.arguments) + name if call else COUNTER.result(str(block.content))
            assert item.stub.tokens == item.tokens == whole
            assert item.stub.saved == item.event.tokens - whole


def test_names_are_extracted_only_from_evicted_results() -> None:
    log = log_of_writes()
    rules = replace(RULES, keep_last=None)
    found = make_plan(log, COUNTER, recall=True, room=10_000)
    assert found.state.stubs == ()
    nothing = replace(POLICY, retention=rules)
    budget = Budget(2_000, 0, 0, 10**6, 2_000, 2_000, POLICY.low_water)
    plan(PlanInputs(log.events, log.turn, COUNTER, used_at=0.0), budget, nothing, START)
    assert not any("names" in vars(event) for event in log.events)


def log_of_runs(*runs: tuple[str, str]) -> Log:
    """Return a log of commands with their outputs, after which nothing is protected but the last."""
    log = Log()
    log.user()
    for command, says in runs:
        call = log.call("Bash", 20, body={"arguments": {"command": command}})
        log.result(call, COUNTER.result(says), body={"content": says})
    log.assistant(tokens=1)
    log.user(tokens=1)
    return log


NOISE = "=== RUN   TestTide\n" * 300


def test_the_stub_of_a_check_tells_its_outcome() -> None:
    log = log_of_runs(
        ("go test ./...", f"{NOISE}--- FAIL: TestTide (0.1s)\nFAIL\nFAIL\ttide/gauge 0.2s"),
        ("pytest -v", f"{NOISE}\n===== 42 passed in 1.20s ====="),
        ("go test ./... | head -900", f"{NOISE}{NOISE}"),
        ("cat notes.md", NOISE),
        ("ls", "gauge.go"),
    )
    found = make_plan(log, COUNTER, recall=False, room=1_000)
    texts = shown_texts(found.context)
    assert [texts[seq].partition('"first".')[2].partition(" In it")[0] for seq in (3, 5, 7)] == [
        " A check failed: TestTide.]",
        " Its checks passed: 42 passed.]",
        "]",
    ]
    stored = from_json(to_json(found.state))
    assert stored == found.state
    assert erase_quotes(stored, 3).stubs[0].outcome == ""
