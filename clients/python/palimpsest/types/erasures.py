"""Types of `erasures`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


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
    themselves are not stored.
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
    """Number of sessions that would be erased, including forks."""
    kept: int
    """Number of sessions that meet the conditions but would be kept."""
    more: bool
    """Whether counting stopped at its limit, so that there may be more."""
    items: list[MatchingOut]
    """Sessions that meet the conditions, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
