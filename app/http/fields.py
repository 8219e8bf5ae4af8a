"""Types and fields that several schemas of the API share, each described once."""

import re
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin
from uuid import UUID

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from app.core.lexicon.times import in_utc
from app.core.log.events import SESSION_ID_PATTERN, readable
from app.core.log.segments import ADDRESS_PATTERN, session_of
from app.core.render.formats import FormatName

SID_DESCRIPTION: Final = "Id of the session, which means its current line, or `<id>@line.<number>` for one line."
Sid = Annotated[str, Path(pattern=ADDRESS_PATTERN, description=SID_DESCRIPTION)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on the page.")]
Cursor = Annotated[
    str | None,
    Query(description="Cursor of the page: the `next_cursor` of the previous page. Omit it for the first page."),
]
RECORDED_VIEW: Final = r"^~?[A-Za-z0-9._-]{1,64}$"
"""Names of views that can be read: those of `ViewName`, and `~observed` with the contexts that are never sent."""
ViewParameter = Annotated[str, Query(pattern=RECORDED_VIEW, description="Name of the view.")]
ViewIfAny = Annotated[
    str | None, Query(pattern=RECORDED_VIEW, description="Name of a view: return only its calls. Default: all views.")
]
RecordedView = Annotated[str, Field(pattern=RECORDED_VIEW, description="Name of the view.")]

SessionId = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]

ViewName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of the view: one way of reading the session, with its own policy, model, window and epochs. "
        "A view is created by its first context.",
    ),
]


YEARS: Final = (1900, 9000)


def _check_year(moment: datetime) -> datetime:
    least, most = YEARS
    if not least <= moment.year < most:
        raise ValueError(f"must be a time of the years {least} to {most - 1}")
    return moment


def _check_iso_8601(value: Any) -> Any:
    if not isinstance(value, datetime) and not (isinstance(value, str) and re.match(r"\d{4}-", value)):
        raise ValueError("must be a time in ISO 8601")
    return value


Moment = Annotated[datetime, BeforeValidator(_check_iso_8601), AfterValidator(in_utc)]
"""A time that is only compared with other times."""


Clock = Annotated[Moment, AfterValidator(_check_year)]
"""A time to which durations can be added, or from which they can be subtracted, without an overflow."""


LenientText = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
"""Text from third parties: characters that the database cannot store are replaced instead of refused."""


Id = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, UUID) else value)]
"""A UUID in a response."""


