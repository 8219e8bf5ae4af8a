"""What the records of calls hold, in the database itself."""

import asyncpg

from app.core.audit.manifest import CallManifest, from_json
from app.store import texts
from app.store.engine import Database

_COLUMNS = """
    SELECT manifest::text AS manifest, clock, window_tokens, outside_tokens, tools_tokens, system_tokens,
           ephemeral_tokens, breakpoint_tokens, breakpoint_blocks
    FROM model_calls ORDER BY call_id
"""


async def manifests(connection: asyncpg.Connection | Database) -> list[CallManifest]:
    """The stored manifests. What statements read of each stands in the columns of its row, and is the same."""
    found = []
    for row in await connection.fetch(_COLUMNS):
        made_with = from_json(texts.loads(row["manifest"]))
        read = (row["clock"], row["window_tokens"], row["outside_tokens"] or 0)
        assert read == (made_with.now, made_with.window, made_with.outside)
        for source in ("tools", "system", "ephemeral"):
            assert row[f"{source}_tokens"] == made_with.by_source[source]
        points = list(zip(row["breakpoint_tokens"] or (), row["breakpoint_blocks"] or (), strict=True))
        assert points == [(point.tokens, point.blocks) for point in made_with.breakpoints if point.tokens is not None]
        found.append(made_with)
    return found
