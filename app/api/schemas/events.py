"""Events and appends."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import (
    Closed,
    CreatedAt,
    EventTokens,
    LineName,
    MainEpoch,
    NextCursor,
    Seq,
    SessionName,
    TurnNumber,
)
from app.core.log.events import EVENTS_PER_BATCH_MAX, EventType
from app.core.log.parse import RULES
from app.core.render.formats.tools import NativeFormat


def _logged(name: str, description: str) -> Any:
    """An optional field of an event, with the bounds that the log gives it."""
    rule = RULES[name]
    return Field(None, max_length=rule.chars_max, ge=rule.least, description=description)


class EventIn(Closed):
    """An event to append. A `tool.call` needs `call_id` and `tool`, a `tool.result` needs `call_id`; all other types
    but `turn.start` and `turn.end` need `content`."""

    type: EventType = Field(
        description="Type of the event: `system.prompt` and `tools` (the newest of each begins every context), "
        "`user.message`, `assistant.message`, `tool.call`, `tool.result`, `system.message` (within the conversation), "
        "`agent.note`, `announce`, `turn.start` and `turn.end` (only mark turns, never shown)."
    )
    id: str | None = _logged(
        "id",
        "Client's own id of the event, unique in the session. Appending it again with the same content "
        "changes nothing. If omitted, the server makes one.",
    )
    turn_id: str | None = _logged(
        "turn_id",
        "Client's own name of the turn. A user message with the name of the running turn continues that "
        "turn instead of beginning another.",
    )
    author: str | None = _logged(
        "author",
        "Name of the agent that said or did it, which a policy's `authors` select by. Events without an "
        "author are never excluded by that.",
    )
    content: str | list[dict[str, Any]] | None = _logged(
        "content",
        "Text, or a list of parts: objects with a `type` such as `text`, `image` or `reasoning`; a "
        "provider's own parts are kept as they are. Of `tools`: the tool definitions, as a list or its JSON text.",
    )
    call_id: str | None = _logged(
        "call_id", "Id of the tool call; on a `tool.result`, the id of an earlier call without a result."
    )
    tool: str | None = _logged("tool", "Name of the tool. If omitted on a `tool.result`, it is that of the call.")
    arguments: Any = _logged(
        "arguments",
        "Arguments of a `tool.call`: an object, or the JSON text of one. Whatever a model wrote is "
        "accepted, valid or not.",
    )
    is_error: bool | None = _logged("is_error", "Whether a tool result reports a failure.")
    path: str | None = _logged(
        "path", "Path of the file that the event is about; recall, hiding and `supersedes` find the event by it."
    )
    mime: str | None = _logged("mime", "Media type of that file, such as `text/csv`.")
    pinned: bool | None = _logged("pinned", "Whether every context must show the event, whatever the budget.")
    ttl_turns: int | None = _logged(
        "ttl_turns",
        "Number of turns, counting its own, after which the event expires. If omitted, turns do not matter.",
    )
    ttl_seconds: int | None = _logged(
        "ttl_seconds",
        "Number of seconds after `occurred_at` at which the event expires. If omitted, time does not matter.",
    )
    replacement: str | None = _logged(
        "replacement",
        "Text to show in place of the event once it has expired, and to summarize instead of it; ignored "
        "on a `tool.call`. If omitted, a stub replaces an expired tool result, and other expired events are left out.",
    )
    supersedes: str | None = _logged(
        "supersedes",
        "Key of what this event replaces: earlier events with the same `supersedes`, or with it as their "
        "`id` or `path`, expire.",
    )
    occurred_at: datetime | str | float | None = _logged(
        "occurred_at",
        "Time at which it happened, in ISO 8601. A value that is not a time is kept but not used. Default: "
        "the time of the append.",
    )
    metadata: dict[str, Any] | None = _logged(
        "metadata", "Client's own data about the event; it is stored and never shown to a model."
    )
    native: dict[str, Any] | None = _logged(
        "native",
        "What only the provider's format can express, kept so that rendering in that format gives back what was "
        "appended. Present if the event came as a message. Send it only as it was read from a log, to write that log "
        "again; to append a provider's messages, post them as messages.",
    )


ExpectedHead = Annotated[
    int | None,
    Field(
        ge=0,
        description="Expected seq of the log's last event, 0 for a new session. If it is another one, nothing is "
        "appended and the error is `head-conflict`. If omitted, it is not checked.",
    ),
]


class EventsIn(Closed):
    """Events to append, all or none."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"events": [{"type": "user.message", "content": "Which files changed?"}], "expected_head": 0}]
        },
    )

    events: list[EventIn] = Field(
        min_length=1, max_length=EVENTS_PER_BATCH_MAX, description="Events in the order in which they happened."
    )
    expected_head: ExpectedHead = None


class MessagesIn(Closed):
    """Messages in a provider's own format to append, all or none."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"format": "openai", "messages": [{"role": "user", "content": "Hello"}]}]},
    )

    format: NativeFormat = Field(description="Format of the messages: that of the provider's API.")
    messages: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=EVENTS_PER_BATCH_MAX,
        description="Messages as they were sent to the provider or received from it; of `openai-responses`, items; of "
        "`gemini`, contents, of which one of the role `system` stands for the system instruction.",
    )
    expected_head: ExpectedHead = None


class LoggedEvent(BaseModel):
    """Place of an appended event in the log."""

    seq: Seq
    id: str = Field(description="Id of the event: the client's own, or the one that the server made.")
    turn: TurnNumber
    tokens: EventTokens


class AppendedEvent(LoggedEvent):
    """Place of an appended event in the log, and where it came from."""

    index: int = Field(
        description="Index, from 0, of the event or message of the request that it came from; one message may become "
        "several events."
    )


class Pressure(BaseModel):
    """Pressure on the budget: how near the `main` view's context is to its target."""

    tokens: int = Field(description="Estimated current size of the view's context, in tokens by the estimator.")
    budget: int = Field(
        description="Maximum size of the context, in the same tokens: that of the view's last context, or before the "
        "first one that of policy and model."
    )
    ratio: float = Field(description="`tokens` divided by `budget`; above 1 the next context must be reduced.")
    level: Literal["none", "soft", "hard"] = Field(
        description="Level of pressure: `soft` from the policy's `soft_ratio` on, `hard` above the budget, else `none`."
    )


class LogGrown(BaseModel):
    """The log after something was appended to it."""

    session: SessionName
    line: LineName
    head: int = Field(description="Seq of the last event in the log after the append.")
    epoch: MainEpoch
    pressure: Pressure = Field(description="Pressure on the `main` view's budget after the append.")


class AppendedOut(LogGrown):
    """Result of an append."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session": "demo",
                    "head": 1,
                    "epoch": 0,
                    "events": [{"index": 0, "seq": 1, "id": "b5c2…", "turn": 1, "tokens": 8}],
                    "pressure": {"tokens": 8, "budget": 109714, "ratio": 0.0001, "level": "none"},
                }
            ]
        }
    )

    events: list[AppendedEvent] = Field(
        description="Events of the request in its order, including those already in the log."
    )


class EventOut(EventIn):
    """An event as it was logged, with its place in the log. If it was redacted, a notice replaces its content
    and `redacted` is true."""

    model_config = ConfigDict(extra="allow")

    seq: Seq
    turn: TurnNumber
    tokens: EventTokens
    created_at: CreatedAt
    redacted: bool | None = Field(None, description="True if the content was erased on request; absent otherwise.")


class EventPage(BaseModel):
    """A page of a session's log."""

    items: list[EventOut] = Field(description="Events in the order of their seqs, without gaps.")
    next_cursor: NextCursor
