"""Layers: versions of what is shown behind the conversation. The newest of each kind counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core.log.events import LAYERS
from app.core.render.layers import Content, Layer
from app.store import texts
from app.store.engine import Connection, Database
from app.store.rows import columns, decode

_CURRENT: Final = f"""
    SELECT l.* FROM unnest(ARRAY{list(LAYERS)}) kind, LATERAL (
        SELECT * FROM layers l WHERE l.session_id = :session_id AND l.kind = kind.kind ORDER BY version DESC LIMIT 1
    ) l WHERE l.content IS NOT NULL"""

_LAYER: Final = "kind, version, content, turn"

CURRENT: Final = f"""
    CASE WHEN $row.layers_version > 0 THEN ARRAY(SELECT ROW({_LAYER}) FROM ({_CURRENT}) c)
    END AS layers, $row.layers_version"""
"""For a read that knows the session's row as `$row`, its key as `:session_id`: nothing is looked for where none was."""


def _layer(kind: str, version: int, content: str, turn: int | None) -> Layer:
    """Of the values of _LAYER."""
    return Layer(kind, version, texts.loads(content), turn)


def listed(records: Iterable[Sequence[Any]] | None, held: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """The layers of CURRENT; those that are `held` already, with what is known of them."""
    known = {(one.kind, one.version): one for one in held}
    return tuple(known.get((kind, version)) or _layer(kind, version, *rest) for kind, version, *rest in records or ())


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer as it stands, with what its session's estimator counts for it."""

    layer: Layer
    tokens: int
    created_at: datetime


async def current(connection: Connection | Database, session_id: UUID) -> tuple[StoredLayer, ...]:
    """The newest version of each kind that has content, also those whose turn is over."""
    rows = await connection.fetch(
        f"SELECT ROW({_LAYER}) AS layer, tokens, created_at FROM ({_CURRENT}) c", session_id=session_id
    )
    return tuple(StoredLayer(_layer(*row["layer"]), row["tokens"], row["created_at"]) for row in rows)


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
        "WHERE session_id = :session_id AND tenant_id = :tenant_id RETURNING layers_version, version), "
        "stored AS (INSERT INTO layers (session_id, tenant_id, kind, version, content, tokens, turn) "
        "SELECT :session_id, :tenant_id, :kind, layers_version, :content, :tokens, :turn FROM moved) "
        "SELECT version FROM moved",
        session_id=session_id,
        tenant_id=tenant_id,
        kind=kind,
        content=None if content is None else texts.dumps(content),
        tokens=tokens,
        turn=turn,
    )
    if row is None:
        raise RuntimeError("a session that was locked is not there")
    return int(row["version"])


async def announced(tx: Connection, session_id: UUID, seq: int) -> str | None:
    """The content of an event that was announced, as JSON: when a turn ends, its layer becomes one. None of another."""
    row = await tx.fetchrow(
        "SELECT (body -> 'content')::text AS said FROM events "
        "WHERE session_id = :session_id AND seq = :seq AND type = 'announce'",
        session_id=session_id,
        seq=seq,
    )
    return None if row is None else row["said"]


async def forget(tx: Connection, session_id: UUID, said: str) -> None:
    """Destroy what was announced in these words. The transaction must be a redaction of this session."""
    await tx.execute(
        "UPDATE layers SET content = NULL, tokens = 0 "
        "WHERE session_id = :session_id AND kind = 'announce' AND content::text = :text",
        session_id=session_id,
        text=said,
    )


async def named(database: Database, session_id: UUID, versions: Sequence[int]) -> tuple[Layer, ...]:
    """The versions that a call's record names, in the order in which they are shown."""
    rows = await database.fetch(
        f"SELECT {_LAYER} FROM layers WHERE session_id = :session_id AND kind = ANY(:kinds) "
        "AND version = ANY(:versions) AND content IS NOT NULL",
        session_id=session_id,
        kinds=list(LAYERS),
        versions=list(versions),
    )
    return tuple(sorted((_layer(*row) for row in rows), key=lambda one: LAYERS.index(one.kind)))


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
    session_id, kind, version = after
    rows = await database.fetch(
        f"SELECT {columns(Outdated)} FROM palimpsest_across_layers(:session_id, :kind, :version, :limit)",
        session_id=session_id,
        kind=kind,
        version=version,
        limit=limit,
    )
    return [decode(Outdated, row) for row in rows]


async def sweep(tx: Connection, outdated: Sequence[Outdated], calls: Sequence[tuple[UUID, UUID]]) -> int:
    """Delete those versions of a tenant in whose time no call was made: with an id from the first on and below the
    second of its pair in `calls`. How many went."""
    await tx.execute("SELECT set_config('palimpsest.sweeping', 'layers', true)")
    rows = await tx.fetch(
        "DELETE FROM layers l USING unnest("
        ":session_ids::uuid[], :kinds::text[], :versions::int[], :first_calls::uuid[], :end_calls::uuid[]) "
        "AS o(session_id, kind, version, first_call, end_call) "
        "WHERE l.session_id = o.session_id AND l.kind = o.kind AND l.version = o.version AND NOT EXISTS ("
        "SELECT FROM model_calls m WHERE m.session_id = o.session_id AND m.call_id >= o.first_call "
        "AND m.call_id < o.end_call) RETURNING 1",
        session_ids=[one.session_id for one in outdated],
        kinds=[one.kind for one in outdated],
        versions=[one.version for one in outdated],
        first_calls=[first for first, _ in calls],
        end_calls=[end for _, end in calls],
    )
    return len(rows)
