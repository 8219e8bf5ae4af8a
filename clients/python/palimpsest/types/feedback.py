"""Types of `feedback`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class CalibrationOut(Model):
    """Calibration of an estimator to a model, learned from reported usage."""

    model: str
    """Name of the model."""
    estimator: str
    """Name of the estimator, such as `tiktoken:o200k_base`."""
    ratio: float
    """Tokens that the model's provider counts for each token that the estimator counts."""
    margin: float
    """Safety margin: the share by which the model's count may exceed the estimator's times `ratio`."""
    samples: int
    """Number of calls with reported usage that it is based on."""
    window_tokens: int | None
    """Window that an error named, or a refusal and its retry imply; null if none smaller than assumed."""
    updated_at: datetime
    """Time of the last change."""


@dataclass(frozen=True, kw_only=True)
class CalibrationPage(Model):
    """A page of calibrations."""

    items: list[CalibrationOut]
    """Calibrations by model, then by estimator."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class CalibrationsForgotten(Model):
    """Result of forgetting calibrations."""

    forgotten: int
    """Number of calibrations that were deleted."""


class ErrorIn(TypedDict, total=False):
    """Error that the provider returned. Its text shows whether the context was too long."""

    status: int | None
    """HTTP status of the provider's response."""
    message: str | None
    """Text of the error, as the provider wrote it."""
    code: str | None
    """Provider's code or type of the error."""


@dataclass(frozen=True, kw_only=True)
class MatchedOut(Model):
    """Pattern by which an error was recognized as an overflow, and the figures that its message names."""

    set: str
    """Name of the set of patterns, such as `anthropic` or `openai`."""
    pattern: str
    """Regular expression that matched."""
    tokens: int | None = None
    """Input tokens that were sent, if the message names them."""
    window: int | None = None
    """Context window of the model in tokens, if the message names it."""
    answer: int | None = None
    """Tokens that the request reserved for the answer, if it names them."""


@dataclass(frozen=True, kw_only=True)
class NextOut(Model):
    """Request for a smaller context with which to retry the call."""

    method: str
    """HTTP method of the request."""
    path: str
    """Path of the request."""
    body: dict[str, Any]
    """JSON body of the request: parameters as in `ContextIn`."""


@dataclass(frozen=True, kw_only=True)
class OutcomeOut(Model):
    """Verdict on a reported outcome: what to do next."""

    overflow: bool
    """Whether the error means that the context was too long."""
    action: Literal["none", "retry", "stop"]
    """Next step: `retry` (once, with the smaller context that `next` requests), `stop` (the call was already such
    a retry, or its context was only recorded, in the view `~observed`) or `none` (there was no error, or one
    that a smaller context does not fix).
    """
    next: NextOut | None = None
    """Request to send for the retry; absent unless `action` is `retry`."""
    matched: MatchedOut | None = None
    """Pattern by which an overflow was recognized; else absent."""


class UsageIn(TypedDict, total=False):
    """Token usage of a call, as reported by the provider. Omitted figures count as not reported."""

    input_tokens: int | None
    """Input tokens as the provider reports them: in the format `anthropic` without those read from or written to
    the cache, in other formats all of them.
    """
    cache_read_tokens: int | None
    """Input tokens that were read from the provider's cache."""
    cache_write_tokens: int | None
    """Input tokens that were written to the provider's cache."""
    output_tokens: int | None
    """Tokens of the model's answer."""
