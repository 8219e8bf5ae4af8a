"""Short answers of users, and the questions and options that they refer to."""

import pytest

from app.core.memory.digest import digest_of
from app.core.memory.digest.answers import answered_question, user_lines, with_question
from app.core.memory.digest.sentences import ask_of, constraints_of, request_of
from app.core.memory.extractive import write_summary
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract

OPTIONS = "Where should heights go?\n\n1. **The gauge** - near the data\n2. The report\n\nWhich one do you prefer?"


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("let's try 2", "Where should heights go? Which one do you prefer? 2: The report."),
        ("option 1 please", "Where should heights go? Which one do you prefer? 1: The gauge - near the data."),
        (
            "yes",
            "Where should heights go? 1: The gauge - near the data; 2: The report. Which one do you prefer?",
        ),
        (
            "yes, option 2. Then also sort the table by harbour?",
            "Where should heights go? Which one do you prefer? 2: The report.",
        ),
        ("ok, why does the gauge print feet?", ""),
        ("the gauge prints feet now", ""),
        ("Rename the table to harbours", ""),
        ("I'd like to do two things: 1. sort the table 2. print it", ""),
        ("why not both of them?", ""),
        ("where does it get the author from? nobody set one", ""),
        ("/review the gauge", ""),
        ("Write a new module " * 5, ""),
    ],
)
def test_an_answer_is_quoted_with_its_option_and_question(answer: str, question: str) -> None:
    assert answered_question(answer, OPTIONS) == question


@pytest.mark.parametrize(
    ("answer", "text", "question"),
    [
        # Numbered answers to numbered questions; the other number refers to something else.
        (
            "1. the 3rd style, 2. metric",
            "1. Which style?\n2. Which unit?\n3. Shall tides be sorted, newest first?",
            "1: Which style?; 2: Which unit?. Shall tides be sorted, newest first?",
        ),
        (
            "let's go with #4",
            "| #4 Sort the tides | #5 Print them |\n\nHow shall we proceed with the gauge?",
            "How shall we proceed with the gauge? #4: Sort",
        ),
        (
            "yes",
            "**Shall I add the missing tests?** They are:\n\n1. **Sorting** of tides\n2. Printing",
            "Shall I add the ",
        ),
        (
            "B)",
            "For old tides:\n- **A) Skip** them\n- **B) Ask** the user\n\nThoughts?",
            "For old tides: Thoughts? B: Ask the user.",
        ),
        (
            "yes",
            "Is that the way you think? Or do you want to keep the old gauge and its table?",
            "Is that the way you think? Or ",
        ),
        (
            "ok, let's go",
            "Three ways exist. I'd lean toward `--apply`, it is familiar.",
            "I'd lean toward `--apply`, it is familiar.",
        ),
        (
            "ok, do it",
            "## Proposed change\n\n1. **Sort the tides**\n2. Print them",
            "Proposed change: Sort the tides; Print them",
        ),
        ("ok, do it", "The tides are sorted.", ""),
        (
            "okay, commit this table as is, then review it",
            "Should I:\n\n1. Commit this table as is?\n2. Move it elsewhere first?\n3. Go on with the other tasks?",
            "Should I: Commit this table as is?",
        ),
    ],
)
def test_an_answer_is_quoted_with_all_its_questions(answer: str, text: str, question: str) -> None:
    found = answered_question(answer, text)
    assert found.startswith(question) and bool(found) == bool(question)


REPORT = "Added:\n\n1. `TestTides` - Sorts the tides\n2. A section on tests\n3. A table"
"""A report with a numbered list, which asks nothing."""
OUTPUT = (
    "=== NAME TestTides tide_test.go:112: Rows after: 3 tide_test.go:131: Found 1 row of the north and no gauge FAIL"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("2. Strengthen the tests of the harbour - Add calls of the table", REPORT),
        (OUTPUT, REPORT),
        ("I ran it, and for the harbours in the north it found 2 gauges and one of them twice", OPTIONS),
    ],
)
def test_numbers_of_other_things_name_no_option(message: str, text: str) -> None:
    assert answered_question(message, text) == ""


def test_a_count_of_the_options_names_none() -> None:
    text = "Shall I add these tests to the table of harbours:\n\n1. Sorting\n2. Printing\n3. Edge cases"
    assert answered_question("yes, all 3", text).startswith("Shall I add these tests")


def test_a_proposal_is_quoted_as_about_and_an_option_as_asked() -> None:
    assert with_question("ok", "I'd sort the tides.") == 'ok (about: "I\'d sort the tides.")'
    assert with_question("2", "2: The report.") == '2 (asked: "2: The report.")'


def test_a_text_that_asks_nothing_makes_no_question() -> None:
    assert answered_question("yes", "All tests pass.") == ""
    assert answered_question("yes", "The gauge is wet. Dry it?") == "The gauge is wet. Dry it?"
    assert with_question("yes", "") == "yes"
    assert with_question("yes", "Push?") == 'yes (asked: "Push?")'


