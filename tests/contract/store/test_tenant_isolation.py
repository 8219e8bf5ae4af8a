"""Tenant isolation in the database (I10): it shows a tenant its own rows only, whatever the application checks.

A walk through every operation, with a worker, makes the server execute every statement of the application. The
statements are read from the server's log and executed again as another tenant and as none.
"""

import ast
import asyncio
import importlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

import app
from app import worker
from app.main import create_app
from app.resources.layers import service as layers
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store import compactions, deletion, event_log, forks, jobs, keys, lines, sessions, spans, summaries
from app.store.driver import PARAMETER
from app.store.dsn import for_asyncpg
from app.store.engine import ROLE, SERVER_SETTINGS, Database, acting_for
from app.store.event_log import SessionLog
from app.store.ids import session_key, session_ref
from app.tenants import DEFAULT_TENANT, SCOPES, Tenants
from app.wings.recall import store as search
from app.wings.replica.service import Replica
from app.wings.retention import jobs as worker_retention
from app.wings.retention import store as erasures
from app.wings.retention.erasures import ErasureRequest, Erasures
from app.wings.retention.service import DataRetention
from app.wings.sealing import service as content_keys
from app.wings.warmings import routes as warmings
from app.wings.webhooks import store as webhooks
from tests.conftest import serving
from tests.support.backdating import moved_back
from tests.support.crawl import Page, crawl
from tests.support.databases import migrated
from tests.support.markup import Markup
from tests.support.receiver import Receiver, receiving
from tests.support.requesting import Loopback
from tests.support.sse import streaming, take
from tests.support.statements import ServerLog, Statement
from tests.support.tenants import tenant, working
from tests.support.waiting import is_distributed
from tests.support.walk import POLICY, SECONDS_MAX, SECRET_WORD, Request, Walker, walk

pytestmark = pytest.mark.wing("all")  # the walk calls every operation

OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}
SAME_FOR_ALL = {"/v1/tools/recall", "/v1/tools/compact"}
OPERATORS = {
    "app.wings.sealing.service:drop_key",
    "app.wings.sealing.service:all_keys",
    "app.wings.sealing.service:rewrap",
    "app.store.keys:create",
    "app.store.keys:all_keys",
    "app.store.keys:revoke_any",
    "app.wings.retention.store:tenants",
}
"""Functions run by operators' commands, as the owner; they concern all tenants."""
REPLACED = {
    "app.store.audit:page",
    "app.store.lines:add_links",
    "app.store.compactions:enqueue",
    "app.store.log:append",
    "app.store.sessions:_with_current_lines",
}
"""Functions whose statements are executed in another form with sessions in shards."""
SHARDS = "app.wings.shards."
"""Modules that execute statements only with sessions in shards."""
CITUS = re.compile(r"\bpg_dist_|OPERATOR\(pg_catalog\.")
TRIED_MAX = 6
"""The number of executions of one statement that are tried again, each with other values."""


@pytest.fixture(scope="module", autouse=True)
def fast_retries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))
        yield


@dataclass(frozen=True)
class WalkResult:
    """The result of a walk: its tenant, its HTTP requests, and the statements the server executed.

    `pages` are one page of each kind under `/ui/`, for two of its sessions. The server at `url` keeps running;
    `database` connects as the owner. The worker has stopped, so that nothing changes on its own.
    """

    tenant_id: UUID
    requests: list[Request]
    statements: list[Statement]
    url: str
    database_url: str
    database: Database
    pages: list[Page]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module")
async def walk_result(postgres: str, template: str) -> AsyncIterator[WalkResult]:
    """The result of one tenant's walk."""
    async with migrated(postgres, template) as database_url, receiving() as receiver:
        database = Database(database_url, pool_size=4, role=None, find_placement=find_placement)
        application = Database(database_url, pool_size=4, find_placement=find_placement)
        secret, tenant_id = await tenant(database, "acme")
        receiver.statuses.extend([400] * 1_000)
        log = await ServerLog.begin(database_url)
        async with (
            serving(Settings(webhook_private_targets=True), database_url) as url,
            httpx.AsyncClient(base_url=url, timeout=90, transport=Loopback(), headers=bearer(secret)) as http,
        ):
            async with working(database_url):
                requests = await walk(http, receiver)
            pages = await crawl(http, ("s", "l"), {"find": "parser", "call": "1", "number": "1"})
            await run_schedules(application, database, tenant_id)
            yield WalkResult(tenant_id, requests, log.statements(), url, database_url, database, pages)
        await application.close()
        await database.close()


