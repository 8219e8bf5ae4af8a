"""Events and appends."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.log.events import EVENTS_PER_BATCH_MAX, RULES, EventType
from app.core.render.formats.tools import NativeFormat
from app.http import fields
from app.http.openapi import examples
from app.http.paging import page_of


def _logged(name: str, description: str) -> Any:
    """Return an optional field of an event, with the bounds that the log sets."""
    rule = RULES[name]
    return Field(None, max_length=rule.chars_max, ge=rule.least, description=description)


class EventIn(fields.StrictRequest):
    """An event to append. A `tool.call` requires `call_id` and `tool`, a `tool.result` requires `call_id`; all other
    types except `turn.start` and `turn.end` require `content`."""

    type: EventType = Field(
        description="Type of the event: `system.prompt` and `tools` (the newest of each begins every context), "
        "`user.message`, `assistant.message`, `tool.call`, `tool.result`, `system.message` (within the conversation), "
        "`agent.note`, `announce`, `turn.start` and `turn.end` (mark turns and are never shown)."
    )
    id: str | None = _logged(
        "id",
        "Client's own id of the event, unique in the session. Appending the event again with the same content "
        "changes nothing. If omitted, the server generates one.",
    )
    turn_id: str | None = _logged(
        "turn_id",
        "Client's own name of the turn. A user message with the name of the running turn continues that "
        "turn instead of beginning a new one.",
    )
    author: str | None = _logged(
        "author",
        "Name of the agent that said or did it, by which a policy's `authors` selects events. Events without an "
        "author are never excluded by it.",
    )
    content: str | list[dict[str, Any]] | None = _logged(
        "content",
        "Text, or a list of parts: objects with a `type` such as `text`, `image` or `reasoning`; a "
        "provider's own parts are kept unchanged. For `tools`: the tool definitions, as a list or its JSON text.",
    )
    call_id: str | None = _logged(
        "call_id", "Id of the tool call; on a `tool.result`, the id of an earlier call without a result."
    )
    tool: str | None = _logged("tool", "Name of the tool. Default on a `tool.result`: that of the call.")
    arguments: Any = _logged(
        "arguments",
        "Arguments of a `tool.call`: an object, or the JSON text of one. Any text that a model wrote is "
        "accepted, valid or not.",
    )
    is_error: bool | None = _logged("is_error", "Whether a tool result reports a failure.")
    path: str | None = _logged(
        "path", "Path of the file that the event concerns; recall, hiding and `supersedes` find the event by it."
    )
    mime: str | None = _logged("mime", "Media type of that file, such as `text/csv`.")
    pinned: bool | None = _logged("pinned", "Whether every context must show the event, whatever the budget.")
    ttl_turns: int | None = _logged(
        "ttl_turns",
        "Number of turns, counting its own, after which the event expires. Default: it does not expire by turns.",
    )
    ttl_seconds: int | None = _logged(
        "ttl_seconds",
        "Number of seconds after `occurred_at` at which the event expires. Default: it does not expire by time.",
    )
    replacement: str | None = _logged(
        "replacement",
        "Text to show and summarize instead of the event once it has expired; ignored on a `tool.call`. Default: "
        "a stub replaces an expired tool result, and other expired events are left out.",
    )
    supersedes: str | None = _logged(
        "supersedes",
        "Key of the events that this one replaces: earlier events with the same `supersedes`, or whose `id` or "
        "`path` it is, expire.",
    )
    occurred_at: datetime | str | float | None = _logged(
        "occurred_at",
        "Time at which it happened, in ISO 8601. A value that is not a time is stored but not used. Default: "
        "the time of the append.",
    )
    metadata: dict[str, Any] | None = _logged(
        "metadata", "Client's own data about the event; it is stored and never shown to a model."
    )
    native: dict[str, Any] | None = _logged(
        "native",
        "Parts of a provider's message that only its format can express, kept so that rendering in that format "
        "restores the message. Present if the event was appended as a message. Send it only to restore a log, as it "
        "was read; to append a provider's messages, use the messages operation.",
    )


ExpectedHead = Annotated[
    int | None,
    Field(
        ge=0,
        description="Expected seq of the log's last event, 0 for a new session. If it differs, nothing is appended and "
        "the error is `head-conflict`. Default: not checked.",
    ),
]


class EventsIn(fields.StrictRequest):
    """Events to append, all or none."""

    model_config = examples(
        lambda: EventsIn(events=[EventIn(type=EventType.USER_MESSAGE, content="Which files changed?")], expected_head=0)
    )

    events: list[EventIn] = Field(
        min_length=1, max_length=EVENTS_PER_BATCH_MAX, description="Events in the order in which they happened."
    )
    expected_head: ExpectedHead = None


class MessagesIn(fields.StrictRequest):
    """Messages in a provider's own format to append, all or none."""

    model_config = examples(lambda: MessagesIn(format="openai", messages=[{"role": "user", "content": "Hello"}]))

    format: NativeFormat = Field(description="Format of the messages: that of the provider's API.")
    messages: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=EVENTS_PER_BATCH_MAX,
        description="Messages as they were sent to the provider or received from it. For `openai-responses` they are "
        "items; for `gemini` they are contents, with the system instruction as a content of the role `system`.",
    )
    events: list[EventIn] | None = Field(
        None,
        max_length=EVENTS_PER_BATCH_MAX,
        description="Events that follow the messages, such as the results of the tools that a reply called. Their "
        "`index` in the response is counted on from the messages'.",
    )
    expected_head: ExpectedHead = None


