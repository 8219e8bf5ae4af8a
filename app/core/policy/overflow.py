"""The errors by which providers refuse a call as too long."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MESSAGE_CHARS_MAX: Final = 4_000
"""The characters of a message that are read: longer messages quote the request after the error itself."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """An error that matched a `pattern` of a `set`, with the figures in its message.

    `tokens` is the input that was sent, `window` the model's window (None: not in the message), `answer` the part of
    the window that was requested for the answer.
    """

    set: str
    pattern: str
    tokens: int | None = None
    window: int | None = None
    answer: int = 0

    @property
    def room(self) -> int | None:
        """The part of the window for the input, in tokens."""
        return None if self.window is None else self.window - self.answer

    def window_with(self, reserve: int) -> int | None:
        """Return the window to plan for with `reserve`, so that an answer of the same length fits too.

        At least half of the window: contexts do not make room for a longer answer.
        """
        if self.window is None:
            return None
        return max(self.window - max(0, self.answer - reserve), self.window // 2)


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    loose: bool = False
    whole: bool = True
    """Whether the pattern is also matched against the error's code."""

    def matches(self, code: str, message: str) -> bool:
        return re.search(self.text, f"{code} {message}" if self.whole else message, re.IGNORECASE) is not None


def _patterns(*texts: str) -> tuple[_Pattern, ...]:
    return tuple(map(_Pattern, texts))


SETS: Final[Mapping[str, tuple[_Pattern, ...]]] = {
    "anthropic": _patterns(
        r"prompt is too long",
        r"input length and `?max_tokens`? exceed context limit",
        r"exceeds? the model's maximum context",
    ),
    "openrouter": _patterns(r"endpoint's maximum context length"),
    "openai": _patterns(
        r"context_length_exceeded",
        r"exceeds the context window",
        r"maximum context length is [\d,]+ tokens",
        r"input tokens exceed the configured limit",
    ),
    "gemini": _patterns(r"input token count.*exceeds the maximum"),
    "bedrock": _patterns(r"input is too long for requested model", r"number of input tokens exceeds"),
    "vllm": _patterns(
        r"prompt \(length [\d,]+\) is longer than the maximum model length",
        r"prompt length [\d,]+ exceeds the max_model_len",
        r"input prompt \([\d,]+ tokens\) is too long",
        r"input length \([\d,]+\) exceeds.{0,20}maximum context length",
    ),
    "llama.cpp": _patterns(
        r"exceed_context_size_error",
        r"exceeds the available context size",
        r"requested tokens \([\d,]+\) exceed context window",
    ),
    "others": _patterns(
        r"maximum prompt length is [\d,]+",  # xAI
        r"too large for model with [\d,]+ maximum context length",  # Mistral
        r"reduce the length of the (input )?(messages|prompt)",  # Groq, vLLM
        r"prompt token count of [\d,]+ exceeds the limit of [\d,]+",  # GitHub
        r"greater than the context length",  # LM Studio
        r"prompt too long; exceeded (max )?context length",  # Ollama
        r"exceeded model token limit",  # Moonshot
        r"context window exceeds limit",  # MiniMax
        r"exceeds? (the |this )?(model's )?context (window|limit)",
    ),
    "threshold": (
        *_patterns(
            r"prompt is too long",
            r"exceeds the context window",
            r"context length exceeded",
            r"input token count.*exceeds the maximum",
            r"maximum prompt length is \d+",
            r"reduce the length of the messages",
            r"maximum context length is \d+ tokens",
            r"exceeds the limit of \d+",
            r"exceeds the available context size",
            r"greater than the context length",
            r"too many tokens",
            r"token limit exceeded",
            r"input is too long",
        ),
        _Pattern(r"^4(00|13|29) (status code )?\(no body\)", loose=True, whole=False),
    ),
    "timeline": (
        *_patterns("context_length", "context length", "maximum context", "max context"),
        _Pattern("max tokens", loose=True),
        *_patterns("token limit", "too many tokens", "input too long", "prompt too long"),
    ),
}