class Actor:
    """A connection with the application's role, for one tenant or none, whose changes are rolled back."""

    def __init__(self, connection: asyncpg.Connection, tenant_id: UUID | None) -> None:
        self._connection, self._tenant_id = connection, tenant_id

    @classmethod
    @asynccontextmanager
    async def on(cls, database_url: str, tenant_id: UUID | None) -> AsyncIterator["Actor"]:
        settings = {"role": ROLE, "plan_cache_mode": "force_custom_plan"}  # and some that are ignored without Citus
        settings |= {"citus.propagate_set_commands": "local", "citus.override_table_visibility": "off"}
        connection = await asyncpg.connect(for_asyncpg(database_url), statement_cache_size=0, server_settings=settings)
        try:
            yield cls(connection, tenant_id)
        finally:
            await connection.close()

    async def of(self, statement: Statement) -> object:
        """Execute a statement and return its tag and rows, or the name of the error."""
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            if self._tenant_id is not None:
                await self._connection.execute(f"SET LOCAL palimpsest.tenant = '{self._tenant_id}'")
            await self._connection.execute(f"PREPARE tried AS {statement.sql}")
            values = f"({', '.join(statement.values)})" if statement.values else ""
            prepared = await self._connection.prepare(f"EXECUTE tried{values}")
            rows = await prepared.fetch()
            return prepared.get_statusmsg(), [tuple(row.values()) for row in rows]
        except asyncpg.PostgresError as error:
            return type(error).__name__
        finally:
            await transaction.rollback()
            await self._connection.execute("DEALLOCATE ALL")


async def isolated_tables(database: Database) -> set[str]:
    """Return the tables with a row security policy."""
    rows = await database.fetch("SELECT polrelid::regclass::text AS name FROM pg_policy")
    return {row["name"] for row in rows}


def on_tenant_rows(statements: list[Statement], tables: set[str]) -> dict[str, list[Statement]]:
    """Return the statements that touch a tenant's rows, by text, each with up to TRIED_MAX different values.

    Statements that Citus makes for its own nodes are left out.
    """
    touching = re.compile(rf"\b(?:{'|'.join([*tables, 'palimpsest_hits'])})\b")
    found: dict[str, dict[tuple[str, ...], Statement]] = {}
    for one in statements:
        verb = one.sql.split(maxsplit=1)[0].upper()
        if (
            verb in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
            and touching.search(one.sql)
            and not CITUS.search(one.sql)
        ):
            found.setdefault(one.sql, {})[one.values] = one
    return {sql: list(values.values())[-TRIED_MAX:] for sql, values in found.items()}


