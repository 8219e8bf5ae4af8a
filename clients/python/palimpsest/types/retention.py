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
class ErasedSessionOut(Model):
    """An erased session."""

    session_id: str
    """UUID (version 5) derived from the tenant's id and the session's name."""
    erased_at: datetime
    """Time at which it was erased."""


@dataclass(frozen=True, kw_only=True)
class ErasedSessionPage(Model):
    """A page of the sessions erased by an erasure."""

    items: list[ErasedSessionOut]
    """Erased sessions by `session_id`."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class ErasureOut(Model):
    """An erasure: its progress and, once it is done, its receipt. It names no session."""

    id: str
    """Id of the erasure, a UUID."""
    state: Literal["running", "done"]
    """State: `running` until a worker has finished it, then `done`."""
    tenant_id: str
    """Id of the tenant, a UUID, from which the UUIDs (version 5) of the erased sessions are derived."""
    key_id: str | None
    """Id of the key that requested it; null if it was requested without a key."""
    filter_sha256: str
    """SHA-256, in hex, of the given conditions as JSON: UTF-8, without whitespace, all keys sorted. The conditions
    themselves are deleted when the erasure is done.
    """
    forks: Literal["keep", "erase"]
    """Treatment of a session with forks that do not meet the conditions but share its events: `keep` keeps the
    session; `erase` erases it together with those forks.
    """
    sessions: int
    """Number of sessions erased so far, including forks."""
    kept: int | None
    """Number of sessions that met the conditions but were kept; null until it is done."""
    counts: dict[str, int] | None
    """Number of erased rows by table; null until it is done."""
    created_at: datetime
    """Time of creation."""
    finished_at: datetime | None
    """Time at which it finished; null until then."""


@dataclass(frozen=True, kw_only=True)
class ErasurePage(Model):
    """A page of erasures."""

    items: list[ErasureOut]
    """Erasures, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class MatchingOut(Model):
    """A session that meets the conditions."""

    id: str
    """Id of the session, chosen by the client."""
    created_at: datetime
    """Time of creation."""
    kept: bool
    """Whether it would be kept because of forks that share its events."""


@dataclass(frozen=True, kw_only=True)
class ErasurePreview(Model):
    """Preview of an erasure. Nothing was changed."""

    sessions: int
    """Number of sessions (after the cursor) that would be erased, including forks."""
    kept: int
    """Number of sessions (after the cursor) that meet the conditions but would be kept."""
    more: bool
    """Whether counting stopped at its limit, so that there may be more."""
    items: list[MatchingOut]
    """Sessions that meet the conditions, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


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
