"""The hot path's statements find calibrations by key, whatever the tenant's number of models."""

from types import SimpleNamespace

import httpx
import pytest

from app.core.assembly.assemble import NewCall
from app.core.record import CallManifest
from app.store import calls, view_reads, views
from app.store.engine import Database, acting_for
from app.store.ids import new_id, session_ref
from app.tenants import DEFAULT_TENANT
from tests.integration.test_query_plans import explain, nodes

MODELS = 5_000


@pytest.fixture
async def models(client: httpx.AsyncClient, database: Database) -> str:
    """Create a session, and a tenant with many calibrated models."""
    for _ in range(2):
        event = {"type": "user.message", "content": "hello"}
        (await client.post("/v1/sessions/s/events", json={"events": [event]})).raise_for_status()
        answer = await client.get("/v1/sessions/s/context", params={"model": "model-7"})
        answer.raise_for_status()
    await database.execute(
        "INSERT INTO calibrations (tenant_id, model, estimator, samples, reported, ratio, margin, version) "
        "SELECT :tenant_id, 'model-' || n, 'heuristic', '[]', 9, 1.5, 0.1, 3 FROM generate_series(1, :models::int) n",
        tenant_id=DEFAULT_TENANT,
        models=MODELS,
    )
    await database.execute("ANALYZE")
    return "s"


async def test_calibrations_are_found_by_their_key(application: Database, models: str) -> None:
    ref = session_ref(DEFAULT_TENANT, models)
    with acting_for(DEFAULT_TENANT):
        loaded = await views.load(application, ref, "main", at=None, fresh=False, bound_tokens=1_000)
    assert loaded is not None
    assert [(known.ratio, known.version) for known in loaded.calibrations] == [(1.5, 3)]
    about = {**ref._asdict(), "view": "main", "model": None}
    rest = {"at": None, "fresh": False, "bound_tokens": 1_000, "epoch": None, "anchors": None, "pinned": None}
    read = await explain(application, view_reads.LOAD, **about, **rest)
    call = NewCall(
        call_id=new_id(),
        view="main",
        head=loaded.head,
        epoch=loaded.epoch,
        policy=("default", 1),
        format="openai",
        model="model-7",
        render_version=1,
        manifest=CallManifest(by_source=dict.fromkeys(("tools", "system", "ephemeral"), 0)),
        breakpoints=(),
        estimate=1,
        target=1,
        sha256=b"",
        counted=1,
        evicted_tokens=0,
    )
    made = SimpleNamespace(call=call, inputs=SimpleNamespace(loaded=loaded), epoch=None)
    written = await explain(
        application,
        calls.RECORD_CALL_IF_UNCHANGED,
        **calls._values(made, DEFAULT_TENANT),
        held_epoch=loaded.epoch,
        version=loaded.version,
        learned_version=0,
        calibration_version=3,
        estimator="heuristic",
        last_breakpoints=None,
        compacting=False,
        cover_id=ref.session_id,
        covered_to=0,
        lost_from=0,
        heal_from=0,
    )
    for plan in (read, written):
        [found] = [node for node in nodes(plan) if node.get("Relation Name") == "calibrations"]
        assert found["Node Type"] in ("Index Scan", "Bitmap Heap Scan")
        assert found["Actual Rows"] * found["Actual Loops"] == 1
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 300
