"""The forms of statements for sessions in shards, derived from the store's."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.store import answers, audit, calibrations, calls, log, reports, sessions, view_reads
from app.store.driver import numbered
from app.store.session_filter import SessionFilter
from app.wings.shards import statements
from app.wings.shards.placement import Shards
from app.wings.shards.statements import rewritten

ACME = UUID(int=1)
TENANT = "s.tenant_id = ANY(ARRAY[:tenant_id::uuid])"


def test_lists_are_read_as_json_and_the_queue_is_not_read() -> None:
    for kernels, ours in statements.VIEWS.items():
        assert "ARRAY(SELECT ROW(" in kernels and "pgqueuer" in kernels
        assert "ARRAY(SELECT ROW(" not in ours and "pgqueuer" not in ours
        assert ours.count("json_build_array(") == kernels.count("ARRAY(SELECT ROW(")
        assert numbered(ours)[1] == numbered(kernels)[1]


def test_bodies_and_contents_are_read_as_text() -> None:
    loaded, changes = (statements.VIEWS[sql] for sql in (view_reads.LOAD, view_reads.CHANGES))
    assert f"({view_reads.TAIL_BODY})::text) AS columns FROM tail" in loaded
    assert "(body)::text) AS columns FROM events" in changes
    assert all("(content)::text, turn) AS columns" in sql for sql in (loaded, changes))


@pytest.mark.parametrize(
    ("ours", "kernels"),
    [
        (statements.APPEND_MOVE, log.APPEND),
        (statements.APPEND_INSERT, log.APPEND),
        (statements.IS_UNCHANGED, calls.RECORD_EPOCH_IF_UNCHANGED),
        (statements.MOVE_VIEW, calls.RECORD_EPOCH),
        (statements.OPEN_EPOCH, calls.RECORD_EPOCH),
        (audit.LOCK_CALL, audit.LOCK),
    ],
)
def test_parts_of_a_statement_need_no_other_parameters(ours: str, kernels: str) -> None:
    assert set(numbered(ours)[1]) <= set(numbered(kernels)[1])
    assert "pgqueuer" not in ours


@pytest.mark.parametrize(("changes_view", "teaches"), reports.STORES)
def test_an_outcome_is_stored_by_the_parts_of_its_statement(changes_view: bool, teaches: bool) -> None:
    sql = reports.STORES[changes_view, teaches]
    parts = [part for part in (reports.STORE, reports.CHANGE_VIEW, calibrations.SAVE) if part in sql]
    assert len(parts) == 1 + changes_view + teaches
    assert {name for part in parts for name in numbered(part)[1]} == set(numbered(sql)[1])


def test_the_tenant_is_an_array_in_lists_of_sessions() -> None:
    listed = rewritten(sessions.listing(ACME, 10, None, SessionFilter(), None)[0])
    assert TENANT in listed and "s.tenant_id = :tenant_id" not in listed
    assert TENANT in rewritten(sessions.WITH_LINES)
    assert rewritten(sessions.ONE) == sessions.ONE


def test_calls_of_several_lines_are_each_shards_newest() -> None:
    page = f"SELECT {audit.COLUMNS}, {audit.NAME} FROM ({audit.OF_LINES} LIMIT :most::int) m"
    for sql in (page, audit.PAGE):
        ours = rewritten(sql)
        assert "LATERAL" in sql and "LATERAL" not in ours and "FROM sessions" not in ours
        assert set(numbered(ours)[1]) == set(numbered(sql)[1])


def test_a_part_that_the_store_no_longer_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not once in"):
        statements._replace_parts("SELECT 1", {"SELECT 2": "SELECT 3"})


class FailingNode:
    """A connection whose every statement fails as on a node of Citus, and its pool."""

    def without_placement(self, pool_size: int) -> "FailingNode":
        return self

    async def run_in_transaction(self, work: Callable[["FailingNode"], Awaitable[object]]) -> object:
        return await work(self)

    async def send(self, *_: object) -> None:
        raise asyncpg.UniqueViolationError('duplicate key value violates unique constraint "appends_pkey_102008"')


async def test_an_error_of_a_node_names_its_constraint() -> None:
    node: Any = FailingNode()
    with pytest.raises(asyncpg.UniqueViolationError) as raised:
        await Shards(node).run(node, "execute", "INSERT", {})
    assert answers.is_key_conflict(raised.value)
