"""Checks after the load: no acknowledged event is lost, and recorded calls render again."""

import json
from collections.abc import Sequence
from random import Random
from typing import Final

import asyncpg
from palimpsest import PalimpsestError

from app.core.render.formats import FORMATS
from bench.quality.servers import Stack
from bench.soak.mix import Written
from palimpsest_tools.recordings.recording import Object
from palimpsest_tools.replay.run import check_log

SESSIONS: Final = 8
"""Sessions whose logs are read back and whose calls are all rendered again."""
_LOGS: Final = """
SELECT s.external_id AS name, s.head, s.parent_at, count(e.seq) AS events, coalesce(max(e.seq), 0) AS last
FROM sessions s LEFT JOIN events e USING (session_id) GROUP BY s.session_id
"""


async def lost(dsn: str, written: Sequence[Written], erased: Sequence[str]) -> list[str]:
    """Return the sessions whose log differs from what was acknowledged: too short, with a gap, or not erased."""
    raw = await asyncpg.connect(dsn)
    try:
        rows = {row["name"]: row for row in await raw.fetch(_LOGS)}
    finally:
        await raw.close()
    found = [f"{one.name}: not there" for one in written if one.name not in rows]
    for one in written:
        row = rows.get(one.name)
        if row is not None and row["head"] < one.head:
            found.append(f"{one.name}: {row['head']} events, {one.head} were acknowledged")
    for name, row in rows.items():
        own = row["head"] - (row["parent_at"] or 0)
        if row["events"] != own or (own and row["last"] != row["head"]):
            found.append(f"{name}: a head of {row['head']}, and {row['events']} events up to {row['last']}")
    return found + [f"{name}: erased, and there" for name in erased if name in rows]


async def sample(stack: Stack, written: Sequence[Written], form: str) -> tuple[int, list[str]]:
    """Compare some sessions with what was posted and render their calls; return the calls and the faults."""
    calls, wrong = 0, []
    for one in Random(1).sample(list(written), min(SESSIONS, len(written))):
        _, faults = await check_log(stack.client.session(one.name), posted(one, form))
        wrong += [f"{one.name}: {fault}" for fault in faults]
        recorded = await stack.all(f"/v1/sessions/{one.name}/calls")
        calls += len(recorded)
        if len(recorded) != one.calls:
            wrong.append(f"{one.name}: {one.calls} contexts were answered, {len(recorded)} are recorded")
        for call in recorded:
            try:
                again = await stack.client.session(call["line"]).get_call_context(call["call_id"])
            except PalimpsestError as problem:
                wrong.append(f"{one.name}, call {call['call_id']}: {problem}")
                continue
            if again.sha256 != call["sha256"]:
                wrong.append(f"{one.name}, call {call['call_id']}: other bytes")
    return calls, wrong


def posted(written: Written, form: str) -> list[Object]:
    """Return the events that were posted to a session."""
    events = [json.loads(text) for text in written.life.head]
    for step in written.life.steps[: written.steps]:
        events += FORMATS[form].read([json.loads(text) for text in step.messages])
    return events
