"""Events and appends."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed, NativeFormat
from app.core.log.events import EventType


class EventIn(Closed):
    """One fact to log. Which fields a type needs: `call_id` and `tool` for tool.call, `call_id` for tool.result,
    `content` for everything a model reads."""

    type: EventType
    id: str | None = Field(None, max_length=256, description="Yours; unique in the session. Repeating it is safe.")
    turn_id: str | None = Field(None, max_length=256, description="Your own name for the turn this belongs to.")
    author: str | None = Field(None, max_length=256, description="Which agent said or did this.")
    content: str | list[dict[str, Any]] | None = Field(None, description="Text, or a list of parts.")
    call_id: str | None = Field(None, max_length=256)
    tool: str | None = Field(None, max_length=256)
    arguments: Any = Field(None, description="An object, or the JSON text of one; whatever a model wrote is taken.")
    is_error: bool | None = None
    path: str | None = Field(None, max_length=4096)
    mime: str | None = Field(None, max_length=256)
    pinned: bool | None = Field(None, description="Never left out of a context.")
    ttl_turns: int | None = Field(None, ge=1)
    ttl_seconds: int | None = Field(None, ge=1)
    replacement: str | None = None
    supersedes: str | None = Field(None, max_length=256)
    occurred_at: datetime | str | float | None = Field(
        None, description="RFC 3339; what is no time is kept, and not reckoned with."
    )
    metadata: dict[str, Any] | None = None


class EventsIn(Closed):
    """An append: all or nothing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"events": [{"type": "user.message", "content": "Which files changed?"}], "expected_head": 0}]
        },
    )

    events: list[EventIn] = Field(min_length=1, max_length=1000)
    expected_head: int | None = Field(None, ge=0, description="Append only if this is the head.")


class MessagesIn(Closed):
    """An append of a provider's own messages."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"format": "openai", "messages": [{"role": "user", "content": "Hello"}]}]},
    )

    format: NativeFormat
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    expected_head: int | None = Field(None, ge=0)


class AppendedEvent(BaseModel):
    """Where an event stands now."""

    seq: int
    id: str
    turn: int
    tokens: int


class Pressure(BaseModel):
    """How near the main view is to its target (`budget`), both in tokens."""

    tokens: int
    budget: int
    ratio: float
    level: Literal["none", "soft", "hard"]


class AppendedOut(BaseModel):
    """The answer to an append."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session": "demo",
                    "head": 1,
                    "epoch": 0,
                    "events": [{"seq": 1, "id": "b5c2…", "turn": 1, "tokens": 8}],
                    "pressure": {"tokens": 8, "budget": 109714, "ratio": 0.0001, "level": "none"},
                }
            ]
        }
    )

    session: str
    head: int
    epoch: int
    events: list[AppendedEvent]
    pressure: Pressure


class EventOut(EventIn):
    """An event as it was logged, and where it stands. `native` is what only its provider's own format says."""

    model_config = ConfigDict(extra="allow")

    seq: int
    turn: int
    tokens: int
    created_at: datetime
    native: dict[str, Any] | None = None


class EventPage(BaseModel):
    """In order, complete."""

    items: list[EventOut]
    next_cursor: str | None
