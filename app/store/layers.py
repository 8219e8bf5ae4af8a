"""Layers: versions of the content shown after the conversation. The newest version of each kind applies."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core.log.events import LAYERS, Json
from app.core.render.layers import Layer
from app.store import texts
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef
from app.store.rows import columns, decode

DECODE_ON_LOOP_TOKENS: Final = 32_768
"""Layers with more tokens in total are decoded in a thread."""

_CURRENT: Final = f"""
    SELECT l.* FROM unnest(ARRAY{list(LAYERS)}) kind, LATERAL (
        SELECT * FROM layers l WHERE l.session_id = :session_id AND l.kind = kind.kind ORDER BY version DESC LIMIT 1
    ) l WHERE l.content IS NOT NULL"""

COLUMNS: Final = "kind, version, content, turn"


def current_of(session: str) -> str:
    """Return the SQL columns of a session's layers and their version, for a statement that has the session's row.
    Nothing is looked up for a session that never had a layer."""
    listed = f"ARRAY(SELECT ROW({COLUMNS}) FROM ({_CURRENT}) c)"
    return f"CASE WHEN {session}.layers_version > 0 THEN {listed} END AS layers, {session}.layers_version"


def _layer(kind: str, version: int, content: str, turn: int | None) -> Layer:
    """Decode the values of COLUMNS."""
    return Layer(kind, version, texts.loads(content), turn)


def listed(records: Iterable[Sequence[Any]] | None, held: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """Decode the layers of `current_of`. Those in `held` are returned from there, since their tokens are counted."""
    known = {(one.kind, one.version): one for one in held}
    return tuple(known.get((kind, version)) or _layer(kind, version, *rest) for kind, version, *rest in records or ())


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """The newest version of a layer, with its tokens by the session's estimator."""

    layer: Layer
    tokens: int
    created_at: datetime


async def current(connection: Executor, session_id: UUID) -> tuple[StoredLayer, ...]:
    """Return the newest version of each kind with content, including one whose turn is over."""
    rows = await connection.fetch(
        f"SELECT ROW({COLUMNS}) AS layer, tokens, created_at FROM ({_CURRENT}) c", session_id=session_id
    )

    def decoded() -> tuple[StoredLayer, ...]:
        return tuple(StoredLayer(_layer(*row["layer"]), row["tokens"], row["created_at"]) for row in rows)

    large = sum(row["tokens"] for row in rows) > DECODE_ON_LOOP_TOKENS
    return await asyncio.to_thread(decoded) if large else decoded()


async def put(tx: Connection, ref: SessionRef, kind: str, text: str | None, *, tokens: int, turn: int | None) -> int:
    """Store the next version of a layer, and return the session's `version`, which counts its changes.

    `text` is the content as `texts.dumps` writes it; None removes the layer. The session must be locked."""
    row = await tx.fetchrow(
        "WITH moved AS (UPDATE sessions SET layers_version = layers_version + 1, updated_at = now() "
        "WHERE session_id = :session_id AND tenant_id = :tenant_id RETURNING layers_version, version), "
        "stored AS (INSERT INTO layers (session_id, tenant_id, kind, version, content, tokens, turn) "
        "SELECT :session_id, :tenant_id, :kind, layers_version, :content, :tokens, :turn FROM moved RETURNING 1) "
        "SELECT version FROM moved",
        **ref._asdict(),
        kind=kind,
        content=text,
        tokens=tokens,
        turn=turn,
    )
    if row is None:
        raise RuntimeError("a session that was locked is not there")
    return int(row["version"])


async def announced(tx: Connection, session_id: UUID, seq: int) -> Json:
    """Return the content of an announce event; None if the event is of another type."""
    row = await tx.fetchrow(
        "SELECT body FROM events WHERE session_id = :session_id AND seq = :seq AND type = 'announce'",
        session_id=session_id,
        seq=seq,
    )
    return None if row is None else texts.loads(row["body"]).get("content")


async def redact_announcements(tx: Connection, session_id: UUID, content: Json) -> None:
    """Erase the announcements with this content. The transaction must be a redaction of this session."""
    rows = await tx.fetch(
        "SELECT version, content FROM layers "
        "WHERE session_id = :session_id AND kind = 'announce' AND content IS NOT NULL",
        session_id=session_id,
    )
    await tx.execute(
        "UPDATE layers SET content = NULL, tokens = 0 "
        "WHERE session_id = :session_id AND kind = 'announce' AND version = ANY(:versions::int[])",
        session_id=session_id,
        versions=[row["version"] for row in rows if texts.loads(row["content"]) == content],
    )


async def named(database: Database, session_id: UUID, versions: Sequence[int]) -> tuple[Layer, ...]:
    """Return the layers of these versions, in the order in which they are shown."""
    rows = await database.fetch(
        f"SELECT {COLUMNS} FROM layers WHERE session_id = :session_id AND kind = ANY(:kinds) "
        "AND version = ANY(:versions) AND content IS NOT NULL",
        session_id=session_id,
        kinds=list(LAYERS),
        versions=list(versions),
    )
    return tuple(sorted((_layer(*row) for row in rows), key=lambda one: LAYERS.index(one.kind)))


@dataclass(frozen=True, slots=True)
class LayerVersion:
    """A version of a layer. `until` is the time when the next of its kind was stored. It is None while the version is
    the newest, and for an hour after: a context that shows it may be in progress."""

    tenant_id: UUID
    session_id: UUID
    kind: str
    version: int
    created_at: datetime
    until: datetime | None


async def page(database: Database, after: tuple[UUID, str, int], limit: int) -> list[LayerVersion]:
    """Return a page of all tenants' layer versions, in the order of their keys."""
    session_id, kind, version = after
    rows = await database.fetch(
        f"SELECT {columns(LayerVersion)} FROM palimpsest_across_layers(:session_id, :kind, :version, :limit)",
        session_id=session_id,
        kind=kind,
        version=version,
        limit=limit,
    )
    return [decode(LayerVersion, row) for row in rows]


async def sweep(tx: Connection, outdated: Sequence[LayerVersion], calls: Sequence[tuple[UUID, UUID]]) -> int:
    """Delete those of a tenant's versions during which no call was made; return the number deleted. `calls` has for
    each version the first call id of its time, and the first one after it."""
    await tx.execute("SET LOCAL palimpsest.sweeping = 'layers'")
    of_session: dict[UUID, list[tuple[LayerVersion, tuple[UUID, UUID]]]] = {}
    for one, times in zip(outdated, calls, strict=True):
        of_session.setdefault(one.session_id, []).append((one, times))
    return sum([await _sweep(tx, session_id, old) for session_id, old in of_session.items()])


async def _sweep(tx: Connection, session_id: UUID, old: Sequence[tuple[LayerVersion, tuple[UUID, UUID]]]) -> int:
    """Delete the unused versions of one session."""
    rows = await tx.fetch(
        "DELETE FROM layers l USING unnest(:kinds::text[], :versions::int[], :first_calls::uuid[], :end_calls::uuid[]) "
        "AS o(kind, version, first_call, end_call) "
        "WHERE l.session_id = :session_id AND l.kind = o.kind AND l.version = o.version AND NOT EXISTS ("
        "SELECT FROM model_calls m WHERE m.session_id = :session_id AND m.call_id >= o.first_call "
        "AND m.call_id < o.end_call) RETURNING 1",
        session_id=session_id,
        kinds=[one.kind for one, _ in old],
        versions=[one.version for one, _ in old],
        first_calls=[first for _, (first, _) in old],
        end_calls=[end for _, (_, end) in old],
    )
    return len(rows)
