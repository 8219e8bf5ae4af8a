"""Writes to the log: an append in one statement, a redaction in place. Reads are in event_log.py."""

import json
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple
from uuid import UUID

from app.core import dataclass
from app.core.compaction.next_span import Readiness
from app.core.log.appends import Batch, LogEnd, TurnState, changes_turn_state
from app.core.log.event import tombstone
from app.core.log.events import EventType
from app.store import jobs, texts
from app.store.engine import Connection, Executor
from app.store.ids import SessionRef
from app.store.rows import LEGIBLE_IN_BODY
from app.store.sessions import open_calls
from app.tracing import tracer


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The state that an append found: the log's end before it, and the main view's epoch, budget and carried tokens.

    `stored_at` is the time of the transaction in epoch seconds; `is_due`: a compaction is queued, by it or before."""

    before: LogEnd
    epoch: int
    target: int | None
    carry_tokens: int
    stored_at: float
    is_due: bool = False


class AppendSettings(NamedTuple):
    """The settings and ancestors that a batch's tokens and trigger were computed from, by the parameters' names.

    Nothing is appended if the session's differ. `AppendSettings()` compares nothing.
    """

    estimator: str | None = None
    model: str | None = None
    policy_name: str | None = None
    policy_version: int | None = None
    lineage_ids: list[UUID] | None = None


# Check the batch's conditions, take its seqs, and insert its events. If a condition does not hold, no row is updated,
# and nothing happens; the caller then finds the reason under the lock. The conditions are on the row as it is updated:
# concurrent writers cannot come between. The values before the batch are computed from the updated row: reading them
# first, FOR UPDATE, would lock the row twice, and two such appends can deadlock if the row changed after they began.
EXTEND_SESSION: Final = """
UPDATE sessions s SET head = s.head + :count, turns = s.turns + :turns_begun, tokens = s.tokens + :batch_tokens,
    turn_id = CASE WHEN :moves_turn THEN :turn_id_after ELSE s.turn_id END,
    awaits_user = CASE WHEN :moves_turn THEN :awaits_user_after ELSE s.awaits_user END,
    answered = CASE WHEN cardinality(:needs_open::text[]) = 0 THEN '{}'
                    ELSE (SELECT jsonb_object_agg(id, s.open_calls -> id) FROM unnest(:needs_open::text[]) id) END,
    open_calls = CASE WHEN :moves_calls THEN (s.open_calls - :needs_open::text[]) || (
        SELECT coalesce(jsonb_object_agg(o.call_id, jsonb_build_object('seq', s.head + o.n, 'tool', o.tool)), '{}')
        FROM unnest(:opened_ids::text[], :opened_ns::int[], :opened_tools::text[])
            AS o(call_id, n, tool)) ELSE s.open_calls END,
    system_seq = coalesce(s.head + :system_n::int, s.system_seq),
    tools_seq = coalesce(s.head + :tools_n::int, s.tools_seq),
    user_seqs = CASE WHEN :new_turn THEN ARRAY(SELECT s.head + n FROM unnest(:user_ns::int[]) n)
                     WHEN cardinality(:user_ns) = 0 THEN s.user_seqs
                     ELSE s.user_seqs || ARRAY(SELECT s.head + n FROM unnest(:user_ns::int[]) n) END,
    pinned_seqs = CASE WHEN cardinality(:pinned_ns::int[]) = 0 THEN s.pinned_seqs
                       ELSE s.pinned_seqs || ARRAY(SELECT s.head + n FROM unnest(:pinned_ns::int[]) n) END,
    updated_at = now()
WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id
  AND (:expected_head::bigint IS NULL OR s.head = :expected_head)
  AND (:awaits_user::boolean IS NULL OR (s.awaits_user = :awaits_user AND s.turn_id IS NOT DISTINCT FROM :turn_id))
  AND (:estimator::text IS NULL OR (s.estimator = :estimator AND s.lineage_ids = :lineage_ids::uuid[]
       AND s.model IS NOT DISTINCT FROM :model AND s.policy_name = :policy_name AND s.policy_version = :policy_version))
  AND NOT (:current_line_only AND s.line IS NOT NULL)
  AND s.open_calls ?& :needs_open::text[] AND NOT s.open_calls ?| :starts::text[]
RETURNING """
BEFORE: Final = (
    "s.head - :count AS head, s.turns - :turns_begun AS turns, s.tokens - :batch_tokens AS tokens, s.answered"
)
BATCH: Final = """
SELECT * FROM ROWS FROM (
    json_to_recordset(:rows::json) AS (n int, turn_n int, type text, event_id text, call_id text, tool text,
        call_n int, author text, pinned bool, is_error bool, tokens int, cum bigint, gist text),
    unnest(:bodies::text[])
) AS b(n, turn_n, type, event_id, call_id, tool, call_n, author, pinned, is_error, tokens, cum, gist, body)
"""
INSERT: Final = """
INSERT INTO events (session_id, tenant_id, seq, turn, type, event_id, call_id, tool, call_seq, author, pinned,
                    is_error, tokens, cum_tokens, gist, body)
