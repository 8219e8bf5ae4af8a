"""Writing the log: one statement to append; an event is redacted in place. It is read by event_log.py."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from app.core.compaction.next_span import Readiness
from app.core.log.event import Batch, LogEnd, tombstone
from app.core.log.events import EventType, canonical_json
from app.core.log.turns import TurnState, moves_state
from app.store import texts
from app.store.engine import Connection, Database
from app.store.event_log import SessionLog
from app.store.sessions import open_calls


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append landed on: the log's end before it, and the main view's epoch, budget and carried tokens.

    `stored_at` is the time of the transaction in epoch seconds, `woke` whether a worker is to look at the session.
    """

    before: LogEnd
    epoch: int
    target: int | None
    carry_tokens: int
    stored_at: float
    woke: bool = False


# One round trip: check what the batch stands on, take the seqs, insert all. When a condition does not hold (any more),
# `old` is empty and nothing happens; the caller then finds out why under the lock. The conditions are on the row as it
# is updated, so concurrent writers cannot slip between. What the batch needs of the row before it is put together again
# from the row behind it: reading it first under a lock of its own would be a second way to the row, and by two ways
# appends that began before the row's last change can come to wait for each other.
# Only a session that somebody streams tells of it (docs/decisions: every notifying commit waits for the one before it).
_APPEND: Final = """
WITH old AS (
    UPDATE sessions s SET head = s.head + $25, turns = s.turns + $26, tokens = s.tokens + $27,
        turn_id = CASE WHEN $28 THEN $29 ELSE s.turn_id END,
        awaits_user = CASE WHEN $28 THEN $30 ELSE s.awaits_user END,
        answered = CASE WHEN cardinality($6::text[]) = 0 THEN '{}'
                        ELSE (SELECT jsonb_object_agg(id, s.open_calls -> id) FROM unnest($6::text[]) id) END,
        open_calls = CASE WHEN $31 THEN (s.open_calls - $6::text[]) || (
            SELECT coalesce(jsonb_object_agg(o.call_id, jsonb_build_object('seq', s.head + o.n, 'tool', o.tool)), '{}')
            FROM unnest($22::text[], $23::int[], $24::text[]) AS o(call_id, n, tool)) ELSE s.open_calls END,
        system_seq = coalesce(s.head + $35::int, s.system_seq),
        tools_seq = coalesce(s.head + $36::int, s.tools_seq),
        user_seqs = CASE WHEN $38 THEN ARRAY(SELECT s.head + n FROM unnest($37::int[]) n)
                         WHEN cardinality($37) = 0 THEN s.user_seqs
                         ELSE s.user_seqs || ARRAY(SELECT s.head + n FROM unnest($37::int[]) n) END,
        pinned_seqs = CASE WHEN cardinality($39::int[]) = 0 THEN s.pinned_seqs
                           ELSE s.pinned_seqs || ARRAY(SELECT s.head + n FROM unnest($39::int[]) n) END,
        updated_at = now()
    WHERE session_id = $1 AND tenant_id = $2
      AND ($3::bigint IS NULL OR head = $3)
      AND ($4::boolean IS NULL OR (awaits_user = $4 AND turn_id IS NOT DISTINCT FROM $5))
      AND ($34::text IS NULL OR estimator = $34)
      AND ($45::uuid[] IS NULL OR lineage_ids = $45)
      AND open_calls ?& $6::text[] AND NOT open_calls ?| $7::text[]
    RETURNING s.head - $25 AS head, s.turns - $26 AS turns, s.tokens - $27 AS tokens, answered, covered_tokens,
              streamed_until
), batch AS (
    SELECT * FROM unnest($8::int[], $9::int[], $10::text[], $11::text[], $12::text[], $13::text[], $14::int[],
                         $15::text[], $16::bool[], $17::bool[], $18::int[], $19::bigint[], $20::text[], $21::text[])
        AS b(n, turn_n, type, event_id, call_id, tool, call_n, author, pinned, is_error, tokens, cum, gist, body)
), kept_key AS (
    INSERT INTO appends (session_id, tenant_id, key, request_sha256, answer)
    SELECT $1, $2, $32, $33, json_build_object('head', old.head + $25, 'first', old.head + 1, 'turns', old.turns,
        'epoch', coalesce(v.epoch, 0), 'tokens', old.tokens + $27 + coalesce(v.carry_tokens, 0), 'target', v.target)
    FROM old LEFT JOIN views v ON v.session_id = $1 AND v.view = 'main' WHERE $32::text IS NOT NULL
), inserted AS (
    INSERT INTO events (session_id, tenant_id, seq, turn, type, event_id, call_id, tool, call_seq, author, pinned,
                        is_error, tokens, cum_tokens, gist, body)
    SELECT $1, $2, old.head + b.n, old.turns + b.turn_n, b.type, b.event_id, b.call_id,
           CASE WHEN b.type = 'tool.result'
                THEN coalesce(b.tool, old.answered -> b.call_id ->> 'tool') ELSE b.tool END,
           CASE WHEN b.type = 'tool.result'
                THEN coalesce(old.head + b.call_n, (old.answered -> b.call_id ->> 'seq')::bigint) END,
           b.author, b.pinned, b.is_error, b.tokens, old.tokens + b.cum, b.gist, b.body::json
    FROM old, batch b
)
SELECT old.*, coalesce(v.epoch, 0) AS epoch, v.target, coalesce(v.carry_tokens, 0) AS carry_tokens,
       extract(epoch FROM now())::float8 AS stored_at,
       CASE WHEN old.tokens + $27 + coalesce(v.carry_tokens, 0) >= $40::float8 * coalesce(v.target, $41)
             AND old.tokens + $27 - old.covered_tokens
                 >= least($46::float8, $42::float8 * coalesce(v.target, $41))
                  + least($43::float8, $44::float8 * coalesce(v.target, $41))
            THEN palimpsest_compact($1, $2) END AS enqueued,
       CASE WHEN old.streamed_until > now() THEN pg_notify('palimpsest_stream', $1::text) END AS told
FROM old LEFT JOIN views v ON v.session_id = $1 AND v.view = 'main'
"""


