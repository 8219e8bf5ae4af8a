"""The example page equals the code's output on the sample, and its statements about the log are true."""

import pytest

from tests.support import example


def test_the_example_page_equals_the_codes_output() -> None:
    assert example.page() == example.PAGE.read_text(encoding="utf-8"), "run `python -m tests.support.example`"


@pytest.mark.parametrize("quote", [quote for _, _, quotes in example.READING for quote in quotes])
def test_quoted_text_is_in_the_log_and_in_the_context(quote: str) -> None:
    logged = "\n".join(str(message.get("content")) for message in example.log()["messages"])
    assert quote in logged
    assert quote in "\n".join(example.written(example.context()))


def test_a_run_that_a_later_message_repeats_is_not_in_the_summary() -> None:
    text, *later = [str(message.get("content")) for message in example.context()[1:]]
    assert "<commands>" not in text and "42 passed in 2.0s" in later
    assert "seq" not in text and "event" not in text
