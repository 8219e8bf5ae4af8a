"""Retention over HTTP: a tenant's rules, their preview, and a worker that erases exactly what they say."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.core.errors import InvalidRequest
from app.store import deletion, jobs
from app.store.engine import Database, acting_for
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT, SCOPES, Tenants
from app.wings.retention.commands import set_and_report
from app.wings.retention.jobs import apply_all
from app.wings.retention.service import DataRetention
from tests.contract.contexts.test_context import append, turn_of_rounds
from tests.support.backdating import moved_back
from tests.support.wings import PROBES

EVENT = {"type": "user.message", "content": "hello"}
NO_RULES: dict[str, Any] = {
    "session_days": None,
    "idle_days": None,
    "call_days": None,
    "compaction_days": None,
    "change_days": None,
    "delivery_days": None,
}


def after(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


async def put(client: httpx.AsyncClient, **rules: int) -> None:
    assert (await client.put("/v1/retention", json=rules)).status_code == 200


async def named(client: httpx.AsyncClient) -> set[str]:
    return {one["id"] for one in (await client.get("/v1/sessions")).json()["items"]}


async def make_older(database: Database, days: float, *names: str) -> None:
    """Make sessions, with all their records, older by some days."""
    keys = [session_key(DEFAULT_TENANT, name) for name in names]
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        for table, columns in (
            ("sessions", ("created_at", "updated_at")),
            ("model_calls", ("created_at", "reported_at")),
            ("changes", ("created_at",)),
            ("compactions", ("created_at", "finished_at")),
        ):
            moved = ", ".join(moved_back(one, "make_interval(secs => :seconds)") for one in columns)
            await tx.execute(
                f"UPDATE {table} SET {moved} WHERE session_id = ANY(:keys::uuid[])", keys=keys, seconds=days * 86_400
            )


async def apply_rules(application: Database, days: float = 0) -> dict[str, int]:
    """Apply the rules as of some days from now; return the number of erased rows by rule."""
    with acting_for(DEFAULT_TENANT):
        return dict(await DataRetention(application, lambda: after(days)).apply(DEFAULT_TENANT))


async def test_a_dry_run_sets_no_rule(client: httpx.AsyncClient, database: Database) -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        assert [line async for line in set_and_report(database, "default", ["idle_days=1"], 20)]
    assert (await client.get("/v1/retention")).json() == {**NO_RULES, "updated_at": None}


async def get_preview(client: httpx.AsyncClient, **params: Any) -> dict[str, Any]:
    answer = await client.get("/v1/retention:preview", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def counts(preview: dict[str, Any]) -> dict[str, int]:
    return {one["rule"]: one["count"] for one in preview["rules"]}


async def test_nothing_is_erased_by_default(client: httpx.AsyncClient, application: Database) -> None:
    assert (await client.get("/v1/retention")).json() == {**NO_RULES, "updated_at": None}
    await append(client, [EVENT])
    assert await get_preview(client) == {"rules": [], "items": [], "next_cursor": None}
    assert await apply_rules(application, 36_000) == {}
    await put(client, session_days=0, idle_days=0)
    rules = (await client.get("/v1/retention")).json()
    assert rules.pop("updated_at") is not None and rules == NO_RULES
    assert await apply_rules(application, 36_000) == {}
    assert await named(client) == {"s"}


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_the_times_of_events_do_not_matter(client: httpx.AsyncClient, application: Database, moment: str) -> None:
    await append(client, [{**EVENT, "occurred_at": moment}])
    assert (await client.get("/v1/sessions/s/context")).status_code == 200
    await put(client, session_days=1, call_days=1)
    await apply_all(application)
    assert await named(client) == {"s"}


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"idle_days": -1}, "idle_days"),
        ({"session_days": 36_501}, "session_days"),
        ({"delivery_days": 31}, "delivery_days"),
        ({"call_days": 1.5}, "call_days"),
        ({"call_days": True}, "call_days"),
        ({"change_days": "ten"}, "change_days"),
        ({"days": 9}, "days"),
    ],
)
async def test_an_invalid_rule_is_refused(client: httpx.AsyncClient, rules: dict[str, Any], field: str) -> None:
    await put(client, idle_days=7)
    answer = await client.put("/v1/retention", json={"session_days": 3, **rules})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), answer.text
    assert field in answer.text
    now = (await client.get("/v1/retention")).json()
    assert (now["idle_days"], now["session_days"]) == (7, None)


async def test_only_unbound_admins_see_or_set_the_rules(
    client: httpx.AsyncClient, server: str, database: Database
) -> None:
    tenants = Tenants(database, None)
    made = [
        await tenants.create_key("default", "k", scopes, session_prefix=prefix)
        for scopes, prefix in ((SCOPES[:3], None), (["admin"], "a"), (["admin"], None))
    ]
    statuses = []
    for key in made:
        async with httpx.AsyncClient(base_url=server, headers={"Authorization": f"Bearer {key.secret}"}) as http:
            statuses.append(
                [
                    (await http.get("/v1/retention")).status_code,
                    (await http.put("/v1/retention", json={})).status_code,
                    (await http.get("/v1/retention:preview")).status_code,
                    (await http.post("/v1/erasures", json={"metadata": {"a": 1}})).status_code,
                ]
            )
    assert statuses == [[403] * 4, [403] * 4, [200, 200, 200, 202]]


async def test_a_preview_lists_exactly_the_erased_sessions(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    for name, days in (("old", 40), ("idle", 20), ("used", 20), ("young", 2)):
        await append(client, turn_of_rounds(1), sid=name)
        await make_older(database, days, name)
    await client.get("/v1/sessions/used/context")
    await put(client, session_days=30, idle_days=10)
    before = await get_preview(client)
    assert counts(before) == {"age": 1, "idle": 1} and before["next_cursor"] is None
    assert [(one["id"], one["rule"]) for one in before["items"]] == [("old", "age"), ("idle", "idle")]
    [age, _] = before["rules"]
    assert age["oldest"] == age["newest"] == before["items"][0]["created_at"]
    assert await get_preview(client) == before and await named(client) == {"old", "idle", "used", "young"}
    assert await apply_rules(application) == {"age": 1, "idle": 1}
    assert await named(client) == {"used", "young"}
    assert counts(await get_preview(client)) == {"age": 0, "idle": 0} and await apply_rules(application) == {}
    done = {one.maker: one.number for one in await jobs.work_counts(database) if one.kind == "retention"}
    assert done == {"age": 1, "idle": 1}
    if "/metrics" in PROBES:
        said = (await client.get("/metrics")).text
        assert 'palimpsest_retention_erased_total{rule="idle"} 1.0' in said
        assert 'palimpsest_retention_erased_total{rule="calls"} 0.0' in said


async def test_a_preview_has_pages(client: httpx.AsyncClient, database: Database) -> None:
    names = [f"s{number}" for number in range(7)]
    for number, name in enumerate(names):
        await append(client, [EVENT], sid=name)
        await make_older(database, 20 - number, name)
    await put(client, session_days=10)
    found, cursor, left = [], None, []
    while True:
        page = await get_preview(client, limit=3, **({} if cursor is None else {"cursor": cursor}))
        found += [one["id"] for one in page["items"]]
        left += [one["count"] for one in page["rules"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert (found, left) == (names, [7, 4, 1])
    assert (await client.get("/v1/retention:preview", params={"cursor": "no"})).status_code == 422


@pytest.mark.parametrize(
    "use",
    [
        *("append", "context", "outcome", "settings", "layer", "line", "fork"),
        pytest.param("stream", marks=pytest.mark.wing("stream")),
    ],
)
async def test_a_used_session_is_not_idle(
    client: httpx.AsyncClient, database: Database, application: Database, use: str
) -> None:
    await append(client, turn_of_rounds(2))
    made = (await client.get("/v1/sessions/s/context")).json()
    await make_older(database, 20, "s")
    await put(client, idle_days=10)
    assert [one["id"] for one in (await get_preview(client))["items"]] == ["s"]
    path = "/v1/sessions/s"
    if use == "append":
        await append(client, [EVENT])
    elif use == "context":
        await client.get(f"{path}/context")
    elif use == "outcome":
        await client.post(f"{path}/calls/{made['call_id']}/outcome", json={"usage": {"input_tokens": 9}})
    elif use == "settings":
        await client.put(path, json={"metadata": {"a": 1}})
    elif use == "layer":
        await client.put(f"{path}/layers/sources", json={"content": "new"})
    elif use == "stream":
        async with client.stream("GET", f"{path}/stream", params={"after": 0}) as stream:
            assert await anext(stream.aiter_lines())
    elif use == "line":
        assert (await client.post(f"{path}/rewind", json={"to": 1})).status_code == 200
        await make_older(database, 20, "s")  # the first line's row, not that of the new current line
    else:  # a fork shares events with it
        assert (await client.post(f"{path}/fork", json={"id": "f", "at": 2})).status_code == 201
    assert (await get_preview(client))["items"] == []
    assert await apply_rules(application) == {}
    assert "s" in await named(client)


async def test_a_session_with_a_running_compaction_is_not_idle(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    await append(client, turn_of_rounds(2))
    await client.post("/v1/sessions/s/compactions", json={})
    await make_older(database, 20, "s")
    await put(client, idle_days=10)
    assert await apply_rules(application) == {}
    await database.execute("UPDATE compactions SET state = 'skipped', finished_at = now()")
    assert await apply_rules(application) == {"idle": 1}


async def test_a_call_counts_as_use_after_its_record_was_erased(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    """One record expired by its own time, the other by the tenant's rule."""
    for name in ("expired", "ruled"):
        await append(client, turn_of_rounds(1), sid=name)
        await make_older(database, 20, name)
        await client.get(f"/v1/sessions/{name}/context")
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute(
            "UPDATE model_calls SET expires_at = now() WHERE session_id = :session_id",
            session_id=session_key(DEFAULT_TENANT, "expired"),
        )
    assert await deletion.purge_calls(application) == 1
    await put(client, call_days=1)
    assert await apply_rules(application, 2) == {"calls": 1}
    assert await database.fetch("SELECT FROM model_calls") == []
    await put(client, idle_days=10)
    assert await apply_rules(application) == {}
    assert await apply_rules(application, 9) == {}
    assert await apply_rules(application, 11) == {"idle": 2}


