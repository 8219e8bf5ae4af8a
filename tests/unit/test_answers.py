"""Short answers of users, and the questions and options that they mean."""

import pytest

from app.core.digest.answers import answers, asked, user_lines
from app.core.digest.sentences import ask_of, constraints_of, request_of
from tests.unit.builders import Log

OPTIONS = "Where should heights go?\n\n1. **The gauge** - near the data\n2. The report\n\nWhich one do you prefer?"


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("let's try 2", "2: The report. Where should heights go? Which one do you prefer?"),
        ("option 1 please", "1: The gauge - near the data. Where should heights go? Which one do you prefer?"),
        ("yes", "Where should heights go? Which one do you prefer?"),
        ("why not both of them?", ""),
        ("Write a new module " * 5, ""),
    ],
)
def test_an_answer_is_told_with_its_option_and_question(answer: str, question: str) -> None:
    assert asked(answer, OPTIONS) == question


def test_a_text_that_asks_nothing_makes_no_question() -> None:
    assert asked("yes", "All tests pass.") == ""
    assert asked("yes", "The gauge is wet. Dry it?") == "The gauge is wet. Dry it?"
    assert answers("yes", "") == "yes"
    assert answers("yes", "Push?") == 'yes (asked: "Push?")'


def test_only_the_first_message_behind_a_question_answers_it() -> None:
    log = Log()
    log.says(body={"content": "Shall I push?"})
    log.user(body={"content": "yes"})
    log.user(body={"content": "and then stop"})
    log.user(body={"content": "<system-reminder>be brief</system-reminder>"})
    assert list(user_lines(log.events)) == [(2, "yes", "Shall I push?"), (3, "and then stop", "")]
    assert next(user_lines(log.events[1:], "Shall I merge?"))[2] == "Shall I merge?"


def test_what_programs_wrote_in_the_users_name_is_not_said_by_the_user() -> None:
    log = Log()
    log.user(body={"content": "Base directory for this skill: /srv/skills\n# Rules\nNever skip a test."})
    log.user(body={"content": "<bash-stdout>ok</bash-stdout><bash-stderr></bash-stderr>"})
    log.user(body={"content": "Go on with <b>this</b>."})
    assert [words for _, words, _ in user_lines(log.events)] == ["Go on with <b>this</b>."]
    assert constraints_of(log.events[0].text) == ("Never skip a test.",)
    assert (ask_of(log.events[0].text), request_of(log.events[0].text)) == (None, "")
