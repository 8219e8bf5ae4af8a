"""Classification of the providers' errors."""

import pytest

from app.providers import retry_after
from app.wings.summarizers.client import failure, rejected_parameter, too_long


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 213462 tokens > 200000 maximum",
        "context_length_exceeded Your input exceeds the context window of this model",
        "This model's maximum context length is 8192 tokens. However, you requested 9000.",
        "input length and `max_tokens` exceed context limit: 199000 + 4000 > 200000",
        "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
        "Please reduce the length of the messages or completion",
        "prompt token count of 130000 exceeds the limit of 128000",
        "the request exceeds the available context size, try increasing it",
        "The number of tokens to keep from the initial prompt is greater than the context length",
        "Input is too long for requested model.",
        "Too many tokens: 9000 of 8192",
        "Token limit exceeded",
    ],
)
def test_a_prompt_too_long_is_known_by_its_message(message: str) -> None:
    assert failure(400, message, {}).kind == "context_too_long"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Rate limit reached for tokens per min",
        "max_tokens is too large: 5000",
        "max tokens must be at least 1",
        "You have hit your daily token limit",
        "Too many tokens, please wait before trying again.",
        "insufficient_quota",
        "image exceeds the limit of 5 MB",
    ],
)
def test_other_limits_are_no_overflow(message: str) -> None:
    assert not too_long(message)


def test_a_rate_is_a_rate_even_where_it_speaks_of_tokens() -> None:
    assert failure(429, "Token limit exceeded for this minute; maximum context", {}).kind == "rate_limited"


@pytest.mark.parametrize("message", ["", "Error code: 400"])
def test_a_400_without_a_message_is_an_overflow(message: str) -> None:
    assert failure(400, message, {}).kind == "context_too_long"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "x"}, 9.0),
        ({"retry-after": "Sat, 21 Nov 2026 10:01:00 GMT", "date": "Sat, 21 Nov 2026 10:00:15 GMT"}, 45.0),
        ({"retry-after": "Sat, 21 Nov 2026 10:01:00 GMT"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 10:01:00 -0000", "date": "Sat, 21 Nov 2026 10:00:15 GMT"}, None),
    ],
)
def test_how_long_to_wait_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_key_is_never_repeated_and_a_page_is_cut() -> None:
    assert "sk-1" not in str(failure(401, "Incorrect API key provided: sk-1", {}))
    assert len(failure(500, "x" * 100_000, {}).detail) <= 300


def test_only_a_parameter_that_was_sent_and_is_not_known_is_left_out() -> None:
    sent = ("temperature", "max_tokens")
    newer = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    assert rejected_parameter(newer, sent) == "max_tokens"
    assert rejected_parameter("`temperature` is deprecated for this model.", sent) == "temperature"
    assert rejected_parameter("Unsupported value: 'temperature' does not support 0.2", ()) is None
    assert rejected_parameter("max_tokens is too large: 5000", sent) is None