_NO_OVERFLOW: Final = (
    r"rate[ _-]?limit",
    r"quota",
    r"too many requests",
    r"tokens? per (min|hour|day)|\bTPM\b",
    r"too many tokens,? (please|per)\b",  # Bedrock's throttling
    r"(hourly|daily|weekly|monthly) (token )?limit",
    r"exceeds the limit of [\d.,]+ ?[kmg]i?b\b",
    r"billing|credit balance",
    r"overloaded",
    r"maximum allowed number of output tokens",
    r"supports at most [\d,]+ (completion|output) tokens",
    r"max_?(output|completion)_?tokens[`'\"]? (must|should|cannot|can't|is not)",
    r"max_tokens[`'\"]? (must|should|cannot|can't|is not)",
    r"too many (images|files|tools|messages|items)",
)

_WITHOUT_BODY: Final = "{status} status code (no body)"
"""The message of common clients for a response without a body."""

_N: Final = r"([\d,]+)"
# The tokens that were sent, if a message names those of the input alone; the most specific pattern first.
_SENT: Final = (
    rf"{_N} tokens? > {_N} maximum",
    rf"context limit: {_N} \+",
    rf"\({_N} (?:in|of) (?:the |your )?(?:messages|prompt|text input|text)",
    rf"messages resulted in {_N} tokens",
    rf"request has {_N} input tokens",
    rf"input token count \({_N}\)",
    rf"requested {_N} tokens in the messages",
    rf"requested (?:about )?{_N} tokens(?! \()",
    rf"contains {_N} tokens",
    rf"prompt token count of {_N}",
    rf"input (?:prompt|length) \({_N}",
    rf"prompt (?:\()?length {_N}",
    rf"request \({_N} tokens\)",
    rf"requested tokens \({_N}\)",
    rf'"?n_prompt_tokens"?\W+{_N}',
    rf"received {_N}",
)
_ROOM: Final = (
    rf"> {_N} maximum",
    rf"> {_N}",
    rf"(?:maximum|model's) context length (?:is|\() ?{_N}",
    rf"maximum number of tokens allowed \(?{_N}",
    rf"configured limit of {_N}",
    rf"maximum model length of {_N}",
    rf"max_model_len {_N}",
    rf"maximum prompt length is {_N}",
    rf"with {_N} maximum context length",
    rf"exceeds the limit of {_N}",
    rf"available context size \({_N}",
    rf'"?n_ctx"?\W+{_N}',
    rf"context window of {_N}",
    rf"cannot exceed {_N}",
)
# The tokens requested for the answer.
_ANSWER: Final = (
    rf"{_N} in the (?:completion|output)",
    rf"{_N} for the completion",
    rf"requested {_N} output tokens",
    rf"context limit: [\d,]+ \+ {_N} >",
    rf"is too large: {_N}",
)


def classify(
    message: str | None, code: str | None = None, whole_sets: Collection[str] = (), status: int | None = None
) -> Overflow | None:
    """Return the overflow that an error reports; None for any other error, and for one without a message.

    `whole_sets` are sets that apply with their loose patterns. Without message and code, `status` is matched as the
    message that clients have for a response without a body. Only loose patterns can match it, since 400, 413 and 429
    have many causes.
    """
    message, code = (message or "").strip()[:MESSAGE_CHARS_MAX], (code or "").strip()
    if not message and not code:
        bare = "" if status is None else _WITHOUT_BODY.format(status=status)
        found = _find("", bare, whole_sets) if bare else None
        return Overflow(*found) if found is not None and found[0] in whole_sets else None
    if any(re.search(pattern, f"{code} {message}", re.IGNORECASE) for pattern in _NO_OVERFLOW):
        return None
    found = _find(code, message, whole_sets)
    if found is None:
        return None
    name, pattern = found
    sent, room, answer = (_number(patterns, message) for patterns in (_SENT, _ROOM, _ANSWER))
    if room is not None and answer is not None and answer >= room:
        return None  # not even an empty context would leave room for such an answer
    return Overflow(name, pattern, sent, room, answer or 0)


def _find(code: str, message: str, whole_sets: Collection[str]) -> tuple[str, str] | None:
    order = [*(name for name in SETS if name in whole_sets), *(name for name in SETS if name not in whole_sets)]
    for name in order:
        for pattern in SETS[name]:
            if (not pattern.loose or name in whole_sets) and pattern.matches(code, message):
                return name, pattern.text
    return None


def _number(patterns: Collection[str], message: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, message, re.IGNORECASE)
        if match is not None:
            digits = match.group(1).replace(",", "")
            return int(digits) if digits and len(digits) < 10 else None
    return None
