"""Short answers keep their questions: the part of a text that asks, shown next to a fold."""

import pytest

from app.core.log.event import content_text
from app.core.memory.cover import Summary
from app.core.memory.digest import digest_of
from app.core.memory.digest.answers import answered_question, asking_part, user_lines
from app.core.memory.digest.record import Digest
from app.core.plan.pipeline import Plan, plan
from app.core.plan.reducers.questions import BEGINNING
from app.core.plan.state.frontier import START
from app.core.plan.update import PlanInputs
from app.core.policy.policy import PRESETS, Policy
from app.core.record.evictions import dispositions, evictions
from app.core.tokens.budget import Budget
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract

OPTIONS = "I see these ways:\n\n1. Keep the old parser\n2. Write a new lexer\n\n"
ASKS = "The tests pass now. Shall I push the branch?"


@pytest.mark.parametrize(
    ("answer", "text", "question"),
    [
        ("yes", ASKS, "The tests pass now. Shall I push the branch?"),
        ("let's try 2", OPTIONS, "2: Write a new lexer."),
        (
            "2",
            f"{OPTIONS}Which one do you prefer for the new grammar?",
            "I see these ways: Which one do you prefer for the new grammar? 2: Write a new lexer.",
        ),
        (
            "yes, the second",
            f"{OPTIONS}Which one do you prefer for it?",
            "I see these ways: Which one do you prefer for it? 2: W",
        ),
        (
            "The latter please, it is older",
            f"{OPTIONS}Which do you prefer?",
            "I see these ways: Which do you prefer? 2: W",
        ),
        (
            "the third",
            f"{OPTIONS}Which one do you prefer for the new grammar?",
            "I see these ways: 1: Keep the old parser; 2: ",
        ),
        (
            "the second test fails",
            f"{OPTIONS}Which do you prefer for it?",
            "I see these ways: 1: Keep the old parser; 2: ",
        ),
        (
            "do option 2",
            f"Option 2: A new lexer\n\nSteps:\n1. Read\n2. Wait\n\n{ASKS}",
            "Shall I push the branch? 2: A new lexer.",
        ),
        ("yes", "The tests pass now.", ""),
        ("why?", "Done.", ""),
        ("No: " + "explain it all to me again " * 4, ASKS, "The tests pass now. Shall I push the branch?"),
        ("Please: " + "explain it all to me again " * 4, ASKS, ""),
        ("Does the lexer handle all of the tabs?", ASKS, ""),
    ],
)
def test_a_short_answer_is_quoted_with_its_question(answer: str, text: str, question: str) -> None:
    found = answered_question(answer, text)
    assert found.startswith(question) and bool(found) == bool(question)


def test_a_question_about_an_option_is_a_line_with_its_words() -> None:
    log = Log()
    log.assistant(
        body={"content": "### Option 1: Rails\n1. Draw\n2. Print\n\n### Option 2: A tree\n\nShall I draw it?"}
    )
    log.user(body={"content": "can you draw three of them in the style of option 2 first?"})
    log.assistant(body={"content": "1. Draw\n2. Print\n\nDone."})
    log.user(body={"content": "can you draw five of them in the style of option 2 now?"})
    assert [question for _, _, question in user_lines(log.events)] == ["2: A tree", ""]


def test_the_part_that_asks_is_verbatim_and_has_the_options_that_are_named() -> None:
    assert asking_part("yes", ASKS) == ASKS
    assert asking_part("yes", "Done.") == ""
    long = f"{OPTIONS}{'They differ in many ways. ' * 60}\n\nWhich one do you prefer for the new grammar?"
    assert asking_part("2", long) == "2. Write a new lexer\nWhich one do you prefer for the new grammar?"
    assert asking_part("yes", "word " * 300 + "- is that what you want?").endswith("word - is that what you want?")


def conversation(question: str, answer: str = "yes", tokens: int = 30) -> tuple[Log, int, int]:
    """Return a log with a question and its answer, and their seqs; no other text in it asks."""
    log = Log()
    log.user()
    log.assistant(tokens=500)
    asking = log.assistant(tokens=tokens, body={"content": question})
    answering = log.user(body={"content": answer})
    log.assistant(tokens=300)
    log.user()
    return log, asking, answering


def plan_with_fold(
    log: Log, to_seq: int, target: int = 700, policy: Policy = PRESETS["default"], begun: Plan | None = None
) -> Plan:
    """Return the plan with a summary of all events up to `to_seq`."""
    state = START if begun is None else begun.state
    ends = {to_seq} if begun is None else {to_seq, begun.state.folded_to}
    tree = [Summary(f"s{n}", 1, n, 0, 20, "what was said", sum(e.tokens for e in log.events[:n]), n) for n in ends]
    read = PlanInputs(log.events, log.turn, COUNTER, tree=(tree[-1],), folded=tuple(tree))
    return plan(read, Budget(target, 0, 0, target, int(target * 0.5), low_water=0.5), policy, state)


def shown_seqs(result: Plan) -> list[int]:
    return [item.event.seq for item in result.context.items]


def test_the_question_of_a_shown_answer_stays_next_to_the_fold() -> None:
    log, asking, answering = conversation(ASKS)
    result = plan_with_fold(log, asking)
    assert shown_seqs(result) == [asking, answering, answering + 1, answering + 2]
    assert dispositions(log.events, result.context, result.state) == {
        1: "summarized",
        2: "summarized",
        **dict.fromkeys(range(asking, len(log.events) + 1), "verbatim"),
    }
    assert [(row.from_seq, row.to_seq) for row in evictions(result.state, result.context)] == [(1, 2)]