def index_conditions(plan: dict[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each table of a plan with its index conditions, except those on the tenant."""
    if "Index Cond" in plan and "Relation Name" in plan:
        condition = re.sub(r"\(?(?:InitPlan|SubPlan|CTE) \d+\)?(?:\.col\d+)?", "P", plan["Index Cond"])
        parts = {part.strip("() ") for part in condition.split(" AND ")}
        yield plan["Relation Name"], frozenset(part for part in parts if not part.startswith("tenant_id"))
    for child in plan.get("Plans", ()):
        yield from index_conditions(child)


def normal(sql: str) -> str:
    """Return a statement's text without the names or numbers of its parameters."""
    return " ".join(re.sub(r"\$\d+", "?", PARAMETER.sub("?", sql)).split())


def in_the_code() -> Iterator[tuple[str, str | None]]:
    """Yield each function of the application that executes a statement, with the longest fixed piece of its text."""
    root = Path(app.__path__[0])
    for path in sorted(root.rglob("*.py")):
        module = importlib.import_module(".".join(("app", *path.relative_to(root).with_suffix("").parts)))
        if module.__name__ in (
            "app.store.engine",
            "app.store.migrate",
            "app.store.migrate",
            "app.wings.shards.distribute",
        ):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr in ("fetch", "fetchrow", "execute")
                    and call.args
                ):
                    pieces = [normal(piece) for piece in _pieces(call.args[0], function, module)]
                    yield f"{module.__name__}:{function.name}", max(pieces, key=len, default=None)


def _pieces(node: ast.AST, function: ast.AST, module: Any) -> list[str]:
    """Return the fixed pieces of a statement's text, from constants of the function and the module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.split(r"\{.*?\}", node.value)
    if isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
        if isinstance(value, str):
            return re.split(r"\{.*?\}", value)
        assigned = [
            found.value
            for found in ast.walk(function)
            if isinstance(found, ast.Assign) and any(getattr(to, "id", None) == node.id for to in found.targets)
        ]
        return [piece for value in assigned for piece in _pieces(value, function, module)]
    if isinstance(node, ast.FormattedValue):
        return []
    return [piece for child in ast.iter_child_nodes(node) for piece in _pieces(child, function, module)]


async def run_schedules(application: Database, database: Database, tenant_id: UUID) -> None:
    """Call the store's functions for schedules, and for what requests can hardly bring about."""
    ref = session_ref(tenant_id, "s")
    own = ref.session_id
    await database.execute("UPDATE search_heads SET version = 0 WHERE session_id = :own", own=own)
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute("UPDATE layers SET " + moved_back("created_at", "interval '3 hours'"))
    with acting_for(DEFAULT_TENANT):
        await content_keys.store_key(application, DEFAULT_TENANT, b"wrapped")
    with acting_for(tenant_id):
        await keys.make_item_key(application, tenant_id, b"key")
        assert await keys.item_key(application, tenant_id) == b"key"
        await forks._pairs(application, await event_log.segments(application, SessionLog(own), 60), [4])
        await event_log.oldest(application, SessionLog(own), 0, 1_000, 100)
        await spans.calls(application, own, 1, 60)
        await event_log.has_conversation(application, SessionLog(own))
        await sessions.name_of(application, ref)
        await jobs.enqueue(application, "index", own, f"{own} {tenant_id} 1 60")
        assert await lines.of_event(application, tenant_id, "s", "resp_of_nobody") is None
        assert await lines.of_call(application, tenant_id, "s", uuid4()) is None
        assert (await warmings.warming_sums(application, tenant_id, "s")).cache_read_tokens
        [run, *_] = await compactions.page(application, own, state=None, after=None, limit=1)
        await compactions.reschedule(application, own, run.id, "not now")
        async with application.transaction() as tx:
            await search.lock(tx, ref, 60)
            await sessions.count(tx, tenant_id, 10)
        day = await jobs.reserve_tokens(application, tenant_id, 100, 1_000)
        assert day is not None and await jobs.reserve_tokens(application, tenant_id, 1_000, 1_000) is None
        await jobs.settle_tokens(application, tenant_id, day, 100, 90)
    assert await layers.sweep(application) > 0
    records = (deletion.purge_idempotency_keys, deletion.purge_calls, webhooks.purge)
    for purge in (*records, deletion.purge_job_log, deletion.purge_dead_jobs):
        await purge(application)
    await retain(application, database, tenant_id)
    await compactions.enqueue_overdue(application, 60.0)
    await webhooks.enqueue_overdue(application, 60.0)
    await summaries.degraded(application, 0.0, 10)
    await keys.any_created(application)
    await jobs.store_trace_context(application, own, {"traceparent": "00-00"})
    assert await jobs.trace_context(application, 0) == {}
    looked = asyncio.Event()
    watching = asyncio.create_task(Replica(application, application, 30.0).watch(lambda *_: looked.set()))
    await looked.wait()
    watching.cancel()


class RolledBack(Exception):
    pass


async def retain(application: Database, database: Database, tenant_id: UUID) -> None:
    """Apply a tenant's retention rules to backdated rows: two sessions, and records of two others."""
    old = [session_key(tenant_id, name) for name in ("aged", "aged-too")]
    others = [session_key(tenant_id, name) for name in ("recorded", "w")]
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        for table, columns, keys in (
            ("sessions", ("created_at", "updated_at"), old),
            ("model_calls", ("created_at",), old + others),
            ("changes", ("created_at",), others),
            ("compactions", ("finished_at",), others),
            ("deliveries", ("finished_at",), others),
        ):
            moved = ", ".join(moved_back(one, "interval '9 days'") for one in columns)
            await tx.execute(f"UPDATE {table} SET {moved} WHERE session_id = ANY(:keys::uuid[])", keys=keys)
    with acting_for(tenant_id):
        assert len((await DataRetention(application).preview(tenant_id, 10)).items) == 2
    await worker_retention.apply_all(application)
    await erasures.enqueue_unfinished(application)
    with acting_for(tenant_id):  # for what is left
        later = DataRetention(application, lambda: datetime.now(UTC) + timedelta(days=30))
        assert (await later.preview(tenant_id, 10)).items
        assert (await Erasures(application).preview(tenant_id, ErasureRequest({"about": SECRET_WORD}), 10)).items
        own = session_ref(tenant_id, "s")
        with suppress(RolledBack):  # rolled back, so that later tests find these rows
            async with application.transaction() as tx:
                assert (await erasures.counts(tx, own))["sessions"] == 1
                await deletion._record_use(tx, own, datetime.now(UTC) + timedelta(days=1))
                await deletion.delete_locked(tx, tenant_id, ["s", "w"])
                raise RolledBack


async def test_no_statement_reads_or_writes_another_tenants_rows(
    walk_result: WalkResult, postgres: str, template: str
) -> None:
    statements = on_tenant_rows(walk_result.statements, await isolated_tables(walk_result.database))
    assert len(statements) > 100
    found_nothing: list[str] = []
    other = uuid4()
    async with (
        migrated(postgres, template) as nothing_there,
        Actor.on(walk_result.database_url, walk_result.tenant_id) as owner,
        Actor.on(walk_result.database_url, other) as stranger,
        Actor.on(walk_result.database_url, None) as nobody,
        Actor.on(nothing_there, other) as stranger_to_nothing,
        Actor.on(nothing_there, None) as nobody_to_nothing,
    ):
        for sql, executions in statements.items():
            own = False
            for one in executions:
                empty = await stranger_to_nothing.of(one)
                assert await stranger.of(one) == empty, one
                assert await nobody.of(one) == await nobody_to_nothing.of(one), one
                own = own or await owner.of(one) != empty
            if not own:
                found_nothing.append(normal(sql))
    # Statements that find nothing for their owner either, because their moment has passed, prove less: they must be
    # few.
    assert len(found_nothing) < 0.27 * len(statements), found_nothing


async def test_no_statement_loses_an_index_by_row_security(walk_result: WalkResult) -> None:
    """Each statement enters an index of the same tables by more than the tenant, if other plans are expensive.

    The conditions and their order are the planner's choice, which varies between tables this small.
    """
    await walk_result.database.execute("ANALYZE")
    lost = []
    async with AsyncExitStack() as opened:
        plans = []
        for tenant_id in (None, walk_result.tenant_id):
            settings = SERVER_SETTINGS | (
                {} if tenant_id is None else {"role": ROLE, "palimpsest.tenant": str(tenant_id)}
            )
            connection = await asyncpg.connect(for_asyncpg(walk_result.database_url), server_settings=settings)
            opened.push_async_callback(connection.close)
            await connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
            plans.append(connection)
        for sql, executions in on_tenant_rows(
            walk_result.statements, await isolated_tables(walk_result.database)
        ).items():
            found = []
            for connection in plans:
                await connection.execute(f"PREPARE planned AS {sql}")
                values = f"({', '.join(executions[-1].values)})" if executions[-1].values else ""
                plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE planned{values}")
                await connection.execute("DEALLOCATE planned")
                found.append(set(index_conditions(json.loads(plan)[0]["Plan"])))
            without, below = found
            for table, parts in without:
                if parts and not any(table == other and more for other, more in below):
                    lost.append((normal(sql), table, sorted(parts)))
    assert lost == []


async def test_every_statement_in_the_code_was_executed(walk_result: WalkResult) -> None:
    executed = {normal(one.sql) for one in walk_result.statements}
    in_shards = await is_distributed(walk_result.database)
    not_expected = OPERATORS | (REPLACED if in_shards else set())
    missing = [
        (where, piece)
        for where, piece in in_the_code()
        if piece is not None
        and where not in not_expected
        and (in_shards or not where.startswith(SHARDS))
        and not any(piece in sql for sql in executed)
    ]
    assert missing == [], "tests/support/walk.py has no request that runs these statements"


async def test_the_walk_calls_every_operation(walk_result: WalkResult) -> None:
    paths = create_app(Settings(), walk_result.database_url).openapi()["paths"]
    documented = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    differ = sorted({(one.method, one.operation) for one in walk_result.requests} ^ documented)
    assert not differ, f"tests/support/walk.py and the API's document differ in {differ}"


async def rows_of(database: Database, tenant_id: UUID) -> dict[str, str]:
    """Return one hash per table of all of a tenant's rows."""
    return {
        table: str(
            (
                await database.fetch(
                    f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) AS hash FROM {table} t "
                    "WHERE tenant_id = :tenant_id",
                    tenant_id=tenant_id,
                )
            )[0]["hash"]
        )
        for table in sorted(await isolated_tables(database))
    }