class LoggedEvent(BaseModel):
    """Place of an appended event in the log."""

    seq: fields.Seq
    id: str = Field(description="Id of the event: the client's own, or one generated by the server.")
    turn: fields.TurnNumber
    tokens: fields.EventTokens


class AppendedEvent(LoggedEvent):
    """Place of an appended event in the log, and its origin in the request."""

    index: int = Field(
        description="Index, from 0, of the event or message in the request that it came from; one message may become "
        "several events."
    )


class Pressure(BaseModel):
    """Pressure on the budget: the size of the `main` view's context relative to its target."""

    tokens: int = Field(description="Estimated current size of the view's context, in tokens by the estimator.")
    budget: int = Field(
        description="Maximum size of the context, in the same tokens: that of the view's last context, or, before the "
        "first, that of policy and model."
    )
    ratio: float = Field(description="`tokens` divided by `budget`; above 1 the next context must be reduced.")
    level: Literal["none", "soft", "hard"] = Field(
        description="Level of pressure: `hard` above the budget, `soft` from the policy's `soft_ratio`, else `none`."
    )


class LogGrown(BaseModel):
    """The log after something was appended to it."""

    session: fields.SessionName
    line: fields.LineName
    head: int = Field(description="Seq of the last event in the log after the append.")
    epoch: fields.MainEpoch
    pressure: Pressure = Field(description="Pressure on the `main` view's budget after the append.")


class AppendedOut(LogGrown):
    """Result of an append."""

    model_config = examples(
        lambda: AppendedOut(
            session="demo",
            line="demo@line.1",
            head=1,
            epoch=0,
            events=[AppendedEvent(index=0, seq=1, id="b5c2…", turn=1, tokens=8)],
            pressure=Pressure(tokens=8, budget=109714, ratio=0.0001, level="none"),
        )
    )

    events: list[AppendedEvent] = Field(
        description="Events of the request in its order, including those that were already in the log."
    )


class EventOut(EventIn):
    """An event as logged, with its place in the log. If it was redacted, a notice replaces its content."""

    model_config = ConfigDict(extra="allow")

    seq: fields.Seq
    turn: fields.TurnNumber
    tokens: fields.EventTokens
    created_at: fields.CreatedAt
    redacted: bool | None = Field(None, description="True if the content was erased on request; absent otherwise.")


EventPage = page_of(
    EventOut, "A page of a session's log.", "Events by seq; there are gaps only with `type` or `author`."
)