def test_only_the_first_message_after_a_question_answers_it() -> None:
    log = Log()
    log.assistant(body={"content": "Shall I push?"})
    log.user(body={"content": "yes"})
    log.user(body={"content": "and then stop"})
    log.user(body={"content": "<system-reminder>be brief</system-reminder>"})
    assert list(user_lines(log.events)) == [(2, "yes", "Shall I push?"), (3, "and then stop", "")]
    assert next(user_lines(log.events[1:], "Shall I merge?"))[2] == "Shall I merge?"


def test_text_of_programs_in_the_users_role_is_not_the_users() -> None:
    log = Log()
    log.user(body={"content": "Base directory for this skill: /srv/skills\n# Rules\nNever skip a test."})
    log.user(body={"content": "<bash-stdout>ok</bash-stdout><bash-stderr></bash-stderr>"})
    log.user(body={"content": "Go on with <b>this</b>."})
    assert [words for _, words, _ in user_lines(log.events)] == ["Go on with <b>this</b>."]
    assert constraints_of(log.events[0].text) == ("Never skip a test.",)
    assert (ask_of(log.events[0].text), request_of(log.events[0].text)) == (None, "")


def test_a_prompt_that_a_command_loads_is_quoted_as_the_command() -> None:
    log = Log()
    log.user(
        body={
            "content": "<command-message>review</command-message>\n<command-name>/review</command-name>\n"
            "<command-args>this branch</command-args>"
        }
    )
    log.user(body={"content": "You are an expert reviewer. You must always read the whole diff."})
    log.user(body={"content": "Operation stopped by hook: never push twice."})
    log.user(body={"content": "Never push the gauge."})
    assert [words for _, words, _ in user_lines(log.events)] == ["/review this branch", "Never push the gauge."]
    assert digest_of(log.events).constraints == ("Never push the gauge.",)
    assert request_of(log.events[0].text) == "/review this branch"


REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). "
)
SAID = REJECTED + "To tell you how to proceed, the user said:\ndon't check\nthis in"
QUOTED = ' (its result says: "don\'t check this in")'


@pytest.mark.parametrize(
    ("tool", "arguments", "result", "is_error", "line"),
    [
        ("Bash", {"command": "git add -A"}, SAID, True, "don't check this in (rejecting: Bash git add -A)"),
        ("Write", {"file_path": "a.sh", "content": "x"}, SAID, False, "don't check this in (rejecting: Write a.sh)"),
        (
            "Bash",
            {"command": "git push"},
            REJECTED + "STOP what you are doing",
            True,
            "Rejected: Bash git push",
        ),
        (
            "Bash",
            {"command": "git add a && git commit -m b"},
            SAID,
            False,
            "don't check this in (rejecting: Bash git add a && git commit -m b)",
        ),
        # Output of a command or a page need not be the user's text.
        ("Bash", {"command": "git log"}, SAID, False, f"Rejected: Bash git log{QUOTED}"),
        ("Bash", {"command": "cd /srv/a && git log"}, SAID, False, f"Rejected: Bash git log{QUOTED}"),
        ("Bash", {"command": "git add a && make"}, SAID, False, f"Rejected: Bash git add a && make{QUOTED}"),
        ("Bash", {"command": "cat page"}, SAID, False, f"Rejected: Bash cat page{QUOTED}"),
        ("WebFetch", {"url": "https://a.b"}, SAID, False, f"Rejected: WebFetch{QUOTED}"),
        (
            "execute_command",
            {"command": "x"},
            "The user denied this operation.",
            True,
            "Rejected: execute_command x",
        ),
        (
            "write_to_file",
            {"path": "a", "content": "b"},
            "The user denied this operation and provided the following feedback:\n<feedback>\nno\n</feedback>",
            True,
            "no (rejecting: write_to_file a)",
        ),
    ],
)
def test_a_rejected_call_is_quoted_with_the_users_words(
    tool: str, arguments: dict[str, str], result: str, is_error: bool, line: str
) -> None:
    log = Log()
    call = log.call(tool, body={"arguments": arguments})
    log.result(call, body={"content": result}, gist=result[:120], is_error=is_error)
    assert list(user_lines(log.events)) == [(2, line, "")]


def test_a_rejected_call_did_nothing() -> None:
    log = Log()
    log.user(body={"content": "Write it down and commit it."})
    for tool, arguments in (
        ("Write", {"file_path": "/a.sh", "content": "x"}),
        ("Bash", {"command": "git commit -m a"}),
        ("Task", {"description": "do it"}),
    ):
        log.result(log.call(tool, body={"arguments": arguments}), body={"content": REJECTED}, gist=REJECTED[:120])
    digest = digest_of(log.events)
    assert (digest.files_modified, digest.files_read) == ((), ())
    assert [command.state for command in digest.commands] == ["rejected"]
    assert digest.errors == ()
    text = write_summary(log.events, (), "", digest, 800, COUNTER)
    assert "Changed" not in text and "Ran" not in text and "Called" not in text and "failed" not in text
    assert "[rejected] git commit -m a" in text and "Rejected: Write /a.sh" in text