@pytest.mark.parametrize(
    ("question", "answer", "target", "preset"),
    [
        ("The tests pass now.", "yes", 700, "default"),
        (ASKS, "Forget that, and look at the lexer's tests instead. " * 3, 700, "default"),
        (ASKS, "yes", 700, "threshold"),
        (ASKS, "yes", 460, "default"),
    ],
    ids=["asks nothing", "no short answer", "another preset", "no room"],
)
def test_other_questions_are_summarized(question: str, answer: str, target: int, preset: str) -> None:
    log, asking, answering = conversation(question, answer)
    result = plan_with_fold(log, asking, target, PRESETS[preset])
    assert asking not in shown_seqs(result) and answering in shown_seqs(result)
    assert dispositions(log.events, result.context, result.state)[asking] == "summarized"


def test_of_a_long_message_the_asking_part_stays() -> None:
    text = f"{'They differ in many ways. ' * 90}\n\n{ASKS}"
    log, asking, _ = conversation(text, tokens=500)
    result = plan_with_fold(log, asking)
    item = result.context.item(asking)
    assert item is not None
    words = f"{BEGINNING}\n{ASKS}"
    assert content_text(item.block().content) == words and item.tokens == COUNTER.message(words)
    rows = [(row.from_seq, row.to_seq, row.disposition, row.reducer) for row in evictions(result.state, result.context)]
    assert rows == [(1, 2, "summarized", "fold"), (asking, asking, "replaced", "questions")]
    again = plan_with_fold(log, asking, begun=result)
    assert again.state == result.state and again.cause is None


def test_the_question_is_evicted_with_its_answer() -> None:
    log, asking, answering = conversation(ASKS)
    first = plan_with_fold(log, asking)
    log.assistant(tokens=500)
    log.user()
    later = plan_with_fold(log, answering + 1, begun=first)
    assert not {asking, answering} & {*shown_seqs(later)}
    words = dispositions(log.events, later.context, later.state)
    assert words[asking] == words[answering] == "summarized"


def test_a_question_is_told_with_the_beginning_of_the_report_that_answered_it_if_there_is_room() -> None:
    log = Log()
    log.user(body={"content": "Draw the estuary as a map of its tides."})
    log.result(log.call("Read", body={"arguments": {"path": "estuary.py"}}), body={"content": "tides"})
    log.assistant(body={"content": "Drawn."})
    log.user(body={"content": "does the map show the ebb?"})
    log.assistant(body={"content": "Let me look at the map."})
    log.assistant(body={"content": "No. The ebb is drawn by `harbour.py` alone.\n\nIt could be moved."})
    for number in range(3):
        log.user(body={"content": f"Print harbour {number} with its gauge."})
        log.assistant(body={"content": f"Printed harbour {number} with all of its gauges."})
    answered = '- does the map show the ebb? (answered: "No. The ebb is drawn by `harbour.py` alone.")\n'
    text = extract(log.events, "", digest_of(log.events), 400, COUNTER)
    assert answered in text and text.count("does the map show the ebb?") == 1
    merged = extract([], text, Digest(), 400, COUNTER)
    assert answered in merged and merged.count("does the map show the ebb?") == 1
    short = extract(log.events, "", digest_of(log.events), 120, COUNTER)
    assert "- does the map show the ebb?\n" in short
    assert "- does the map show the ebb?\n" in extract([], text, Digest(), 90, COUNTER)


def test_a_request_is_told_with_what_was_reported_done_if_there_is_room() -> None:
    log = Log()
    log.user(body={"content": "Draw the estuary as a map of its tides."})
    log.result(log.call("Read", body={"arguments": {"path": "estuary.py"}}), body={"content": "tides"})
    log.assistant(body={"content": "Good, the map has tides."})
    log.user(body={"content": "Print the harbours under the map."})
    log.assistant(body={"content": "I moved the harbours below the map. They are printed in order."})
    for number in range(3):
        log.user(body={"content": f"Print gauge {number} of the estuary."})
        log.assistant(body={"content": f"The gauge has the number {number}."})
    reported = '- Print the harbours under the map. (then reported: "I moved the harbours below the map.")\n'
    text = extract(log.events, "", digest_of(log.events), 400, COUNTER)
    assert reported in text and text.count("I moved the harbours") == 1
    assert "Good, the map has tides" not in text
    merged = extract([], text, Digest(), 400, COUNTER)
    assert reported in merged and merged.count("Print the harbours") == 1
    assert "- Print the harbours under the map.\n" in extract([], text, Digest(), 110, COUNTER)


@pytest.mark.parametrize(("command", "stands"), [("git reset --hard", False), ("git status", True)])
def test_a_request_stands_without_a_report_on_work_that_was_thrown_away(command: str, stands: bool) -> None:
    log = Log()
    log.user(body={"content": "Draw the estuary as a map of its tides."})
    log.result(log.call("Read", body={"arguments": {"path": "estuary.py"}}), body={"content": "tides"})
    log.user(body={"content": "Print the harbours under the map."})
    log.assistant(body={"content": "I moved the harbours below the map."})
    log.user(body={"content": "Start again with the tree."})
    log.result(log.call("Bash", body={"arguments": {"command": command}}), body={"content": "HEAD is now at 1a2b3c4"})
    for number in range(4):
        log.user(body={"content": f"Print gauge {number} of the estuary."})
        log.assistant(body={"content": f"The gauge has the number {number}."})
    text = extract(log.events, "", digest_of(log.events), 400, COUNTER)
    assert ("(then reported: " in text) == stands
