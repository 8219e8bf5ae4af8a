"""Reports of outcomes, the verdicts on them, and the calibrations learned from them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.http import fields
from app.http.openapi import examples
from app.http.paging import page_of
from app.resources.feedback.measurements import Report

Count = Annotated[int | None, Field(ge=0, le=2**31 - 1)]


class UsageIn(fields.StrictRequest):
    """Token usage of a call, as reported by the provider. Omitted figures count as not reported."""

    input_tokens: Count = Field(
        None,
        description="Input tokens as the provider reports them: in the format `anthropic` without those read from or "
        "written to the cache, in other formats all of them.",
    )
    cache_read_tokens: Count = Field(None, description="Input tokens that were read from the provider's cache.")
    cache_write_tokens: Count = Field(None, description="Input tokens that were written to the provider's cache.")
    output_tokens: Count = Field(None, description="Tokens of the model's answer.")


class ErrorIn(fields.StrictRequest):
    """Error that the provider returned. Its text shows whether the context was too long."""

    unchecked_text = frozenset({"message", "code"})

    status: int | None = Field(None, ge=100, le=999, description="HTTP status of the provider's response.")
    message: fields.LenientText | None = Field(
        None, max_length=1_000_000, description="Text of the error, as the provider wrote it."
    )
    code: fields.LenientText | None = Field(None, max_length=1_000, description="Provider's code or type of the error.")


class OutcomeIn(fields.StrictRequest):
    """Outcome of a call. At least one of the fields must be given."""

    unchecked_text = frozenset({"error"})

    model_config = examples(
        lambda: OutcomeIn(
            usage=UsageIn(input_tokens=1200, cache_read_tokens=52000, output_tokens=310), latency_ms=2100
        ),
        lambda: OutcomeIn(error=ErrorIn(status=400, message="prompt is too long: 215000 tokens > 200000 maximum")),
    )

    usage: UsageIn | None = Field(None, description="Token usage, from which the server learns how the model counts.")
    latency_ms: Count = Field(None, description="Duration of the call in milliseconds.")
    error: ErrorIn | None = Field(None, description="Error that the provider returned. Omit it after a success.")

    def report(self) -> Report:
        """Return the report to record."""
        usage, error = (None if one is None else one.model_dump() for one in (self.usage, self.error))
        return Report(usage, self.latency_ms, error)


class NextOut(BaseModel):
    """Request for a smaller context with which to retry the call."""

    method: str = Field(description="HTTP method of the request.")
    path: str = Field(description="Path of the request.")
    body: dict[str, Any] = Field(description="JSON body of the request: parameters as in `ContextIn`.")


class MatchedOut(BaseModel):
    """Pattern by which an error was recognized as an overflow, and the figures that its message names."""

    set: str = Field(description="Name of the set of patterns, such as `anthropic` or `openai`.")
    pattern: str = Field(description="Regular expression that matched.")
    tokens: int | None = Field(None, description="Input tokens that were sent, if the message names them.")
    window: int | None = Field(None, description="Context window of the model in tokens, if the message names it.")
    answer: int | None = Field(None, description="Tokens that the request reserved for the answer, if it names them.")


class OutcomeOut(BaseModel):
    """Verdict on a reported outcome: what to do next."""

    overflow: bool = Field(description="Whether the error means that the context was too long.")
    action: Literal["none", "retry", "stop"] = Field(
        description="Next step: `retry` (once, with the smaller context that `next` requests), `stop` (the call was "
        "already such a retry, or its context was only recorded, in the view `~observed`) or `none` (there was no "
        "error, or one that a smaller context does not fix)."
    )
    next: NextOut | None = Field(None, description="Request to send for the retry; absent unless `action` is `retry`.")
    matched: MatchedOut | None = Field(None, description="Pattern by which an overflow was recognized; else absent.")


class CalibrationOut(BaseModel):
    """Calibration of an estimator to a model, learned from reported usage."""

    model: str = Field(description="Name of the model.")
    estimator: str = Field(description="Name of the estimator, such as `tiktoken:o200k_base`.")
    ratio: float = Field(
        description="Tokens that the model's provider counts for each token that the estimator counts."
    )
    margin: float = Field(
        description="Safety margin: the share by which the model's count may exceed the estimator's times `ratio`."
    )
    samples: int = Field(description="Number of calls with reported usage that it is based on.")
    window_tokens: int | None = Field(
        description="Window that an error named, or a refusal and its retry imply; null if none smaller than assumed."
    )
    updated_at: fields.UpdatedAt


class CalibrationsForgotten(BaseModel):
    """Result of forgetting calibrations."""

    forgotten: int = Field(description="Number of calibrations that were deleted.")


CalibrationPage = page_of(CalibrationOut, "A page of calibrations.", "Calibrations by model, then by estimator.")