SELECT :session_id, :tenant_id, old.head + b.n, old.turns + b.turn_n, b.type, b.event_id, b.call_id,
       CASE WHEN b.type = 'tool.result'
            THEN coalesce(b.tool, old.answered -> b.call_id ->> 'tool') ELSE b.tool END,
       CASE WHEN b.type = 'tool.result'
            THEN coalesce(old.head + b.call_n, (old.answered -> b.call_id ->> 'seq')::bigint) END,
       b.author, b.pinned, b.is_error, b.tokens, old.tokens + b.cum, b.gist, b.body::json
FROM old, batch b
"""
VIEW: Final = "coalesce(v.epoch, 0) AS epoch, v.target, coalesce(v.carry_tokens, 0) AS carry_tokens"
DUE: Final = """
old.tokens + :batch_tokens + coalesce(v.carry_tokens, 0) >= :ratio::float8 * coalesce(v.target, :first_target)
             AND old.tokens + :batch_tokens - old.covered_tokens
                 >= least(:keep_tokens::float8, :keep::float8 * coalesce(v.target, :first_target))
                  + least(:least_tokens::float8, :least::float8 * coalesce(v.target, :first_target))"""

STREAM_CHANNEL: Final = "palimpsest_stream"
"""The channel that is notified, with its key, when a session with an open stream grows or is erased."""

# One round trip. Only a session that is being streamed notifies (docs/decisions/0012: every notifying commit waits for
# the one before it).
APPEND: Final = f"""
WITH old AS ({EXTEND_SESSION} {BEFORE}, s.covered_tokens, s.streamed_until
), batch AS ({BATCH}), inserted AS (
    {INSERT}
)
SELECT old.*, {VIEW}, extract(epoch FROM now())::float8 AS stored_at,
       CASE WHEN {DUE}
            THEN palimpsest_compact(:session_id, :tenant_id) END AS enqueued,
       CASE WHEN old.streamed_until > now() THEN pg_notify('{STREAM_CHANNEL}', :session_id::text) END AS notified
