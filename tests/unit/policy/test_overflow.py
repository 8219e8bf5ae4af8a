"""Recognition of overflow errors in the providers' words, and the sizes that they name."""

import pytest

from app.core.errors import InvalidPolicy
from app.core.policy.overflow import MESSAGE_CHARS_MAX, SETS, classify
from app.core.policy.policy import PRESETS, parse_policy

# Messages of real services, as quoted in their own documentation, code and issue threads.
REAL = [
    ("prompt is too long: 215000 tokens > 200000 maximum", "anthropic", 215_000, 200_000),
    (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
        "anthropic",
        188_240,
        200_000 - 21_333,
    ),
    (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens. "
        "Please reduce the length of the messages.",
        "openai",
        130_000,
        128_000,
    ),
    (
        "Error code: 400 - {'error': {'message': \"This model's maximum context length is 16384 tokens. However, you "
        'requested 122946 tokens (112946 in the messages, 10000 in the completion)."}}',
        "openai",
        112_946,
        6_384,
    ),
    (
        "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10341 in your prompt; "
        "5 for the completion). Please reduce your prompt; or completion length.",
        "openai",
        10_341,
        8_186,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input.", "openai", None, None),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
        "openai",
        300_000,
        272_000,
    ),
    (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "gemini",
        1_196_265,
        1_048_575,
    ),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", "gemini", None, 1_048_576),
    ("ValidationException: Input is too long for requested model.", "bedrock", None, None),
    (
        "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your "
        "prompt contains at least 134145 input tokens, for a total of at least 262145 tokens.",
        "openai",
        None,
        134_144,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 "
        "tokens and your request has 2104 input tokens (2000 > 4096 - 2104).",
        "openai",
        2_104,
        2_096,
    ),
    ("The decoder prompt (length 9000) is longer than the maximum model length of 8192.", "vllm", 9_000, 8_192),
    ("The engine prompt length 1327246 exceeds the max_model_len 262144.", "vllm", 1_327_246, 262_144),
    ("Input length (265330) exceeds model's maximum context length (262144).", "vllm", 265_330, 262_144),
    (
        '{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context '
        'size","type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}',
        "llama.cpp",
        14_429,
        8_192,
    ),
    (
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "llama.cpp",
        5_000,
        4_096,
    ),
    ("Requested tokens (516) exceed context window of 512", "llama.cpp", 516, 512),
    (
        "This endpoint's maximum context length is 16384 tokens. However, you requested about 94307 tokens (94307 of "
        "text input). Please reduce the length of either one",
        "openrouter",
        94_307,
        16_384,
    ),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens", "others", 537_812, 131_072),
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "others",
        40_000,
        32_768,
    ),
    ("prompt token count of 143,000 exceeds the limit of 128,000", "others", 143_000, 128_000),
    ("Please reduce the length of the messages or completion.", "others", None, None),
]


@pytest.mark.parametrize(("message", "name", "tokens", "room"), REAL)
def test_real_messages_and_the_sizes_they_name(message: str, name: str, tokens: int | None, room: int | None) -> None:
    for said in (message, message.upper()):
        found = classify(said)
        assert found is not None
        assert (found.set, found.tokens, found.room) == (name, tokens, room)


TIMELINE = [
    "context_length",
    "context length",
    "maximum context",
    "max context",
    "max tokens",
    "token limit",
    "too many tokens",
    "input too long",
    "prompt too long",
]


@pytest.mark.parametrize("phrase", TIMELINE)
def test_the_timelines_phrases_anywhere_in_code_or_message(phrase: str) -> None:
    for message, code in ((f"so the {phrase.upper()} it was", None), ("it failed", f"x_{phrase}")):
        found = classify(message, code, ["timeline"])
        assert found is not None
        assert found.set == "timeline"
    assert (classify(f"the {phrase} it was") is None) == (phrase == "max tokens")


THRESHOLD = [
    "prompt is too long",
    "exceeds the context window",
    "context length exceeded",
    "400 status code (no body)",
    "413 status code (no body)",
    "429 status code (no body)",
    "input token count of 12 exceeds the maximum",
    "maximum prompt length is 12",
    "reduce the length of the messages",
    "maximum context length is 12 tokens",
    "exceeds the limit of 12",
    "exceeds the available context size",
    "greater than the context length",
    "too many tokens",
    "token limit exceeded",
    "input is too long",
]


@pytest.mark.parametrize("phrase", THRESHOLD)
def test_the_thresholds_patterns(phrase: str) -> None:
    found = classify(phrase.upper(), whole_sets=["threshold"])
    assert found is not None
    assert found.set == "threshold"
    assert (classify(phrase) is None) == phrase.endswith("(no body)")


@pytest.mark.parametrize(
    "message",
    [
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000. too many tokens",
        "rate_limit_error: This request would exceed your organization's rate limit of 40,000 input tokens per minute",
        "You exceeded your current quota, please check your plan and billing details.",
        "Too many requests: token limit",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you gave 100000",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7884 of "
        "text input, 131072 in the output).",
        "error: 400 status code (no body)",
        "400 bad request",
        "Internal server error",
        "",
        "   ",
        None,
    ],
)
def test_other_messages_are_no_overflow(message: str | None) -> None:
    for sets in ((), ("threshold",), tuple(SETS)):
        assert classify(message, whole_sets=sets) is None


def test_a_window_includes_the_requested_output() -> None:
    said = "input length and `max_tokens` exceed context limit: 188240 + {} > 200000"
    for answer, window in ((10_000, 200_000), (21_333, 200_000 - 21_333 + 16_384), (190_000, 100_000)):
        found = classify(said.format(answer))
        assert found is not None
        assert (found.window, found.answer) == (200_000, answer)
        assert found.window_with(16_384) == window


def test_a_code_alone_suffices_and_a_quota_error_is_no_overflow() -> None:
    assert classify(None, "context_length_exceeded") is not None
    assert classify("", "insufficient_quota", ("timeline",)) is None
    assert classify("too many tokens", "rate_limit_exceeded") is None


def test_only_the_beginning_of_a_message_is_looked_at() -> None:
    assert classify("x" * MESSAGE_CHARS_MAX + "prompt is too long") is None


def test_presets_name_their_sets_and_others_are_refused() -> None:
    assert PRESETS["timeline"].overflow.patterns == ("timeline",)
    assert PRESETS["threshold"].overflow.patterns == ("threshold",)
    assert PRESETS["default"].overflow.patterns == ()
    with pytest.raises(InvalidPolicy, match=r"no set of patterns is named 'mine'"):
        parse_policy({"overflow": {"patterns": ["mine"]}})