async def test_every_route_refuses_other_keys_and_shows_other_tenants_nothing(
    walk_result: WalkResult,
) -> None:
    """The callers have no key, an unknown key, a revoked one, one of another scope, and one of another tenant."""
    database = walk_result.database
    made = Tenants(database, None)
    revoked = await made.create_key("acme", "old", SCOPES)
    await keys.revoke_any(database, revoked.key_id)
    narrow = {scope: (await made.create_key("other", scope, [scope])).secret for scope in SCOPES[:3]}
    theirs, _ = await tenant(database, "other")
    before = await rows_of(database, walk_result.tenant_id)
    asked = {(one.method, one.operation): one for one in walk_result.requests if one.operation not in OPEN_TO_ALL}
    async with httpx.AsyncClient(base_url=walk_result.url, timeout=30) as http:

        async def answer(one: Request, headers: dict[str, str]) -> tuple[int, str]:
            if one.operation.endswith("/stream"):
                async with http.stream("GET", one.path, headers=headers) as stream:
                    return stream.status_code, (await stream.aread()).decode()
            body = None if one.body is None else json.loads(json.dumps(one.body).replace(SECRET_WORD, "theirs"))
            if body and "wait_ms" in body:
                body["wait_ms"] = 0  # no worker runs any more
            found = await http.request(
                one.method,
                one.path,
                params=one.params,
                json=body,
                headers=headers,
            )
            return found.status_code, found.text

        for one in asked.values():
            for headers in ({}, bearer("pal_" + "x" * 43), bearer(revoked.secret)):
                assert (await answer(one, headers))[0] == 401, one
            statuses = [(await answer(one, bearer(secret)))[0] for secret in narrow.values()]
            assert sum(status != 403 for status in statuses) <= 1, (one, statuses)
            status, text = await answer(one, bearer(theirs))
            assert status < 500 and status not in (401, 403), (one, status)
            assert SECRET_WORD not in text, one
    assert await rows_of(database, walk_result.tenant_id) == before