def value_types(annotation: Any) -> frozenset[Any]:
    """Return the types of the values that an annotation allows, including those of items and of literals."""
    if get_origin(annotation) is Literal:
        return frozenset(map(type, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return value_types(get_args(annotation)[0])
    inner = [value_types(one) for one in get_args(annotation)]
    return frozenset().union(*inner) if inner else frozenset({annotation})


QUERY: Final = "query"
"""The validation context for values that are text because they come from a query."""


class StrictRequest(BaseModel):
    """An object in a request: unknown fields are errors, values must have their declared JSON type, and text must be
    storable.

    `unchecked_text` names the fields whose text is not checked: third parties wrote them, or they are checked where
    they are interpreted.
    """

    model_config = ConfigDict(extra="forbid")
    unchecked_text: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*", mode="before")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if info.context != QUERY:
            _check_type(value, _kinds(cls, name))
        if name not in cls.unchecked_text and not _is_readable(value):
            raise ValueError("must hold neither NUL nor lone surrogates")
        return value


@cache
def _kinds(model: type[BaseModel], name: str) -> frozenset[Any]:
    return value_types(model.model_fields[name].annotation)


_NUMBERS: Final = frozenset({int, float})
_NO_TEXT: Final = _NUMBERS | {bool, type(None)}


def _check_type(value: Any, kinds: frozenset[Any]) -> None:
    """Raise ValueError for a scalar that pydantic would convert, such as the text of a number or a number for a time.

    Items of lists are not checked; their types must be strict.
    """
    if Any in kinds or isinstance(value, list):
        return
    if isinstance(value, bool):
        fits = bool in kinds
    elif isinstance(value, int | float):
        fits = not kinds.isdisjoint(_NUMBERS)
    else:
        fits = not isinstance(value, str) or not kinds <= _NO_TEXT
    if not fits:
        wanted = "a number" if not kinds.isdisjoint(_NUMBERS) else "true or false" if bool in kinds else "text"
        raise ValueError(f"must be {wanted}")


def _is_readable(value: Any) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if readable(one) != one:
                return False
        elif isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list):
            left += one
    return True


Answer = TypeVar("Answer", bound=BaseModel)


def answer_of(kind: type[Answer], /, *sources: object, **more: Any) -> Answer:
    """Return a response whose fields come from `more`, else from the first of `sources` with such an attribute."""
    names = kind.model_fields.keys()
    found = {name: getattr(one, name) for one in reversed(sources) for name in names if hasattr(one, name)}
    return kind.model_validate(found | more, from_attributes=True)


# Fields that recur in responses, so that each is described in the same words.

RecordedCall = Annotated[UUID, Path(description="Id of the recorded call.")]
CallId = Annotated[Id, Field(description="Id of the recorded call, a UUID.")]
SessionName = Annotated[str, AfterValidator(session_of), Field(description="Id of the session, chosen by the client.")]
LineName = Annotated[
    str,
    Field(
        description="Id of the session's line that this concerns. Used in a path in place of the session's id, it "
        "always means this line."
    ),
]
ViewOf = Annotated[str, Field(description="Name of the view that the context was made for.")]
CallHead = Annotated[int, Field(description="Seq of the last event that the context takes into account.")]
CallEpoch = Annotated[
    int, Field(description="Number of the view's epoch that the context is rendered from; 0 before the first epoch.")
]
CallFormat = Annotated[FormatName, Field(description="Format of the request: a provider's, or the neutral `blocks`.")]
CallModel = Annotated[
    str | None, Field(description="Name of the model that the context was made for; null if none was given.")
]
RetryOf = Annotated[
    Id | None,
    Field(description="Id of the call that this one retries because it was too long; null if it is not a retry."),
]
RequestSha256 = Annotated[
    str,
    BeforeValidator(lambda value: value.hex() if isinstance(value, bytes) else value),
    Field(
        description="SHA-256, in hex, of `request` as canonical JSON: UTF-8, without whitespace, keys in the given "
        "order."
    ),
]

Seq = Annotated[int, Field(description="Seq of the event: its position in the session's log, counted from 1.")]
FromSeq = Annotated[int, Field(description="First seq of the range, inclusive.")]
ToSeq = Annotated[int, Field(description="Last seq of the range, inclusive.")]
Head = Annotated[int, Field(description="Seq of the last event in the session's log; 0 while the log is empty.")]
MainEpoch = Annotated[
    int,
    Field(
        description="Number of the current epoch of the `main` view, 0 before its first context; after a new policy or "
        "an erasure, a number that no epoch gets: the next context opens the one after it."
    ),
]
TurnNumber = Annotated[int, Field(description="Number of the turn, counted from 1; 0 before the first turn.")]
EventTokens = Annotated[int, Field(description="Size of the event as appended, in tokens by the session's estimator.")]

Disposition = Annotated[
    str,
    Field(
        description="The form in which the events are shown: `verbatim`; `stubbed` (shortened, or as a stub); "
        "`replaced` (by other text, by nothing, or by a newer system prompt or tool list); `summarized` (a summary "
        "that covers them is shown instead); `dropped` (left out); `not_rendered` (left out because they only mark "
        "turns, or the policy's `authors` or `types` exclude them); `redacted` (erased on request)."
    ),
]
SummaryId = Annotated[Id, Field(description="Id of the summary, a UUID.")]
Depth = Annotated[
    int,
    Field(
        description="Level of the summary: 0 if written from events alone, else one more than the deepest summary it "
        "replaced."
    ),
]
CoveringSummary = Annotated[
    str | None,
    Field(
        description="Id of the summary that covers the events; null or absent unless the disposition is `summarized`."
    ),
]
Reducer = Annotated[
    str,
    Field(
        description="Rule that decided this: `visibility`, `expiry`, `ttl_pruning`, `retention`, `once`, `economics`, "
        "`caps`, `dialogue_window`, `fold` (a summary), `questions` (a long message next to a fold is shortened to the "
        "part with the question), `last_resort`, `prefix` (a newer system prompt or tool list) or `format` (the format "
        "cannot express it)."
    ),
]
ReducerIfAny = Annotated[
    str | None, Field(description="Rule that decided this, as in `EvictionOut.reducer`; null or absent if no rule did.")
]
ReasonIfAny = Annotated[
    str | None, Field(description="Reason for this disposition, such as `superseded`; null or absent if it needs none.")
]
CallCause = Annotated[str, Field(description="Cause of that epoch, as in `EpochOut.cause`.")]
EpochNumber = Annotated[int, Field(description="Number of the epoch within its view, counted from 1.")]
EpochCause = Annotated[
    str,
    Field(
        description="Cause of the epoch: `start` (first context of the view, if nothing else applies), `system_prompt` "
        "or `tools` (a new one was logged), `late_result` (an old tool call got its result), `model`, `window` or "
        "`policy` (the view's settings changed; `policy` also if the policy evicts at every context), `redaction` (an "
        "event was erased), `visibility` (events were hidden or shown), `expiry` (an event expired or was superseded), "
        "`ttl` (TTL pruning after idle time), `healed` (a summary now covers events that had been dropped), `cap` "
        "(a kind of content exceeded its cap), `cold_cache` (the provider's cache had expired anyway), `break_even` "
        "(keeping the evicted content had cost as much as rewriting the cache), `budget` (the context exceeded its "
        "trigger or target), `forced` (the request set `force`), `overflow` (retry of a call that was too long)."
    ),
]
EpochHead = Annotated[int, Field(description="Seq of the last event when the epoch was opened.")]
EpochTokensBefore = Annotated[
    int, Field(description="Estimated size of the context before the epoch's changes, in the model's tokens.")
]
EpochTokensAfter = Annotated[
    int, Field(description="Estimated size of the context after the epoch's changes, in the model's tokens.")
]

CreatedAt = Annotated[datetime, Field(description="Time of creation.")]
UpdatedAt = Annotated[datetime, Field(description="Time of the last change.")]
NextCursor = Annotated[
    str | None, Field(description="Cursor of the next page, to be passed as `cursor`; null on the last page.")
]