def test_a_rejected_call_without_words_is_left_out_once_it_was_done() -> None:
    log = Log()
    log.user(body={"content": "Sort the gauge."})
    rejected = log.call("Bash", body={"arguments": {"command": "git commit -m a"}})
    log.result(rejected, body={"content": REJECTED}, gist=REJECTED[:120])
    log.user(body={"content": "[Request interrupted by user for tool use]"})
    log.user(body={"content": "Now commit."})
    lines = ["Sort the gauge.", "Rejected: Bash git commit -m a (the user then interrupted the agent)", "Now commit."]
    assert [words for _, words, _ in user_lines(log.events)] == lines
    log.result(log.call("Bash", body={"arguments": {"command": "git push"}}), body={"content": "fine"})
    assert [words for _, words, _ in user_lines(log.events)] == lines
    commit = log.call("Bash", body={"arguments": {"command": "git add -A && git commit -m b"}})
    log.result(commit, body={"content": "[main 1a2b3c4] b"})
    assert [words for _, words, _ in user_lines(log.events)] == ["Sort the gauge.", "Now commit."]


def test_rejections_without_words_give_way_to_messages() -> None:
    log = Log()
    log.user(body={"content": "Sort the tides of every harbour and print the report."})
    log.user(body={"content": "Print the heights in metres, please."})
    for number in range(20):
        rejected = log.call("Bash", body={"arguments": {"command": f"make report-of-harbour-{number}"}})
        log.result(rejected, body={"content": REJECTED}, gist=REJECTED[:120])
    text = write_summary(log.events, (), "", digest_of(log.events), 400, COUNTER)
    assert "Print the heights in metres, please." in text
    assert 0 < text.count("- Rejected: ") < 20


def test_a_message_after_which_the_user_interrupted_the_agent_says_so() -> None:
    log = Log()
    log.user(body={"content": "commit this"})
    log.user(body={"content": "[Request interrupted by user]"})
    log.user(body={"content": "First sort the gauge."})
    add = log.call("Bash", body={"arguments": {"command": "ls"}})
    log.result(add, body={"content": ""})
    log.user(body={"content": "[Request interrupted by user for tool use]"})
    assert [words for _, words, _ in user_lines(log.events)] == [
        "commit this (the user then interrupted the agent)",
        "First sort the gauge. (the user then interrupted the agent)",
    ]


def test_a_promise_of_the_agent_is_a_constraint() -> None:
    log = Log()
    log.assistant(body={"content": "Got it - I won't amend commits going forward. I'll push this now."})
    assert digest_of(log.events).constraints == (
        'The agent promised: "Got it - I won\'t amend commits going forward."',
    )


PROSE = "Comments:\n1. Sort the gauge\n2. Print it\n3. Name the harbour\n\n"
TABLE = "| # | Comment |\n|---|---|\n| 1 | Sort |\n| 3 | Port the migration |\n| **7** | Reset to an old commit |\n\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PROSE}{TABLE}Which ones?", "Comments: Which ones? 3: Port the migration; 7: Reset to an old commit."),
        (f"{PROSE}Which ones?", ""),
    ],
)
def test_numbers_named_together_are_those_of_one_list_or_table(text: str, options: str) -> None:
    assert answered_question("let's do 3 and 7", text).startswith(options)
    assert not answered_question("let's do 3 and 7", text).endswith("3: Name the harbour.")
    assert "3: Name the harbour" in answered_question("let's do 3", f"{PROSE}Which ones?")


def test_the_last_message_stays_although_an_earlier_one_has_its_words() -> None:
    log = Log()
    log.user(body={"content": "Sort the gauge by harbour, then by height."})
    log.result(log.call("Edit", body={"arguments": {"file_path": "a.py", "old_string": "a", "new_string": "b"}}))
    log.assistant(body={"content": "Sorted. Ready to commit?"})
    log.user(body={"content": "commit"})
    log.assistant(body={"content": "Committed. The gauge of the estuary is next."})
    log.user(body={"content": "Print the estuary with its unit, too."})
    log.result(log.call("Edit", body={"arguments": {"file_path": "a.py", "old_string": "c", "new_string": "d"}}))
    log.assistant(body={"content": "The estuary is printed in metres."})
    log.user(body={"content": "commit"})
    text = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    assert [line for line in text.split("\n") if line.startswith("- commit")][-1] == "- commit"
    merged = extract([], text, digest_of([]), 600, COUNTER)
    assert [line for line in merged.split("\n") if line.startswith("- commit")][-1] == "- commit"