async def test_every_page_refuses_other_keys_and_shows_other_tenants_nothing(walk_result: WalkResult) -> None:
    """The readers have no key, an unknown one, one that may not read, and one of another tenant, which sends forms."""
    database = walk_result.database
    unread = (await Tenants(database, None).create_key("other", "writes", ["ingest"])).secret
    theirs, _ = await tenant(database, "other")
    before = await rows_of(database, walk_result.tenant_id)
    assert any(SECRET_WORD in page.html for page in walk_result.pages)
    assert {page.status for page in walk_result.pages} <= {200, 404}, "a line may have no call of that number"
    async with httpx.AsyncClient(base_url=walk_result.url, timeout=30) as http:
        for page in walk_result.pages:
            for headers in ({}, bearer("pal_" + "x" * 43)):
                refused = await http.get(page.path, headers=headers)
                assert (refused.status_code, refused.text) == (303, ""), page.path
            assert (await http.get(page.path, headers=bearer(unread))).status_code == 403, page.path
            shown = await http.get(page.path, headers=bearer(theirs))
            assert shown.status_code < 500 and SECRET_WORD not in shown.text, page.path
            for form in Markup.of(page.html).forms:
                if form.method == "post":
                    headers = {**bearer(theirs), "Sec-Fetch-Site": "same-origin"}
                    sent = await http.post(form.action, data=form.fields, headers=headers)
                    assert sent.status_code < 500 and SECRET_WORD not in sent.text, (page.path, form)
    assert await rows_of(database, walk_result.tenant_id) == before


