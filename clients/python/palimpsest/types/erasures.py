"""Types of `erasures`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class ErasedSessionOut(Model):
    """A session that was erased."""

    session_id: str
    """UUID (version 5) of the tenant's id and the session's name."""
    erased_at: datetime
    """Time at which it was erased."""


@dataclass(frozen=True, kw_only=True)
class ErasedSessionPage(Model):
    """A page of the sessions that an erasure has erased."""

    items: list[ErasedSessionOut]
    """Sessions by their id."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class ErasureOut(Model):
    """An erasure: how far it is, and once it is done its receipt, which names no session."""

    id: str
    """Id of the erasure, a UUID."""
    state: Literal["running", "done"]
    """State: `running` until a worker has done it, then `done`."""
    tenant_id: str
    """Id of the tenant, a UUID: the ids of erased sessions are UUIDs (version 5) of it and their names."""
    key_id: str | None
    """Id of the key that asked for it; null if it was asked for without one."""
    filter_sha256: str
    """SHA-256, in hex, of the conditions that were given as JSON: UTF-8, without whitespace, all keys sorted. The
    conditions themselves are not kept.
    """
    forks: Literal["keep", "erase"]
    """What to do with a session that has forks for which the conditions do not hold, and which share its events:
    `keep` keeps it; `erase` erases it with them.
    """
    sessions: int
    """Number of sessions that were erased so far, with forks."""
    kept: int | None
    """Number of sessions that were found and kept; null until it is done."""
    counts: dict[str, int] | None
    """Number of rows that were erased, by table; null until it is done."""
    created_at: datetime
    """Time at which it was created."""
    finished_at: datetime | None
    """Time at which it was done; null until then."""


@dataclass(frozen=True, kw_only=True)
class ErasurePage(Model):
    """A page of erasures."""

    items: list[ErasureOut]
    """Erasures, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class MatchingOut(Model):
    """A session that the conditions find."""

    id: str
    """Id of the session, chosen by the client."""
    created_at: datetime
    """Time at which it was created."""
    kept: bool
    """Whether it would be kept, for forks that share its events."""


@dataclass(frozen=True, kw_only=True)
class ErasurePreview(Model):
    """What an erasure would erase now. Nothing was changed."""

    sessions: int
    """Number of sessions that would be erased, with forks."""
    kept: int
    """Number of sessions that the conditions find and that would be kept."""
    more: bool
    """Whether counting ended at its limit, so that there may be more."""
    items: list[MatchingOut]
    """Sessions that the conditions find, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
