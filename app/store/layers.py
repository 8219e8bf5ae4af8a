"""Layers: versions of what is shown behind the conversation. The newest of each kind counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core.log.events import LAYERS
from app.core.log.segments import Segments, ancestry, whole
from app.core.render.layers import Content, Layer
from app.store import texts
from app.store.engine import Connection, Database

_CURRENT: Final = f"""
    SELECT l.* FROM unnest(ARRAY{list(LAYERS)}) kind, LATERAL (
        SELECT * FROM layers l WHERE l.session_id = $1 AND l.kind = kind.kind ORDER BY version DESC LIMIT 1
    ) l WHERE l.content IS NOT NULL"""

CURRENT: Final = f"""
    CASE WHEN $row.layers_version > 0 THEN ARRAY(SELECT ROW(c.kind, c.version, c.content, c.turn) FROM ({_CURRENT}) c)
    END AS layers, $row.layers_version"""
"""For a read that knows the session's row as `$row` and its key as $1: nothing is looked for where there was none."""


def layer(record: Sequence[Any]) -> Layer:
    """A record of kind, version, content and turn."""
    kind, version, content, turn = record
    return Layer(kind, version, texts.loads(content), turn)


def listed(records: Sequence[Sequence[Any]] | None, held: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """The layers of CURRENT; those that are `held` already, with what is known of them."""
    known = {(one.kind, one.version): one for one in held}
    return tuple(known.get((record[0], record[1])) or layer(record) for record in records or ())


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer as it stands, with what its session's estimator counts for it."""

    layer: Layer
    tokens: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LockedSession:
    """A session under its lock: its head, its running turn, the owners of its log, and its layers."""

    head: int
    turn: int
    log: Segments
    layers: tuple[StoredLayer, ...]


async def current(connection: Connection | Database, session_id: UUID) -> tuple[StoredLayer, ...]:
    """The newest version of each kind that has content, also those whose turn is over."""
    rows = await connection.fetch(_CURRENT, session_id)
    return tuple(
        StoredLayer(
            layer((row["kind"], row["version"], row["content"], row["turn"])),
            row["tokens"],
            row["created_at"],
        )
        for row in rows
    )


async def lock(tx: Connection, session_id: UUID, tenant_id: UUID) -> LockedSession | None:
    """What there is, and the session held until the transaction ends; None without a session."""
    row = await tx.fetchrow(
        "SELECT head, turns, lineage_ids, lineage_to FROM sessions WHERE session_id = $1 AND tenant_id = $2 "
        "FOR NO KEY UPDATE",
        session_id,
        tenant_id,
    )
    if row is None:
        return None
    segments = whole(ancestry(row["lineage_ids"], row["lineage_to"]), session_id, row["head"])
    return LockedSession(row["head"], row["turns"], segments, await current(tx, session_id))


async def put(
    tx: Connection,
    session_id: UUID,
    tenant_id: UUID,
    kind: str,
    content: Content | None,
    *,
    tokens: int,
    turn: int | None,
) -> int:
    """Store a new version of a layer, without content where it is taken away; return the session's version thereafter.

    The session must be locked.
    """
    row = await tx.fetchrow(
        "WITH moved AS (UPDATE sessions SET layers_version = layers_version + 1, updated_at = now() "
        "WHERE session_id = $1 AND tenant_id = $2 RETURNING layers_version, version), "
        "stored AS (INSERT INTO layers (session_id, tenant_id, kind, version, content, tokens, turn) "
        "SELECT $1, $2, $3, layers_version, $4, $5, $6 FROM moved) SELECT version FROM moved",
        session_id,
        tenant_id,
        kind,
        None if content is None else texts.dumps(content),
        tokens,
        turn,
    )
    if row is None:
        raise RuntimeError("a session that was locked is not there")
    return int(row["version"])


async def announced(tx: Connection, session_id: UUID, seq: int) -> str | None:
    """The content of an event that was announced, as JSON: when a turn ends, its layer becomes one. None of another."""
    row = await tx.fetchrow(
        "SELECT (body -> 'content')::text AS said FROM events WHERE session_id = $1 AND seq = $2 AND type = 'announce'",
        session_id,
        seq,
    )
    return None if row is None else row["said"]


async def forget(tx: Connection, session_id: UUID, said: str) -> None:
    """Destroy what was announced in these words. The transaction must be a redaction of this session."""
    await tx.execute(
        "UPDATE layers SET content = NULL, tokens = 0 "
        "WHERE session_id = $1 AND kind = 'announce' AND content::text = $2",
        session_id,
        said,
    )


async def named(database: Database, session_id: UUID, versions: Sequence[int]) -> tuple[Layer, ...]:
    """The versions that a call's record names, in the order in which they are shown."""
    rows = await database.fetch(
        "SELECT kind, version, content, turn FROM layers WHERE session_id = $1 AND kind = ANY($2) "
        "AND version = ANY($3) AND content IS NOT NULL",
        session_id,
        list(LAYERS),
        list(versions),
    )
    return tuple(sorted((layer(tuple(row)) for row in rows), key=lambda one: LAYERS.index(one.kind)))


@dataclass(frozen=True, slots=True)
class Outdated:
    """A version, and when the next one of its kind was put; None while it is the newest, and for an hour thereafter:
    a context that shows it may be under way."""

    tenant_id: UUID
    session_id: UUID
    kind: str
    version: int
    created_at: datetime
    until: datetime | None


async def page(database: Database, after: tuple[UUID, str, int], limit: int) -> list[Outdated]:
    """Versions of all tenants' sessions, in the order of their key."""
    rows = await database.fetch(
        "SELECT tenant_id, session_id, kind, version, created_at, until FROM palimpsest_across_layers($1, $2, $3, $4)",
        *after,
        limit,
    )
    return [Outdated(*row) for row in rows]


async def sweep(tx: Connection, outdated: Sequence[Outdated], calls: Sequence[tuple[UUID, UUID]]) -> int:
    """Delete those versions of a tenant in whose time no call was made: with an id from the first on and below the
    second of its pair in `calls`. How many went."""
    await tx.execute("SELECT set_config('palimpsest.sweeping', 'layers', true)")
    rows = await tx.fetch(
        "DELETE FROM layers l USING unnest($1::uuid[], $2::text[], $3::int[], $4::uuid[], $5::uuid[]) "
        "AS o(session_id, kind, version, first_call, end_call) "
        "WHERE l.session_id = o.session_id AND l.kind = o.kind AND l.version = o.version AND NOT EXISTS ("
        "SELECT FROM model_calls m WHERE m.session_id = o.session_id AND m.call_id >= o.first_call "
        "AND m.call_id < o.end_call) RETURNING 1",
        [one.session_id for one in outdated],
        [one.kind for one in outdated],
        [one.version for one in outdated],
        [first for first, _ in calls],
        [end for _, end in calls],
    )
    return len(rows)
