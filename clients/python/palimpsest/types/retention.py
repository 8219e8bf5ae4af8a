"""Types of `retention`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class DueOut(Model):
    """A session that would be erased now."""

    id: str
    """Id of the session, chosen by the client."""
    rule: Literal["age", "idle"]
    """Rule by which its time is over: `age` if both."""
    created_at: datetime
    """Time at which it was created."""
    used_at: datetime
    """Time of its last use."""


@dataclass(frozen=True, kw_only=True)
class RetentionOut(Model):
    """For how many days the tenant's data is kept."""

    session_days: int | None
    """Days after its creation at which a session is erased, used or not; null or 0: never."""
    idle_days: int | None
    """Days without any use at which a session is erased: without an append, context, outcome, stream, or change of
    its settings or layers; null or 0: never.
    """
    call_days: int | None
    """Days for which records of calls are kept, where neither the policy nor the server keeps them for a shorter
    time; null or 0: as long as those say.
    """
    compaction_days: int | None
    """Days for which compactions that have ended are listed; null or 0: for ever."""
    change_days: int | None
    """Days for which changes beside the log (epochs, compactions) can be read in streams; null or 0: for ever."""
    delivery_days: int | None
    """Days for which deliveries that have ended are kept; null or 0: 30."""
    updated_at: datetime | None
    """Time at which the rules were last put; null if they never were."""


@dataclass(frozen=True, kw_only=True)
class RuleDueOut(Model):
    """What would be erased now by one rule."""

    rule: Literal["age", "idle", "calls", "compactions", "changes", "deliveries"]
    """Rule: `age` (`session_days`) and `idle` (`idle_days`) erase sessions, the others what is recorded beside
    them.
    """
    count: int
    """Number of sessions (behind the cursor) or records that would be erased."""
    more: bool
    """Whether counting ended at its limit, so that there may be more."""
    oldest: datetime | None
    """Time of the oldest of them; null if there is none."""
    newest: datetime | None
    """Time of the newest of them; null if there is none."""


@dataclass(frozen=True, kw_only=True)
class RetentionPreview(Model):
    """What the rules would erase if a worker applied them now. Nothing was changed."""

    rules: list[RuleDueOut]
    """What would go, by rule; rules that are not set are missing."""
    items: list[DueOut]
    """Sessions that would go, oldest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
