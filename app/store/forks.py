"""Making a fork: rows of its own for the session, its views, their epochs and what stands in its covers.

Neither events nor what summaries say is copied: the first are read where their owners stand (`lineage.py`), of the
second only where they are (`summaries.origin`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.errors import InvalidRequest, NotFound
from app.core.log.event import SessionState
from app.core.log.events import Json, canonical_json
from app.core.log.segments import AsOf, InheritableSummary, Segments, ancestry, cover_at, whole
from app.store import lineage
from app.store.engine import Connection, Database
from app.store.sessions import session_key, state_of

EPOCH_COLUMNS: Final = (
    "tenant_id, view, epoch, head, cause, frontier, floor, kept, stubbed, tokens_before, tokens_after, created_at,"
    " folded, evictions, evicted, changed_seq, stable_tokens"
)
SUMMARY_COLUMNS: Final = (
    "tenant_id, id, depth, from_seq, to_seq, tokens, source_tokens, events, turns, split_turn, starts_at, ends_at,"
    " summarizer, model, prompt_version, degraded, sources, created_at"
)
"""What a fork's own rows take over as it is; with what is set for each, these are all columns of their tables."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A session under its lock, about to be forked at `log`'s end."""

    session_id: UUID
    row: asyncpg.Record
    log: Segments
    as_of: AsOf


async def parent(tx: Connection, tenant_id: UUID, external_id: str, at: int | None) -> Parent:
    """A session as it was when its head was `at` (None: as it is), locked until the transaction ends.

    Raises NotFound, or InvalidRequest when there is no such seq. As it is, it is known from its row; as it was, its log
    up to `at` is looked through once.
    """
    key = session_key(tenant_id, external_id)
    row = await tx.fetchrow(
        "SELECT * FROM sessions WHERE session_id = $1 AND tenant_id = $2 FOR NO KEY UPDATE", key, tenant_id
    )
    if row is None:
        raise NotFound(f"there is no session {external_id!r}", session=external_id)
    at = row["head"] if at is None else at
    if at > row["head"]:
        raise InvalidRequest(f"at is {at}, but the head is {row['head']}", field="at")
    log = whole(ancestry(row["lineage_ids"], row["lineage_to"]), key, at)
    if at == row["head"]:
        pinned = tuple(row["pinned_seqs"])
        return Parent(
            key, row, log, AsOf(state_of(row), row["system_seq"], row["tools_seq"], tuple(row["user_seqs"]), pinned)
        )
    return Parent(key, row, log, await lineage.as_of_end(tx, log) if at else AsOf(SessionState()))


_SESSION: Final = """
INSERT INTO sessions (session_id, tenant_id, external_id, policy_name, policy_version, model, estimator, metadata, head,
    turns, turn_id, awaits_user, tokens, open_calls, system_seq, tools_seq, user_seqs, pinned_seqs, decisions,
    redactions, parent, parent_at, lineage_ids, lineage_to, outside_tokens)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24,
    $25)
ON CONFLICT DO NOTHING RETURNING session_id
"""


async def create(
    tx: Connection, tenant_id: UUID, origin: Parent, external_id: str, metadata: Mapping[str, Json]
) -> UUID | None:
    """The fork's row, with what was decided about and erased of the events it shares; None if the name is taken."""
    key, row, as_of = session_key(tenant_id, external_id), origin.row, origin.as_of
    state, at = as_of.state, as_of.state.head
    calls = {call_id: {"seq": call.seq, "tool": call.tool} for call_id, call in state.open_calls.items()}
    decided = await tx.fetch(
        "SELECT seq, decision, action FROM visibility WHERE session_id = $1 AND head <= $2 ORDER BY decision, action",
        origin.session_id,
        at,
    )
    erased = await tx.fetch("SELECT seq FROM redactions WHERE session_id = $1 AND seq <= $2", origin.session_id, at)
    made = await tx.fetchrow(
        _SESSION,
        key,
        tenant_id,
        external_id,
        row["policy_name"],
        row["policy_version"],
        row["model"],
        row["estimator"],
        canonical_json(metadata),
        at,
        state.turns,
        state.turn.turn_id,
        state.turn.awaits_user,
        state.tokens,
        canonical_json(calls),
        as_of.system_seq,
        as_of.tools_seq,
        list(as_of.user_seqs),
        _pinned(as_of.pinned_seqs, decided),
        max((one["decision"] for one in decided), default=0),
        len(erased),
        row["external_id"],
        at,
        [segment.session_id for segment in origin.log],
        [segment.to_seq for segment in origin.log],
        row["outside_tokens"],
    )
    if made is None:
        return None
    await tx.execute(
        "INSERT INTO visibility (session_id, tenant_id, seq, decision, action, head, replacement, path, created_at) "
        "SELECT $1, tenant_id, seq, decision, action, head, replacement, path, created_at FROM visibility "
        "WHERE session_id = $2 AND head <= $3",
        key,
        origin.session_id,
        at,
    )
    await tx.execute(
        "INSERT INTO redactions (session_id, tenant_id, seq, key_id, created_at) "
        "SELECT $1, tenant_id, seq, key_id, created_at FROM redactions WHERE session_id = $2 AND seq <= $3",
        key,
        origin.session_id,
        at,
    )
    return key


