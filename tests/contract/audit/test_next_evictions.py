"""The next evictions of a view over HTTP: those that its next reduction makes, without making them."""

import pytest

from tests.contract.audit.test_rerender import POLICY, RecordedSession, recorded

pytestmark = pytest.mark.wing("audit")

__all__ = ["recorded"]


async def test_the_next_evictions_are_those_of_a_reduction(recorded: RecordedSession) -> None:
    await recorded.context(max_tokens=30_000)
    path = "/v1/sessions/s/next-evictions"
    found = (await recorded.client.get(path)).json()
    assert (found["view"], found["head"], found["moment"], found["stalled"]) == ("main", 25, "warm", None)
    assert found["tokens_after"] < found["tokens"] <= found["threshold"] <= found["target"]
    first = found["evictions"][0]
    assert (first["from_seq"], first["disposition"], first["reducer"]) == (4, "stubbed", "economics")
    assert {one["reducer"]: one["reason"] for one in found["declined"]}["fold"] == "below_trigger"
    assert (await recorded.client.get(path)).json() == found, "asking changes nothing"
    assert len((await recorded.client.get("/v1/sessions/s/calls")).json()["items"]) == 1
    none = (await recorded.client.get(path, params={"limit": 0})).json()
    assert (none["evictions"], none["more"]) == ([], len(found["evictions"]))
    sent = (await recorded.context(max_tokens=found["tokens"]))["evictions"][0]
    assert {name: sent[name] for name in ("from_seq", "disposition", "reducer", "reason")} == {
        name: first[name] for name in ("from_seq", "disposition", "reducer", "reason")
    }


async def test_a_reducer_that_evicts_at_the_next_call_declines_nothing(recorded: RecordedSession) -> None:
    policy = {**POLICY, "evict": "every_assembly"}
    assert (await recorded.client.put("/v1/sessions/s", json={"policy": policy})).status_code == 200
    found = (await recorded.client.get("/v1/sessions/s/next-evictions")).json()
    sent = await recorded.context()
    call = (await recorded.client.get(f"/v1/sessions/s/calls/{sent['call_id']}")).json()
    assert "retention" in {one["reducer"] for one in sent["evictions"]}
    assert (found["moment"], found["declined"]) == ("warm", call["declined"])


async def test_a_view_without_a_session_is_not_found(recorded: RecordedSession) -> None:
    assert (await recorded.client.get("/v1/sessions/nobody/next-evictions")).status_code == 404


async def test_nothing_of_a_small_context_may_go(recorded: RecordedSession) -> None:
    said = {"events": [{"type": "user.message", "content": "Hello."}]}
    assert (await recorded.client.post("/v1/sessions/small/events", json=said)).status_code == 201
    answer = await recorded.client.get("/v1/sessions/small/next-evictions")
    assert (answer.status_code, answer.json()["evictions"]) == (200, [])