@dataclass(frozen=True, slots=True)
class CompactionTrigger:
    """When an append lets a worker look at the session: from `ratio` of the view's target on (of `target` before its
    first context), once more of the log is covered by no summary than what stays and what the next one is at least of.
    """

    ratio: float
    target: int
    readiness: Readiness


async def append(
    connection: Connection | Database,
    session_id: UUID,
    tenant_id: UUID,
    batch: Batch,
    bodies: Sequence[str],
    *,
    expected_head: int | None,
    expected_turn: TurnState | None,
    expected_estimator: str | None,
    expected_log: SessionLog | None,
    key: str | None,
    request_sha256: bytes | None,
    ring: CompactionTrigger | None = None,
) -> AppendResult | None:
    """Append the batch, or None when the session does not stand as the batch needs it (or is not there).

    Raises asyncpg.UniqueViolationError when the key or an event id has been used before.
    """
    placed = batch.placed
    users = [p for p in placed if p.draft.type is EventType.USER_MESSAGE]
    row = await connection.fetchrow(
        _APPEND,
        session_id,
        tenant_id,
        expected_head,
        None if expected_turn is None else expected_turn.awaits_user,
        None if expected_turn is None else expected_turn.turn_id,
        list(batch.needs_open),
        list(batch.starts),
        [p.offset for p in placed],
        [p.turn_offset for p in placed],
        [p.draft.type.value for p in placed],
        [p.draft.id for p in placed],
        [p.draft.call_id for p in placed],
        [p.tool for p in placed],
        [p.call_offset for p in placed],
        [p.draft.author for p in placed],
        [bool(p.draft.pinned) for p in placed],
        [bool(p.draft.is_error) for p in placed],
        [p.tokens for p in placed],
        [p.tokens_through for p in placed],
        [p.gist for p in placed],
        [texts.stored(body) for body in bodies],
        list(batch.opens),
        [offset for offset, _ in batch.opens.values()],
        [tool for _, tool in batch.opens.values()],
        len(placed),
        batch.turns_begun,
        batch.tokens,
        expected_turn is not None or moves_state([p.draft for p in placed]),
        batch.turn_after.turn_id,
        batch.turn_after.awaits_user,
        bool(batch.needs_open or batch.opens),
        key,
        request_sha256,
        expected_estimator,
        _last(batch, EventType.SYSTEM_PROMPT),
        _last(batch, EventType.TOOLS),
        [p.offset for p in users if p.turn_offset == batch.turns_begun],
        batch.turns_begun > 0,
        [p.offset for p in placed if p.draft.pinned],
        None if ring is None else ring.ratio,
        0 if ring is None else ring.target,
        0.0 if ring is None else ring.readiness.keep,
        0.0 if ring is None else ring.readiness.least_tokens,
        0.0 if ring is None else ring.readiness.least,
        None if expected_log is None else list(expected_log.ancestors),
        0.0 if ring is None else ring.readiness.keep_tokens,
    )
    if row is None:
        return None
    woke = row["enqueued"] is not None
    before = LogEnd(row["head"], row["turns"], row["tokens"], open_calls(row["answered"]))
    return AppendResult(before, row["epoch"], row["target"], row["carry_tokens"], row["stored_at"], woke)


