"""What the shapes of the API have in common."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from app.core.log.events import SESSION_ID_PATTERN, readable

SessionId = Annotated[str, Field(pattern=SESSION_ID_PATTERN)]


ViewName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


FormatName = Literal["openai", "openai-responses", "anthropic", "blocks"]


NativeFormat = Literal["openai", "openai-responses", "anthropic"]


def in_utc(moment: datetime) -> datetime:
    """A time as the database takes it; one without an offset is meant in UTC. Raises ValueError at the very ends."""
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time of the years 1 to 9999 in UTC") from None


YEARS: Final = (1900, 9000)


def _reckonable(moment: datetime) -> datetime:
    least, most = YEARS
    if not least <= moment.year < most:
        raise ValueError(f"must be a time of the years {least} to {most - 1}")
    return moment


Moment = Annotated[datetime, AfterValidator(in_utc)]
"""A time to compare with."""


Clock = Annotated[Moment, AfterValidator(_reckonable)]
"""A time to reckon with: what is added to it or taken from it must be times, too."""


def _said(value: Any) -> Any:
    return readable(value) if isinstance(value, str) else value


Said = Annotated[str, BeforeValidator(_said)]
"""What others said: with a replacement character for each that the database has not."""


class Closed(BaseModel):
    """A request's object: unknown fields are errors, `true` and `false` are no numbers, and text is such that the
    database has it. `as_it_was` names the fields that hold what others said, whatever is in it, and what is looked at
    where it is understood."""

    model_config = ConfigDict(extra="forbid")
    as_it_was: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*", mode="before")
    @classmethod
    def _sound(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if isinstance(value, bool) and _is_number(cls.model_fields[name].annotation):
            raise ValueError("must be a number")
        if name not in cls.as_it_was and not _is_readable(value):
            raise ValueError("must hold neither NUL nor lone surrogates")
        return value


def _is_number(annotation: Any) -> bool:
    """Whether a field's type is a number and nothing else, or none."""
    kinds = {annotation, *get_args(annotation)} - {type(None)}
    return int in kinds and bool not in kinds


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


class ProblemOut(BaseModel):
    """RFC 9457. `type` is stable; other members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
