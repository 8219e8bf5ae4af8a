"""A distributed database: its settings, and the store's functions in statements that each go to one shard.

A shard has neither the workers' queue nor listeners, so triggers there cannot queue or notify. Code that opens an epoch
or changes a compaction run is therefore followed by a function that touches no shard: it runs on the coordinator, in
the same transaction. The change, its stream entry and its webhook deliveries are stored in the session's shard and
committed together; afterwards the coordinator commits the deliveries' jobs and notifies. If a crash prevents the second
commit, workers find deliveries without a job every minute, and a stream reads the missed changes whenever it
reconnects.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.lexicon.times import to_seconds
from app.store import answers, audit, calibrations, calls, compactions, jobs, lines, log, reports
from app.store.driver import numbered
from app.store.engine import LOCK_MS, Connection, Database, Executor
from app.store.ids import SessionRef
from app.store.rows import Row
from app.tracing import tracer
from app.wings.shards import statements
from app.wings.shards.statements import rewritten

# A statement's shard is known only by its values, so it is planned with them; and the tenant set for a transaction must
# be set on the shard as well. Citus hides shards from the catalog with a filter that makes the driver's look-up of a
# type take seconds.
SHARD_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "citus.propagate_set_commands": "local",
    "citus.override_table_visibility": "off",
}

QUEUE_CONNECTIONS: Final = 2
"""Additional connections of each process to a distributed database, for the queue alone."""
PARSE_ON_LOOP_CHARS: Final = 100_000
"""Parsing more characters than this would delay other requests by more than a millisecond."""
_CONSTRAINT: Final = re.compile(r'constraint "(.+?)"')
_ON_NODES: Final = 0x70616C696361  # the key of an advisory lock on the coordinator

Values = Mapping[str, Any]


class Shards:
    """The placement of sessions in shards.

    Statements about the workers' queue run on a pool of their own, where each is a transaction committed before the one
    that it belongs to. A single transaction across nodes would commit on the shard first, and a crash before its commit
    on the coordinator would lose a job. Code that adds or releases a job holds the lock on the session's row, which is
    freed only after the queue has changed.
    """

    settings = SHARD_SETTINGS

    def __init__(self, database: Database) -> None:
        self._queue = database.without_placement(QUEUE_CONNECTIONS)
        self._others: Mapping[str, Callable[[Connection, str, str, Values], Awaitable[object]]] = {
            **dict.fromkeys((log.APPEND, log.APPEND_WITH_KEY), self._append),
            **dict.fromkeys((calls.RECORD_EPOCH, *calls.WITH_KEY.values()), self._record),
            **dict.fromkeys((calls.RECORD_CALL_IF_UNCHANGED, calls.RECORD_EPOCH_IF_UNCHANGED), self._record),
            **dict.fromkeys(statements.VIEWS, self._read_view),
            **dict.fromkeys((compactions.SCHEDULE, compactions.BEGIN, compactions.RESCHEDULE), change_runs),
            **dict.fromkeys((compactions.END, compactions.RETRY), change_runs),
            compactions.ENQUEUE: self._enqueue,
            lines.ADD_AND_EXTEND: _add_and_extend,
            lines.OF_CALL: _lines_of_call,
            **dict.fromkeys((calibrations.LOCK, calibrations.LOCK_IF_FREE), _lock_calibration),
            audit.LOCK: _lock_call,
            **dict.fromkeys(reports.STORES.values(), _store_outcome),
        }
        """Statements of the store that are executed in another way."""

    def transaction_settings(self, settings: Mapping[str, str], tenant: str) -> Sequence[str]:
        """Return statements that set a transaction's settings here, and its tenant on the shards, too."""
        # Citus repeats a SET LOCAL on the nodes, but not this call: as our role, the nodes would find no rows for the
        # functions that read across tenants as the tables' owner.
        here = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        return (*((f"SELECT {here}",) if here else ()), f"SET LOCAL lock_timeout = '{LOCK_MS}'; {tenant}")

    async def run(self, on: Executor, method: str, sql: str, values: Mapping[str, object]) -> object:
        """Return the result of a statement of the store."""
        if sql in _ON_QUEUE:
            return await getattr(self._queue, method)(sql, **values)
        other = self._others.get(sql) or (_named_calls if audit.NAME in sql else _rewritten)

        async def run(tx: Connection) -> object:
            try:
                return await other(tx, method, sql, values)
            except asyncpg.IntegrityConstraintViolationError as error:
                # Citus passes on a node's message, but not the name of the constraint.
                if error.constraint_name is None and (found := _CONSTRAINT.search(str(error))) is not None:
                    error.constraint_name = found[1]
                raise

        return await on.run_in_transaction(run)

    async def aclose(self) -> None:
        """Close the queue's pool."""
        await self._queue.close()

    async def _queue_compaction(self, ref: SessionRef) -> bool:
        """Queue a session's compaction, unless its job waits or runs; return whether it was queued.

        The caller must hold the lock on the session's row and have written the work to do: a job that is running looks
        for it again under that lock before it releases the session.
        """
        row = await self._queue.fetchrow(
            "SELECT palimpsest_compact(:session_id, :tenant_id) AS queued", **ref._asdict()
        )
        queued = row is not None and bool(row["queued"])
        if queued:
            await jobs.store_trace_context(self._queue, ref.session_id, tracer.get().link_headers())
        return queued

    async def _compaction_state(self, session_id: UUID, runs: str) -> str:
        """Return a session's compaction state, given the state of its runs: the queue has jobs without a run yet."""
        if runs not in ("none", "failed"):
            return runs
        row = await self._queue.fetchrow(
            "SELECT FROM pgqueuer WHERE dedupe_key = :key AND status IN ('queued', 'picked')",
            key=f"compact:{session_id}",
        )
        return runs if row is None else "scheduled"

    async def _append(self, tx: Connection, method: str, sql: str, values: Values) -> Row | None:
        """Append in statements that each go to the session's shard: two, and a third with a key."""
        row = await tx.fetchrow(statements.APPEND_MOVE, **_parameters(statements.APPEND_MOVE, values))
        if row is None:
            return None
        ref, count = SessionRef(values["session_id"], values["tenant_id"]), values["count"]
        await tx.execute(statements.APPEND_INSERT, **_parameters(statements.APPEND_INSERT, values))
        if "key" in values:
            head, tokens = row["head"] + count, row["tokens"] + values["batch_tokens"] + row["carry_tokens"]
            answer = {"head": head, "first": row["head"] + 1, "turns": row["turns"], "epoch": row["epoch"]}
            answer |= {"tokens": tokens, "target": row["target"]}
            await answers.store(tx, ref, values["key"], values["request_sha256"], answer)
        if row["due"]:
            await self._queue_compaction(ref)
        if row["streamed_until"] is not None and row["streamed_until"] > row["now"]:
            await tx.execute(
                "SELECT pg_notify(:channel, :session)", channel=log.STREAM_CHANNEL, session=str(ref.session_id)
            )
        # Not true, with which the caller would store the job's trace context again.
        return {**row, "stored_at": to_seconds(row["now"]), "enqueued": False if row["due"] else None}

    async def _record(self, tx: Connection, method: str, sql: str, values: Values) -> Row | None:
        """Record a call in statements that each go to the session's shard, if the held view, if any, is current."""
        state = "none"
        if "held_epoch" in values:
            row = await tx.fetchrow(statements.IS_UNCHANGED, **_parameters(statements.IS_UNCHANGED, values))
            if row is None:
                return None
            state = row["compaction"]
        if "cause" in values:
            if await tx.fetchrow(statements.MOVE_VIEW, **_parameters(statements.MOVE_VIEW, values)) is None:
                return None
            await tx.execute(statements.OPEN_EPOCH, **_parameters(statements.OPEN_EPOCH, values))
        if await tx.fetchrow(calls.RECORD_CALL, **_parameters(calls.RECORD_CALL, values)) is None:
            return None
        if "cause" in values:
            await notify_epoch_opened(tx, values["session_id"], values["view"], values["epoch"])
        if "key" in values:
            await tx.execute(
                answers.STORE, **{**_parameters(answers.STORE, values), "session_id": values["of_session"]}
            )
        if values.get("compacting"):
            state = await self._compaction_state(values["session_id"], state)
        return {"compaction": state}

    async def _read_view(self, tx: Connection, method: str, sql: str, values: Values) -> Row | None:
        """Read a view, with its lists as JSON."""
        row = await tx.fetchrow(statements.VIEWS[sql], **values)
        if row is None:
            return None
        lists = {name: (row[name], floats) for name, floats in statements.LISTS.items() if row.get(name) is not None}

        def read() -> dict[str, object]:
            return {name: statements.read_list(text, floats) for name, (text, floats) in lists.items()}

        large = sum(len(text) for text, _ in lists.values()) > PARSE_ON_LOOP_CHARS
        now = await self._compaction_state(values["session_id"], row["compaction"])
        return {**row, **(await asyncio.to_thread(read) if large else read()), "compaction": now}

    async def _enqueue(self, tx: Connection, method: str, sql: str, values: Values) -> None:
        """Queue a compaction while the session's row is locked."""
        lock = "SELECT session_id FROM sessions WHERE session_id = :session_id FOR NO KEY UPDATE"
        if await tx.fetchrow(lock, session_id=values["session_id"]) is not None:
            await self._queue_compaction(SessionRef(values["session_id"], values["tenant_id"]))


