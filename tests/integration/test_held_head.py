"""A context up to a head, on a line that has grown since: only the returned context is recorded."""

import httpx
import pytest

from app.core.assembly.inputs import ContextRequest
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT

pytestmark = pytest.mark.wing("audit")


@pytest.mark.parametrize("held", [False, True])
async def test_no_newer_context_of_a_longer_line_is_recorded(
    client: httpx.AsyncClient, application: Database, held: bool
) -> None:
    """An unreturned call would never get its outcome."""
    services = wiring.build(Settings(), application, {})
    for text in ("one", "two"):
        events = [{"type": "user.message", "content": text}]
        assert (await client.post("/v1/sessions/s/events", json={"events": events})).status_code == 201
    with acting_for(DEFAULT_TENANT):
        if held:
            await services.assembly.context(DEFAULT_TENANT, "s", ContextRequest())
            await services.assembly.context(DEFAULT_TENANT, "s", ContextRequest())
        newest = await services.assembly.context(DEFAULT_TENANT, "s", ContextRequest(), head=2)
        before = await services.assembly.context(DEFAULT_TENANT, "s", ContextRequest(), head=1)
    calls = (await client.get("/v1/sessions/s/calls")).json()["items"]
    assert [call["head"] for call in calls] == [1, 2] + [2, 2] * held
    assert [call["call_id"] for call in calls[:2]] == [str(one.assembled.call.call_id) for one in (before, newest)]
