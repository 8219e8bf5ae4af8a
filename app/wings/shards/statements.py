"""Second forms of the store's statements, each of which goes to one shard, or to all of them in parallel.

Citus sends a statement to a single shard only if it writes one table, takes the session id of new rows from a row, and
does not read the queue, which is on the coordinator. So some statements of the store become several in one transaction.
A record without a named type cannot leave its node, so lists are JSON here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from app.store import answers, audit, calls, compactions, event_log, layers, lines, log, reports, sessions, view_reads
from app.store.driver import STATEMENTS_KNOWN_MAX
from app.store.rows import EVENT_COLUMNS


def _replace_parts(sql: str, replacements: Mapping[str, str]) -> str:
    """Return a statement with parts replaced. Raises ValueError for a part that it does not have exactly once."""
    for part, other in replacements.items():
        if sql.count(part) != 1:
            raise ValueError(f"{part!r} is not once in {sql}")
        sql = sql.replace(part, other)
    return sql


_MAIN_VIEW: Final = "FROM (SELECT) one LEFT JOIN views v ON v.session_id = :session_id AND v.view = 'main'"
_DUE: Final = log.DUE.replace("old.tokens + :batch_tokens", "s.tokens").replace("old.covered", "s.covered")
APPEND_MOVE: Final = (
    _replace_parts(log.EXTEND_SESSION, {"\nWHERE s.session_id": f"\n{_MAIN_VIEW}\nWHERE s.session_id"})
    + f"{log.BEFORE}, {log.VIEW}, s.updated_at AS now, s.streamed_until, coalesce({_DUE}, false) AS due"
)
_BEFORE: Final = f"SELECT s.session_id, {log.BEFORE}, s.updated_at FROM sessions s WHERE s.session_id = :session_id"
APPEND_INSERT: Final = _replace_parts(
    log.INSERT,
    {
        ":session_id": "old.session_id",
        "gist, body)": "gist, body, created_at)",
        "b.body::json": "b.body::json, old.updated_at",  # one time for all rows, whichever node's clock it is
        "FROM old, batch b": f"FROM ({_BEFORE}) old, ({log.BATCH}) b",
    },
)

IS_UNCHANGED: Final = f"SELECT {_replace_parts(calls.COMPACTION_COLUMN, {compactions.QUEUED: ''})} {calls.IF_UNCHANGED}"
MOVE_VIEW: Final = _replace_parts(calls.MOVE, {":session_id": "s.session_id", " FROM allowed": f" {calls.IN_SESSION}"})
OPEN_EPOCH: Final = f"INSERT INTO epochs ({calls.EPOCH_COLUMNS}) VALUES ({calls.EPOCH_VALUES})"

OWN_CALL: Final = (
    "SELECT s.external_id FROM model_calls m JOIN sessions s ON s.session_id = m.session_id "
    "WHERE m.session_id = :session_id AND m.call_id = :call_id"
)

_LIST: Final = "ARRAY(SELECT ROW("
_TEXT: Final = {
    view_reads.TAIL_BODY: f"({view_reads.TAIL_BODY})::text",
    layers.COLUMNS: layers.COLUMNS.replace("content", "(content)::text"),
    EVENT_COLUMNS: EVENT_COLUMNS.replace("body", "(body)::text"),
}
"""Columns of lists, those in JSON as text: they are stored byte for byte, and would become part of the list."""


def _find_closing(sql: str, start: int) -> int:
    """Return where the parenthesis before `start` is closed."""
    depth = 1
    for found in re.compile(r"[()]").finditer(sql, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis is not closed: {sql[start:]}")


def _lists_as_json(sql: str) -> str:
    """Return a statement that reads a view with its lists as JSON, and without the queue."""
    sql = _replace_parts(sql, {compactions.QUEUED: ""})
    for columns, as_text in _TEXT.items():
        sql = sql.replace(columns, as_text)
    while (start := sql.find(_LIST)) >= 0:
        row = start + len(_LIST)
        row_end = _find_closing(sql, row)
        end = _find_closing(sql, start + len("ARRAY("))
        rows = f"SELECT json_build_array({sql[row:row_end]}) AS columns {sql[row_end + 2 : end]}"
        listed = f"(SELECT coalesce(json_agg(one.columns), '[]') FROM ({rows}) AS one)"
        sql = sql[:start] + listed + sql[end + 1 :]
    return sql


VIEWS: Final[Mapping[str, str]] = {
    view_reads.LOAD: _lists_as_json(view_reads.LOAD),
    view_reads.CHANGES: _lists_as_json(view_reads.CHANGES),
}
LISTS: Final[Mapping[str, Sequence[int]]] = {
    **dict.fromkeys(("decided", "cover", "folded", "layers"), ()),
    "calibrations": (1, 2, 7),
    "events": (12,),
}
"""The lists of a view's row, with the indexes of their float columns."""