_ON_QUEUE: Final = frozenset(
    (jobs.QUEUES, jobs.MAKE_DUE, jobs.RELEASE, jobs.QUEUED_SECONDS, jobs.STORE_TRACE, jobs.TRACE)
)
"""Statements about the workers' queue."""


def _parameters(sql: str, values: Values) -> dict[str, object]:
    """Return those of the values that are parameters of a statement."""
    return {name: values[name] for name in numbered(sql)[1]}


async def _rewritten(tx: Connection, method: str, sql: str, values: Values) -> object:
    """Run the form of a statement that Citus accepts."""
    return await tx.send(method, rewritten(sql), values)


async def _named_calls(tx: Connection, method: str, sql: str, values: Values) -> Sequence[Row]:
    """Return calls with their sessions' names, which cannot be looked up per row."""
    rows = await tx.fetch(rewritten(sql), **values)
    named = await tx.fetch(
        "SELECT session_id, external_id FROM sessions WHERE session_id = ANY(:session_ids::uuid[]) "
        "AND tenant_id = :tenant_id",
        session_ids=list({row["session_id"] for row in rows}),
        tenant_id=values["tenant_id"],
    )
    names = {row["session_id"]: row["external_id"] for row in named}
    return [{**row, "external_id": names.get(row["session_id"])} for row in rows]