async def test_a_parent_is_kept_as_long_as_its_forks(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    """Forks of forks count too; once the last one has expired, all are erased."""
    await append(client, turn_of_rounds(2), sid="a")
    await client.post("/v1/sessions/a/fork", json={"id": "b"})
    await client.post("/v1/sessions/b/fork", json={"id": "c", "at": 2})
    await append(client, [EVENT], sid="other")
    await make_older(database, 40, "a", "b", "other")
    await put(client, session_days=30)
    assert [one["id"] for one in (await get_preview(client))["items"]] == ["other"]
    assert await apply_rules(application) == {"age": 1}
    assert await named(client) == {"a", "b", "c"}
    await make_older(database, 40, "c")
    assert sorted(one["id"] for one in (await get_preview(client))["items"]) == ["a", "b", "c"]
    assert await apply_rules(application) == {"age": 3}
    assert await named(client) == set()


async def test_records_are_erased_by_their_own_rules_without_their_session(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    for name in ("old", "new"):
        await append(client, turn_of_rounds(2), sid=name)
        await client.get(f"/v1/sessions/{name}/context")
        await client.post(f"/v1/sessions/{name}/compactions", json={})
        await database.execute(
            "UPDATE compactions SET state = 'skipped', finished_at = now() WHERE session_id = :session_id",
            session_id=session_key(DEFAULT_TENANT, name),
        )
    await make_older(database, 20, "old")
    made = await sessions_with_records(database)
    assert all(len(keys) == 2 for keys in made.values()), made
    await put(client, call_days=10, compaction_days=10, change_days=10)
    preview_counts = counts(await get_preview(client))
    assert set(preview_counts) == {"calls", "compactions", "changes"} and min(preview_counts.values()) >= 1
    gone = await apply_rules(application)
    assert gone == preview_counts
    [new] = {session_key(DEFAULT_TENANT, "new")}
    assert await sessions_with_records(database) == {table: {new} for table in made}
    assert await named(client) == {"old", "new"}
    assert (await client.get("/v1/sessions/old/context")).status_code == 200


@pytest.mark.embedded("it adds triggers to tables")
async def test_the_records_of_calls_are_open_only_to_their_own_purge(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    await append(client, turn_of_rounds(2))
    await client.post("/v1/sessions/s/compactions", json={})
    await database.execute("UPDATE compactions SET state = 'skipped', finished_at = now()")
    await make_older(database, 20, "s")
    await database.execute(
        "CREATE FUNCTION refuse_sweep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'the records of calls are open'; END $$"
    )
    for table in ("compactions", "changes"):
        await database.execute(
            f"CREATE TRIGGER refuse_sweep BEFORE DELETE ON {table} FOR EACH ROW "
            "WHEN (current_setting('palimpsest.sweeping', true) = 'calls') EXECUTE FUNCTION refuse_sweep()"
        )
    await put(client, compaction_days=10, change_days=10)
    assert set(await apply_rules(application)) == {"compactions", "changes"}


async def sessions_with_records(database: Database) -> dict[str, set[UUID]]:
    """Return the sessions that have records of each kind."""
    return {
        table: {row["session_id"] for row in await database.fetch(f"SELECT session_id FROM {table}")}
        for table in ("model_calls", "compactions", "changes")
    }


async def test_a_tenants_rules_do_not_apply_to_another(
    client: httpx.AsyncClient, server: str, database: Database, application: Database
) -> None:
    secret = (await Tenants(database, None).create_key("other", "k", SCOPES)).secret
    own = (await Tenants(database, None).create_key("default", "k", SCOPES)).secret
    client.headers["Authorization"] = f"Bearer {own}"
    async with httpx.AsyncClient(base_url=server, headers={"Authorization": f"Bearer {secret}"}) as theirs:
        for http in (client, theirs):
            await append(http, [EVENT])
        async with database.transaction() as tx:
            await tx.execute("UPDATE sessions SET created_at = now() - interval '9 days'")
        await put(client, session_days=7)
        assert (await theirs.get("/v1/retention")).json()["session_days"] is None
        assert (await get_preview(theirs))["items"] == []
        await apply_all(application)
        assert (await named(client), await named(theirs)) == (set(), {"s"})


async def test_concurrent_workers_erase_each_session_once(
    client: httpx.AsyncClient, database: Database, application: Database
) -> None:
    names = [f"s{number}" for number in range(12)]
    for name in names:
        await append(client, [EVENT], sid=name)
    for name in names[:4]:
        await client.post(f"/v1/sessions/{name}/fork", json={"id": f"{name}-fork"})
    await put(client, session_days=7)
    gone: Sequence[dict[str, int]] = await asyncio.gather(*(apply_rules(application, 8) for _ in range(3)))
    assert sum(one.get("age", 0) for one in gone) == 16
    assert await named(client) == set()
