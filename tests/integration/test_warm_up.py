"""The warm-up of a process, before its first request."""

from app.main import create_app
from app.runtime.settings import Settings
from app.store import calls, view_reads
from app.store.driver import numbered


async def test_a_process_has_a_connection_before_its_first_request(database_url: str) -> None:
    app = create_app(Settings(), database_url)
    async with app.router.lifespan_context(app) as state:
        pool = state["services"].database.pool()
        assert (pool.free, pool.waiting) == (1, 0)


async def test_the_statements_of_a_first_context_are_planned_before_it(database_url: str) -> None:
    app = create_app(Settings(), database_url)
    async with app.router.lifespan_context(app) as state:
        found = await state["services"].database.fetch("SELECT statement, generic_plans FROM pg_prepared_statements")
        planned = {row["statement"] for row in found if row["generic_plans"]}
        assert {numbered(sql)[0] for sql in (view_reads.LOAD, calls.RECORD_EPOCH)} <= planned


async def test_a_process_starts_without_its_database() -> None:
    app = create_app(Settings(), "postgresql://nobody@127.0.0.1:9/none")
    async with app.router.lifespan_context(app) as state:
        assert state["services"].database.pool().free == 0