def _pinned(seqs: Sequence[int], decided: Sequence[asyncpg.Record]) -> list[int]:
    """What is pinned after these decisions, in their order."""
    pinned = set(seqs)
    for one in decided:
        if one["action"] == "pin":
            pinned.add(one["seq"])
        elif one["action"] == "unpin":
            pinned.discard(one["seq"])
    return sorted(pinned)


async def take_over_summaries(
    tx: Connection, origin: Parent, fork_id: UUID, covers: Mapping[UUID, UUID]
) -> frozenset[UUID]:
    """Of each of the parent's `covers` (to the fork's) what stands for the fork's log, and what that was made of.

    Returns the ids of the summaries that the fork can read.
    """
    at = origin.as_of.state.head
    rows = await tx.fetch(
        "SELECT id, cover_id, from_seq, to_seq, status = 'live' AS live FROM summaries WHERE session_id = $1 "
        "AND to_seq <= $2 AND status IN ('live', 'superseded') AND (text <> '' OR origin IS NOT NULL) "
        "AND cover_id = ANY($3) ORDER BY created_at, id",
        origin.session_id,
        at,
        list(covers),
    )
    live: set[UUID] = set()
    for old in covers:
        candidates = [
            InheritableSummary(r["id"], r["from_seq"], r["to_seq"], r["live"]) for r in rows if r["cover_id"] == old
        ]
        live |= {one.id for one in cover_at(candidates, at)}
    wanted = {row["id"] for row in rows}
    await tx.execute(
        f"INSERT INTO summaries (session_id, cover_id, text, digest, usage, status, origin, {SUMMARY_COLUMNS}) "
        "SELECT $1, m.new, '', '{}', '{}', CASE WHEN id = ANY($4) THEN 'live' ELSE 'superseded' END, "
        f"coalesce(origin, session_id), {SUMMARY_COLUMNS} FROM summaries "
        "JOIN unnest($5::uuid[], $6::uuid[]) AS m(old, new) ON m.old = cover_id WHERE session_id = $2 AND id = ANY($3)",
        fork_id,
        origin.session_id,
        list(wanted),
        list(live),
        list(covers),
        list(covers.values()),
    )
    covered = max((r["to_seq"] for r in rows if r["id"] in live and covers[r["cover_id"]] == fork_id), default=0)
    _, tokens = await lineage.tokens_at(tx, origin.log, covered)
    await tx.execute("UPDATE sessions SET covered_tokens = $2 WHERE session_id = $1", fork_id, tokens)
    return frozenset(wanted)


# The newest epoch that knew nothing of what came behind the fork, unless the view waits to be planned afresh.
_VIEWS: Final = """
SELECT v.*, e.epoch AS stands_at, e.head AS epoch_head, e.tokens_after, e.folded
FROM views v LEFT JOIN LATERAL (
    SELECT * FROM epochs WHERE session_id = $1 AND view = v.view AND head <= $2
    ORDER BY epoch DESC LIMIT 1
) e ON v.afresh IS NULL
WHERE v.session_id = $1 AND v.tenant_id = $3
"""
_VIEW: Final = """
INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, model, window_tokens, epoch, epochs,
    target, carry_tokens, afresh, learned, learned_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
"""


async def take_over_views(
    tx: Connection, tenant_id: UUID, origin: Parent, fork_id: UUID, readable: frozenset[UUID]
) -> None:
    """The parent's views as they were, so that a fork's first context begins with the bytes the provider holds.

    One whose epoch as of then names a summary that can no longer be read is planned afresh, under its settings.
    """
    for view in await tx.fetch(_VIEWS, origin.session_id, origin.as_of.state.head, tenant_id):
        epoch = view["stands_at"]
        if epoch is not None and not readable.issuperset(view["folded"]):
            epoch = None
        carry = 0
        if epoch is not None:
            await tx.execute(
                f"INSERT INTO epochs (session_id, {EPOCH_COLUMNS}) SELECT $1, {EPOCH_COLUMNS} FROM epochs "
                "WHERE session_id = $2 AND view = $3 AND epoch = $4",
                fork_id,
                origin.session_id,
                view["view"],
                epoch,
            )
            carry = view["carry_tokens"]
            if epoch != view["epoch"]:  # about so much, as a call of that time would have said
                _, tokens = await lineage.tokens_at(tx, origin.log, view["epoch_head"])
                carry = view["tokens_after"] - tokens
        await tx.execute(
            _VIEW,
            fork_id,
            tenant_id,
            view["view"],
            view["policy_name"],
            view["policy_version"],
            view["model"],
            view["window_tokens"],
            epoch or 1,
            epoch or 1,
            view["target"],
            carry,
            None if epoch else "fork",
            view["learned"],
            view["learned_version"],
        )


async def policies_of(connection: Connection | Database, session_id: UUID) -> list[tuple[str, int]]:
    """The policies a session and its views are read with."""
    rows = await connection.fetch(
        "SELECT policy_name, policy_version FROM sessions WHERE session_id = $1 "
        "UNION SELECT policy_name, policy_version FROM views WHERE session_id = $1",
        session_id,
    )
    return [(row["policy_name"], row["policy_version"]) for row in rows]