FROM old LEFT JOIN views v ON v.session_id = :session_id AND v.view = 'main'
"""
APPEND_WITH_KEY: Final = APPEND.replace(
    "), inserted AS (",
    """), kept_key AS (
    INSERT INTO appends (session_id, tenant_id, key, request_sha256, answer)
    SELECT :session_id, :tenant_id, :key, :request_sha256, json_build_object(
        'head', old.head + :count, 'first', old.head + 1, 'turns', old.turns, 'epoch', coalesce(v.epoch, 0),
        'tokens', old.tokens + :batch_tokens + coalesce(v.carry_tokens, 0), 'target', v.target)
    FROM old LEFT JOIN views v ON v.session_id = :session_id AND v.view = 'main'
), inserted AS (""",
)
"""The statement for a request with a key: it also stores the facts from which the response can be rebuilt."""


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """The condition on which an append queues a compaction. Both must hold: the main view's next context has at least
    `ratio` of its target (None: never; `target` is used before its first context), and the tokens not yet summarized
    exceed the part that stays verbatim by at least the minimum for a summary (`readiness`)."""

    ratio: float | None
    target: int
    readiness: Readiness


NO_TRIGGER: Final = CompactionTrigger(None, 0, Readiness(0.0, 0.0, 0.0, 0.0))
"""A condition that never holds."""


async def append(
    connection: Executor,
    ref: SessionRef,
    batch: Batch,
    bodies: Sequence[str],
    *,
    expected_head: int | None,
    expected_turn: TurnState | None,
    expected: AppendSettings,
    key: str | None,
    request_sha256: bytes | None,
    trigger: CompactionTrigger,
    current_line_only: bool = False,
) -> AppendResult | None:
    """Append the batch; return None if the session's state does not allow it, or the session is missing.

    `expected_head`: the log's last seq. `expected_turn`: the state of the turn, None if the batch does not depend on
    it. `expected`: the settings. `current_line_only`: the row must be the session's current line. Raises
    asyncpg.UniqueViolationError if the key or an event id has been used before.
    """
    kept = {} if key is None else {"key": key, "request_sha256": request_sha256}
    row = await connection.fetchrow(
        APPEND if key is None else APPEND_WITH_KEY,
        **ref._asdict(),
        expected_head=expected_head,
        awaits_user=None if expected_turn is None else expected_turn.awaits_user,
        turn_id=None if expected_turn is None else expected_turn.turn_id,
        **expected._asdict(),
        moves_turn=expected_turn is not None or changes_turn_state([p.draft for p in batch.placed]),
        **_changes(batch),
        ratio=trigger.ratio,
        first_target=trigger.target,
        **trigger.readiness._asdict(),
        current_line_only=current_line_only,
        rows=_rows(batch),
        bodies=[texts.stored(body, clear=LEGIBLE_IN_BODY) for body in bodies],
        **kept,
    )
    if row is None:
        return None
    if row["enqueued"]:
        await jobs.store_trace_context(connection, ref.session_id, tracer.get().link_headers())
    before = LogEnd(row["head"], row["turns"], row["tokens"], open_calls(row["answered"]))
    is_due = row["enqueued"] is not None
    return AppendResult(before, row["epoch"], row["target"], row["carry_tokens"], row["stored_at"], is_due)


def _changes(batch: Batch) -> dict[str, object]:
    """Return the changes of a batch to its session's row, as parameters."""
    placed = batch.placed
    users = [p for p in placed if p.draft.type is EventType.USER_MESSAGE]
    return {
        "needs_open": list(batch.needs_open),
        "starts": list(batch.starts),
        "opened_ids": list(batch.opens),
        "opened_ns": [offset for offset, _ in batch.opens.values()],
        "opened_tools": [tool for _, tool in batch.opens.values()],
        "count": len(placed),
        "turns_begun": batch.turns_begun,
        "batch_tokens": batch.tokens,
        "turn_id_after": batch.turn_after.turn_id,
        "awaits_user_after": batch.turn_after.awaits_user,
        "moves_calls": bool(batch.needs_open or batch.opens),
        "system_n": _last(batch, EventType.SYSTEM_PROMPT),
        "tools_n": _last(batch, EventType.TOOLS),
        "user_ns": [p.offset for p in users if p.turn_offset == batch.turns_begun],
        "new_turn": batch.turns_begun > 0,
        "pinned_ns": [p.offset for p in placed if p.draft.pinned],
    }


def _rows(batch: Batch) -> str:
    """Return a batch's events without bodies, as JSON: sending each column as an array takes longer."""
    return json.dumps(
        [
            {
                "n": p.offset,
                "turn_n": p.turn_offset,
                "type": p.draft.type,
                "event_id": p.draft.id,
                "call_id": p.draft.call_id,
                "tool": p.tool,
                "call_n": p.call_offset,
                "author": p.draft.author,
                "pinned": bool(p.draft.pinned),
                "is_error": bool(p.draft.is_error),
                "tokens": p.tokens,
                "cum": p.tokens_through,
                "gist": None if p.gist is None else texts.seal_text(p.gist),
            }
            for p in batch.placed
        ]
    )


def _last(batch: Batch, kind: EventType) -> int | None:
    """Return the offset of the batch's last event of a type."""
    return next((p.offset for p in reversed(batch.placed) if p.draft.type is kind), None)


async def redact_event(tx: Connection, session_id: UUID, seq: int) -> Literal["erased", "was_erased", "missing"]:
    """Erase an event's content, but not its links to others. The session must be locked by this transaction."""
    row = await tx.fetchrow(
        "SELECT body, EXISTS (SELECT FROM redactions WHERE session_id = :session_id AND seq = :seq) AS erased "
        "FROM events WHERE session_id = :session_id AND seq = :seq",
        session_id=session_id,
        seq=seq,
    )
    if row is None or row["erased"]:
        return "missing" if row is None else "was_erased"
    await _allow_redaction(tx, session_id)
    await tx.execute(
        "UPDATE events SET body = :body::json, gist = NULL WHERE session_id = :session_id AND seq = :seq",
        session_id=session_id,
        seq=seq,
        body=texts.dumps(tombstone(texts.loads(row["body"])), clear=LEGIBLE_IN_BODY),
    )
    return "erased"


async def note_redaction(tx: Connection, ref: SessionRef, seq: int, key_id: UUID | None) -> None:
    """Record that an event of a session, its own or shared, was erased. The transaction must hold the session
    locked. Afterwards it may change the session's events and epochs."""
    await tx.execute(
        "INSERT INTO redactions (session_id, tenant_id, seq, key_id, created_at) "
        "VALUES (:session_id, :tenant_id, :seq, :key_id, clock_timestamp())",  # in the order of the locks
        **ref._asdict(),
        seq=seq,
        key_id=key_id,
    )
    await tx.execute(
        "UPDATE sessions SET redactions = redactions + 1 WHERE session_id = :session_id", session_id=ref.session_id
    )
    await _allow_redaction(tx, ref.session_id)


async def _allow_redaction(tx: Connection, session_id: UUID) -> None:
    """Let the transaction change contents of the session's events and epochs, which are immutable otherwise."""
    await tx.execute(f"SET LOCAL palimpsest.redacting = '{session_id}'")
