"""Outcomes of calls, and what was learnt from them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, Said

Count = Annotated[int | None, Field(ge=0, le=2**31 - 1)]


class UsageIn(Closed):
    """As the provider reports it. In the format `anthropic` its `input_tokens` leave out what was read from the cache
    or written to it, and the request's total is the sum of the three; in all others they hold everything."""

    input_tokens: Count = None
    cache_read_tokens: Count = None
    cache_write_tokens: Count = None
    output_tokens: Count = None


class ErrorIn(Closed):
    """The error instead of an answer. What the message says decides whether the context was too long."""

    as_it_was = frozenset({"message", "code"})

    status: int | None = Field(None, ge=100, le=999)
    message: Said | None = Field(None, max_length=1_000_000)
    code: Said | None = Field(None, max_length=1_000)


class OutcomeIn(Closed):
    """What became of a call: at least one of the three."""

    as_it_was = frozenset({"error"})

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"usage": {"input_tokens": 1200, "cache_read_tokens": 52000, "output_tokens": 310}, "latency_ms": 2100},
                {"error": {"status": 400, "message": "prompt is too long: 215000 tokens > 200000 maximum"}},
            ]
        },
    )

    usage: UsageIn | None = None
    latency_ms: Count = None
    error: ErrorIn | None = None


class NextOut(BaseModel):
    """How to ask again."""

    method: str
    path: str
    body: dict[str, Any]


class MatchedOut(BaseModel):
    """The pattern that matched and its set; what the message says of the input that was sent, of the model's window,
    and of how much of that was asked for the answer."""

    set: str
    pattern: str
    tokens: int | None = None
    window: int | None = None
    answer: int | None = None


class OutcomeOut(BaseModel):
    """`retry`: ask again as `next` says, once; `stop`: that was a retry, so something else is wrong; `none`: no error,
    or one that a smaller context does not cure."""

    overflow: bool
    action: Literal["none", "retry", "stop"]
    next: NextOut | None = None
    matched: MatchedOut | None = None


class CalibrationOut(BaseModel):
    """A model's tokens are `ratio` times the estimator's, up to `margin` more. `window_tokens`: its real window, where
    that was found to be smaller than it was taken to be."""

    model: str
    estimator: str
    ratio: float
    margin: float
    samples: int
    window_tokens: int | None
    updated_at: datetime


class CalibrationsForgotten(BaseModel):
    """How many were forgotten."""

    forgotten: int


class CalibrationPage(BaseModel):
    """By model and estimator."""

    items: list[CalibrationOut]
    next_cursor: str | None
