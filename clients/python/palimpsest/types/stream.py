"""Types of `stream`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model
from palimpsest.types.summaries import CompactionRun


@dataclass(frozen=True, kw_only=True)
class EpochChange(Model):
    """A newly opened epoch: the data of a stream's `epoch` message."""

    session: str
    """Id of the session, chosen by the client."""
    view: str
    """Name of the view."""
    epoch: int
    """Number of the epoch within its view, counted from 1."""
    current: bool
    """Whether it is the view's current epoch; false for one opened by a context of an earlier seq."""
    cause: str
    """Cause of the epoch: `start` (first context of the view, if nothing else applies), `system_prompt` or `tools`
    (a new one was logged), `late_result` (an old tool call got its result), `model`, `window` or `policy` (the
    view's settings changed; `policy` also if the policy evicts at every context), `redaction` (an event was
    erased), `visibility` (events were hidden or shown), `expiry` (an event expired or was superseded), `ttl`
    (TTL pruning after idle time), `healed` (a summary now covers events that had been dropped), `cap` (a kind
    of content exceeded its cap), `cold_cache` (the provider's cache had expired anyway), `break_even` (keeping
    the evicted content had cost as much as rewriting the cache), `budget` (the context exceeded its trigger or
    target), `forced` (the request set `force`), `overflow` (retry of a call that was too long).
    """
    head: int
    """Seq of the last event when the epoch was opened."""
    tokens_before: int
    """Estimated size of the context before the epoch's changes, in the model's tokens."""
    tokens_after: int
    """Estimated size of the context after the epoch's changes, in the model's tokens."""
    created_at: datetime
    """Time of creation."""


@dataclass(frozen=True, kw_only=True)
class CompactionTokens(Model):
    """Effect of a compaction run on the `main` view's context, in tokens by the estimator."""

    before: int | None
    """Size of the context when the run began; null before that."""
    after: int | None
    """Estimated size of the context with the new summaries; null unless the run succeeded."""
    compacted: int | None
    """`before` minus `after`, at least 0; null until the run has ended."""


@dataclass(frozen=True, kw_only=True)
class CompactionChange(Model):
    """A step of a compaction run: the data of a stream's `compaction` message and of a webhook."""

    session: str
    """Id of the session, chosen by the client."""
    state: Literal["scheduled", "started", "finished", "failed"]
    """Step of the run: `scheduled` (also if postponed), `started`, `finished` (`run.state` shows whether there was
    anything to summarize) or `failed`.
    """
    run: CompactionRun
    """State of the run after this step."""
    tokens: CompactionTokens
    """Effect of the run on the `main` view's context."""
    aborted: bool
    """Whether the run failed and contexts stay as they were."""
    will_retry: bool
    """Whether the run was postponed because the summarizer was unavailable."""
    kept_from_seq: int | None
    """Seq of the first event after those that the new summaries cover; null if there are none."""