async def _add_and_extend(tx: Connection, method: str, sql: str, values: Values) -> None:
    """Add links to a chain, in the session's shard, and extend a line, which may be in another one."""
    await tx.execute(lines.ADD_LINKS, **_parameters(lines.ADD_LINKS, values))
    await tx.execute(lines.EXTEND_CHAIN, **_parameters(lines.EXTEND_CHAIN, values))


async def _lines_of_call(tx: Connection, method: str, sql: str, values: Values) -> object:
    """Look at the session's first line first: further ones may be in any shard, and few sessions have one."""
    found = await tx.fetch(statements.OWN_CALL, **_parameters(statements.OWN_CALL, values))
    return found or await tx.send(method, sql, values)


async def _lock_calibration(tx: Connection, method: str, sql: str, values: Values) -> object:
    """Lock a calibration when it is this transaction's turn: on several nodes a lock is on the whole table."""
    turn = "pg_advisory_xact_lock(:key) IS NOT NULL" if sql == calibrations.LOCK else "pg_try_advisory_xact_lock(:key)"
    row = await tx.fetchrow(f"SELECT {turn} AS mine", key=_ON_NODES)
    return await tx.send(method, sql, values) if row is not None and row["mine"] else None


async def _lock_call(tx: Connection, method: str, sql: str, values: Values) -> Row | None:
    """Lock a call and its view in the session's shard; its model's calibration, which is elsewhere, is left out."""
    call = await tx.fetchrow(audit.LOCK_CALL, **values)
    if call is None:
        return None
    view = await tx.fetchrow(reports.LOCK_VIEW, session_id=values["session_id"], view=call["view"])
    return {**call, **(view or {"view_window_tokens": None}), "locked": None, "previous": None}


async def _store_outcome(tx: Connection, method: str, sql: str, values: Values) -> None:
    """Store an outcome and what it changes, one table after the other."""
    for part in (reports.STORE, reports.CHANGE_VIEW, calibrations.SAVE):
        if part in sql:
            await tx.send(method, rewritten(part), _parameters(part, values))


async def notify_epoch_opened(tx: Connection, session_id: UUID, view: str, epoch: int) -> None:
    """Notify of an epoch that this transaction has stored."""
    await tx.execute(
        "SELECT palimpsest_epoch_opened(:session_id, :view, :epoch)", session_id=session_id, view=view, epoch=epoch
    )


async def change_runs(tx: Connection, method: str, sql: str, values: Values) -> object:
    """Run a statement that creates or changes compaction runs, and notify of those whose state has changed."""
    session_id, ids = values["session_id"], values["ids"] if "ids" in values else [values["id"]]
    rows = await tx.fetch(
        "SELECT id, state, tokens_before FROM compactions WHERE session_id = :session_id AND id = ANY(:ids) "
        "FOR NO KEY UPDATE",
        session_id=session_id,
        ids=ids,
    )
    was = {row["id"]: (row["state"], row["tokens_before"]) for row in rows}
    result = await tx.send(method, sql, values)
    for id in ids:
        state, tokens = was.get(id, (None, None))
        await tx.execute(
            "SELECT palimpsest_compaction_moved(:session_id, :id, :state, :tokens)",
            session_id=session_id,
            id=id,
            state=state,
            tokens=tokens,
        )
    return result
