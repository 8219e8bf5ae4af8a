"""The record of a context: its call, and the epoch that it opens."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.audit.evictions import Eviction
from app.core.audit.manifest import CallManifest
from app.core.plan.context.frontier import Frontier
from app.core.view.loaded import ViewRow


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """A new epoch; it becomes the view's current epoch if `current`.

    `tokens_before`, `tokens_after` and `stable_tokens` are in the provider's tokens, `target` and `carry_tokens` in our
    own. `evicted` are the (first, last) seqs of ranges that are not shown as logged.
    """

    epoch: int
    head: int
    cause: str
    frontier: Frontier
    tokens_before: int
    tokens_after: int
    settings: ViewRow
    target: int
    carry_tokens: int
    current: bool
    evictions: tuple[Eviction, ...]
    evicted: Sequence[tuple[int, int]]
    changed_seq: int
    stable_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """The record of a call. `counted` is in our own tokens; `estimate`, `target` and `evicted_tokens` are in the
    provider's."""

    call_id: UUID
    view: str
    head: int
    epoch: int
    policy: tuple[str, int]
    format: str
    model: str | None
    render_version: int
    manifest: CallManifest
    breakpoints: tuple[int, ...]
    estimate: int
    target: int
    sha256: bytes
    counted: int
    evicted_tokens: int
    retry_of: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall(CallRecord):
    """A call to record. `keep_days` is the minimum time that the record is kept, None for no limit."""

    keep_days: int | None = None
