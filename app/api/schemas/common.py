"""What the shapes of the API have in common."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.events import SESSION_ID_PATTERN

SessionId = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]


ViewName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


FormatName = Literal["openai", "openai-responses", "anthropic", "blocks"]


NativeFormat = Literal["openai", "openai-responses", "anthropic"]


class Closed(BaseModel):
    """A request's object: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ProblemOut(BaseModel):
    """RFC 9457. `type` is stable; other members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