def _last(batch: Batch, kind: EventType) -> int | None:
    """The offset of the batch's last event of a type."""
    return next((p.offset for p in reversed(batch.placed) if p.draft.type is kind), None)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A request that was answered before under an idempotency key."""

    request_sha256: bytes
    answer: Mapping[str, Any]


async def remembered(connection: Connection, session_id: UUID, key: str) -> Remembered | None:
    """What was answered under this key."""
    row = await connection.fetchrow(
        "SELECT request_sha256, answer FROM appends WHERE session_id = :session AND key = :key",
        session=session_id,
        key=key,
    )
    return None if row is None else Remembered(bytes(row["request_sha256"]), json.loads(row["answer"]))


async def remember(
    tx: Connection, session_id: UUID, tenant_id: UUID, key: str, request_sha256: bytes, answer: Mapping[str, object]
) -> None:
    """Keep what a request that appended nothing was answered from, as an append keeps it."""
    await tx.execute(
        "INSERT INTO appends (session_id, tenant_id, key, request_sha256, answer) "
        "VALUES (:session, :tenant, :key, :request_sha256, :answer)",
        session=session_id,
        tenant=tenant_id,
        key=key,
        request_sha256=request_sha256,
        answer=canonical_json(answer),
    )


async def redact(tx: Connection, session_id: UUID, seq: int) -> bool | None:
    """Destroy what an event said; what ties it to others stays. False when it was before, None without such an event.

    The session must be locked by this transaction.
    """
    row = await tx.fetchrow(
        "SELECT body FROM events WHERE session_id = :session AND seq = :seq", session=session_id, seq=seq
    )
    if row is None:
        return None
    before = await tx.fetchrow(
        "SELECT FROM redactions WHERE session_id = :session AND seq = :seq", session=session_id, seq=seq
    )
    if before is not None:
        return False
    await _redacting(tx, session_id)
    await tx.execute(
        "UPDATE events SET body = :body::json, gist = NULL WHERE session_id = :session AND seq = :seq",
        session=session_id,
        seq=seq,
        body=texts.dumps(tombstone(texts.loads(row["body"]))),
    )
    return True


async def note_redaction(tx: Connection, session_id: UUID, tenant_id: UUID, seq: int, key_id: UUID | None) -> None:
    """Record that an event of a session, its own or shared, was erased; from here on the transaction is a redaction of
    this session, which it must hold locked."""
    await tx.execute(
        "INSERT INTO redactions (session_id, tenant_id, seq, key_id, created_at) "
        "VALUES (:session, :tenant, :seq, :key_id, clock_timestamp())",  # in the lock's order
        session=session_id,
        tenant=tenant_id,
        seq=seq,
        key_id=key_id,
    )
    await tx.execute("UPDATE sessions SET redactions = redactions + 1 WHERE session_id = :session", session=session_id)
    await _redacting(tx, session_id)


async def _redacting(tx: Connection, session_id: UUID) -> None:
    await tx.execute("SELECT set_config('palimpsest.redacting', :session, true)", session=str(session_id))