def read_list(text: str, floats: Sequence[int]) -> list[list[Any]]:
    """Return the rows of a JSON list; `floats` are the indexes of float columns."""
    rows: list[list[Any]] = json.loads(text)
    for row in rows:
        for index in floats:
            row[index] = None if row[index] is None else float(row[index])
    return rows


# Citus would compare the tenant with the policy's before it reads any row, which it cannot do under an outer join.
_TENANT: Final = {"s.tenant_id = :tenant_id": "s.tenant_id = ANY(ARRAY[:tenant_id::uuid])"}
# Each shard returns its newest calls.
_PARTS: Final[Mapping[str, str]] = {
    sessions.LISTED: _replace_parts(sessions.LISTED, _TENANT),
    sessions.WITH_LINES: _replace_parts(sessions.WITH_LINES, _TENANT),
    audit.OF_LINES: (
        "SELECT m.* FROM model_calls m WHERE m.tenant_id = :tenant_id::uuid "
        "AND m.session_id = ANY(:session_ids::uuid[]) "
        "AND m.call_id BETWEEN :oldest_id::uuid AND :newest_id::uuid ORDER BY m.call_id DESC"
    ),
    audit.NAME: "m.session_id",
    audit.PAGE: f"""
SELECT session_id, {audit.COLUMNS} FROM model_calls
WHERE session_id = ANY(:session_ids::uuid[]) AND tenant_id = :tenant_id
  AND call_id < CASE WHEN :before::uuid IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff' ELSE :before END
  AND (:view::text IS NULL OR view = :view) ORDER BY call_id DESC LIMIT :limit
""",
}
"""Parts of statements, with those that replace them."""


@lru_cache(maxsize=STATEMENTS_KNOWN_MAX)
def rewritten(sql: str) -> str:
    """Return the form of a statement that Citus accepts."""
    for part, other in _PARTS.items():
        sql = sql.replace(part, other)
    return sql


HOT: Final[Mapping[str, str]] = {
    "a session's row": sessions.ONE,
    "append: the session": APPEND_MOVE,
    "append: the events": APPEND_INSERT,
    "an idempotent answer: stored": answers.STORE,
    "an idempotent answer: found": answers.FIND,
    "a view, whole": VIEWS[view_reads.LOAD],
    "a view, its changes": VIEWS[view_reads.CHANGES],
    "a view's last call": view_reads.LAST_CALL,
    "a view as of an earlier seq": view_reads.AS_OF,
    "a call": calls.RECORD_CALL,
    "a held view: whether it is current": IS_UNCHANGED,
    "an epoch: the view": MOVE_VIEW,
    "an epoch": OPEN_EPOCH,
    "events in order": f"{event_log.RANGE} ORDER BY seq".format(columns=EVENT_COLUMNS),
    "events in order and by their seqs": f"{event_log.READ} ORDER BY seq".format(columns=EVENT_COLUMNS),
    "the newest events": event_log.NEWEST,
    "events by their client ids": event_log.BY_IDS,
    "a whole list: its links": lines.ADD_LINKS,
    "a whole list: the end of its line's chain": lines.EXTEND_CHAIN,
    "a whole list: its line": lines.LONGEST,
    "a whole list: a line's tip": lines.TIP,
    "an outcome: its call's session": OWN_CALL,
    "an outcome: its call": audit.LOCK_CALL,
    "an outcome: the view": reports.LOCK_VIEW,
    "an outcome": reports.STORE,
    "an outcome: the changed view": reports.CHANGE_VIEW,
}
"""The statements that appends and contexts execute, at least once per request, by purpose."""
