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
    """Rule that applies; `age` if both do."""
    created_at: datetime
    """Time of creation."""
    used_at: datetime
    """Time of its last use."""


@dataclass(frozen=True, kw_only=True)
class RetentionOut(Model):
    """Rules for how long the tenant's data is kept."""

    session_days: int | None
    """Days after its creation at which a session is erased, used or not; null or 0: never."""
    idle_days: int | None
    """Days without any use after which a session is erased: without an append, context, outcome, stream, or change
    of its settings or layers; null or 0: never.
    """
    call_days: int | None
    """Days for which records of calls are kept, unless the policy or the server keeps them for a shorter time;
    null or 0: as long as those say.
    """
    compaction_days: int | None
    """Days for which finished compactions are listed; null or 0: forever."""
    change_days: int | None
    """Days for which changes other than events (epochs, compactions) can be streamed; null or 0: forever."""
    delivery_days: int | None
    """Days for which finished deliveries are kept; null or 0: 30."""
    updated_at: datetime | None
    """Time at which the rules were last set; null if they never were."""


@dataclass(frozen=True, kw_only=True)
class RuleDueOut(Model):
    """Data that one rule would erase now."""

    rule: Literal["age", "idle", "calls", "compactions", "changes", "deliveries"]
    """Rule: `age` (`session_days`) and `idle` (`idle_days`) erase sessions, the others erase records."""
    count: int
    """Number of sessions (after the cursor) or records that would be erased."""
    more: bool
    """Whether counting stopped at its limit, so that there may be more."""
    oldest: datetime | None
    """Time of the oldest of them; null if there is none."""
    newest: datetime | None
    """Time of the newest of them; null if there is none."""


@dataclass(frozen=True, kw_only=True)
class RetentionPreview(Model):
    """Data that the rules would erase if a worker applied them now. Nothing was changed."""

    rules: list[RuleDueOut]
    """Data that would be erased, by rule; rules that are not set are absent."""
    items: list[DueOut]
    """Sessions that would be erased, oldest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