async def one_tenants_day(http: httpx.AsyncClient, url: str, receiver: Receiver, word: str) -> dict[str, Any]:
    """Talk until a summary is written and notified, search, and read the tenant's records."""
    on = Walker(http)
    hook = {"url": receiver.url, "events": ["compaction.finished"]}
    await on.ask("PUT", "/v1/webhooks/{name}", hook, name="h")
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": POLICY}, sid="s")
    for turn in range(14):
        await on.append("s", {"type": "user.message", "content": f"{word} question {turn}"})
        await on.append(
            "s", {"type": "assistant.message", "content": f"{word} answer {turn}. " + f"{word} said so. " * 60}
        )
    await on.ask("POST", "/v1/sessions/{sid}/compactions", {"wait_ms": 60_000}, sid="s")
    context = await on.ask("GET", "/v1/sessions/{sid}/context", sid="s")
    headers = dict(http.headers)
    async with streaming(url, "/v1/sessions/s/stream", headers={"Authorization": headers["authorization"]}) as events:
        streamed = await take(events, 28)
    return {
        "calls": await receiver.called(1),
        "context": context,
        "streamed": [event.data for event in streamed],
        "summaries": await on.until("/v1/sessions/{sid}/summaries", lambda found: found["items"], sid="s"),
        "recalled": await on.ask("POST", "/v1/sessions/{sid}/recall", {"query": "question answer"}, sid="s"),
        "recorded": await on.ask("GET", "/v1/audit/calls"),
        "deliveries": await on.until(
            "/v1/webhooks/{name}/deliveries",
            lambda found: any(item["state"] == "delivered" for item in found["items"]),
            name="h",
        ),
    }


async def test_two_concurrent_tenants_under_one_worker_see_only_their_own(
    database_url: str, database: Database
) -> None:
    """They share session ids, two connections and a worker."""
    words = {"acme": "aquamarine", "other": "oxblood"}
    secrets = {name: (await tenant(database, name))[0] for name in words}
    settings = Settings(webhook_private_targets=True, pool_size=2)
    async with working(database_url), serving(settings, database_url) as url:

        async def live(name: str) -> dict[str, Any]:
            async with (
                receiving() as receiver,
                httpx.AsyncClient(
                    base_url=url, timeout=90, transport=Loopback(), headers=bearer(secrets[name])
                ) as http,
                asyncio.timeout(SECONDS_MAX),
            ):
                return await one_tenants_day(http, url, receiver, words[name])

        days = dict(zip(words, await asyncio.gather(*map(live, words)), strict=True))
    for name, word in words.items():
        [foreign] = set(words.values()) - {word}
        said = str(days[name])
        assert word in said and foreign not in said
        assert days[name]["recalled"]["items"]
        assert len(days[name]["recorded"]["items"]) == 1
        assert days[name]["summaries"]["items"]
    delivered = [{item["id"] for item in day["deliveries"]["items"]} for day in days.values()]
    assert delivered[0].isdisjoint(delivered[1])
