"""Sessions and their epochs."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed
from app.api.schemas.policies import PolicyGiven, PolicyRef


class SessionIn(Closed):
    """Settings of a session; what is left out stays as it is."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"model": "gpt-4o", "policy": {"retention": {"keep_last": 5}}, "metadata": {"user": "ann"}}]
        },
    )

    as_it_was = frozenset({"policy"})

    policy: PolicyGiven = None
    model: str | None = Field(None, min_length=1, max_length=256)
    metadata: dict[str, Any] | None = None
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="What the client sends beside each request (tools, a system prompt of its own), as the provider "
        "counts. Without it that is learned from reported usage.",
    )


class SessionTokens(BaseModel):
    """`log`: all events as logged; `context`: what the main view would take now."""

    log: int
    context: int


class ParentOut(BaseModel):
    """The session that a fork was made of, and the last seq that both share."""

    id: str
    at: int


class SessionOut(BaseModel):
    """A session as it stands."""

    id: str
    head: int
    epoch: int
    turns: int
    policy: PolicyRef
    model: str | None
    estimator: str
    metadata: dict[str, Any]
    tokens: SessionTokens
    outside_tokens: int | None
    created_at: datetime
    updated_at: datetime
    parent: ParentOut | None = None


class SessionPage(BaseModel):
    """Newest first."""

    items: list[SessionOut]
    next_cursor: str | None


class EpochOut(BaseModel):
    """One stored state of a view: why it was opened, at which head, and what the context took before and after."""

    epoch: int
    head: int
    cause: str
    tokens_before: int
    tokens_after: int
    created_at: datetime


class EpochPage(BaseModel):
    """In order."""

    items: list[EpochOut]
    next_cursor: str | None
