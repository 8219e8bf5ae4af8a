"""Tokens that a client sends outside the request: cache markers, budgets, the ledger, and learning them from usage."""

import json
from typing import Any

import httpx
import pytest

from tests.contract.contexts.test_context import append, context, turn_of_rounds
from tests.contract.loop import Loop
from tests.support.counting import Provider, counting

WINDOW = 16_000
OVERHEAD = 3_000


def count_markers(request: dict[str, Any]) -> int:
    return json.dumps(request).count('"cache_control"')


async def test_markers_are_set_however_small_the_log_is(client: httpx.AsyncClient) -> None:
    """The client's own tools may make the prefix large enough to be cached."""
    await append(client, [{"type": "user.message", "content": "hello"}])
    first = await context(client, format="anthropic", model="claude-haiku-4-5")
    assert first["tokens"]["estimate"] < 100
    assert [point["kind"] for point in first["cache"]["breakpoints"]] == ["tail"]
    assert count_markers(first["request"]) == 1
    await append(client, [{"type": "assistant.message", "content": "hi"}, {"type": "user.message", "content": "so?"}])
    second = await context(client, format="anthropic", model="claude-haiku-4-5")
    assert [point["kind"] for point in second["cache"]["breakpoints"]] == ["previous", "tail"]


async def test_outside_tokens_reduce_the_target_and_the_most_specific_setting_applies(
    client: httpx.AsyncClient,
) -> None:
    async def target(**asks: Any) -> tuple[int, int]:
        tokens = (await context(client, max_tokens=WINDOW, **asks))["tokens"]
        return tokens["outside"], tokens["target"]

    put = await client.put("/v1/sessions/s", json={"policy": {"reserve_tokens": 0, "estimator": "ceil4"}})
    assert put.json()["outside_tokens"] is None
    await append(client, turn_of_rounds(1))
    nothing, whole = await target()
    assert nothing == 0
    put = await client.put("/v1/sessions/s", json={"outside_tokens": 2_000})
    assert put.json()["outside_tokens"] == 2_000
    assert (await client.get("/v1/sessions/s")).json()["outside_tokens"] == 2_000
    by_session = await target()
    assert by_session == (2_000, pytest.approx(whole * (WINDOW - 2_000) / WINDOW, abs=2))
    assert await target(outside_tokens=4_000) == (4_000, pytest.approx(whole * (WINDOW - 4_000) / WINDOW, abs=2))
    assert await target() == by_session
    answer = await client.post(
        "/v1/sessions/s/context",
        json={"max_tokens": WINDOW, "policy": {"reserve_tokens": 0, "estimator": "ceil4", "outside_tokens": 3_000}},
    )
    assert answer.json()["tokens"]["outside"] == 3_000
    assert await target(outside_tokens=0) == (0, whole)


@pytest.mark.wing("audit")
async def test_a_call_records_outside_tokens_and_renders_again(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(3))
    made = await context(client, max_tokens=WINDOW, outside_tokens=2_000, format="anthropic")
    stored = (await client.get(f"/v1/sessions/s/calls/{made['call_id']}")).json()
    assert stored["tokens"] == made["tokens"]
    again = await client.get(f"/v1/sessions/s/calls/{made['call_id']}/context")
    assert (again.status_code, again.json()["sha256"]) == (200, made["sha256"])


async def test_outside_tokens_that_leave_no_room_are_infeasible(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(1))
    answer = await client.get("/v1/sessions/s/context", params={"max_tokens": 4_000, "outside_tokens": 3_900})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (422, "/problems/context-infeasible")
    assert problem["by_source"] == {"outside": 3_900}
    assert (await client.put("/v1/sessions/t", json={"outside_tokens": 10**9})).status_code == 422


@pytest.mark.parametrize("declared", [True, False])
async def test_no_request_exceeds_the_providers_window(client: httpx.AsyncClient, declared: bool) -> None:
    asks = {"outside_tokens": OVERHEAD} if declared else {}
    async with counting(Provider(1.0, WINDOW, overhead=OVERHEAD)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW, **asks)
        for _ in range(14):
            last = await loop.turn(words=700)
        assert loop.overflows == []
        assert max(provider.asked) <= WINDOW
        assert max(provider.asked) > 0.7 * WINDOW  # most of the window is used
        assert last["evictions"]


@pytest.mark.parametrize("factor", [1.0, 1.55])
async def test_outside_tokens_are_learned_from_reported_usage(client: httpx.AsyncClient, factor: float) -> None:
    """The constant overhead is kept apart from the model's ratio, which also holds for a session without it."""
    async with counting(Provider(factor, overhead=OVERHEAD)) as provider, counting(Provider(factor)) as plain:
        loop = Loop(client, provider, max_tokens=60_000)
        for _ in range(8):
            last = await loop.turn(words=300)
        assert last["tokens"]["outside"] == pytest.approx(OVERHEAD, rel=0.02)
        assert max(loop.errors[6:]) < 0.03
        [known] = (await client.get("/v1/calibrations")).json()["items"]
        assert known["ratio"] == pytest.approx(factor, rel=0.02)
        other = Loop(client, plain, "other", max_tokens=60_000)
        for _ in range(3):
            first = await other.turn(words=300)
        assert first["tokens"]["outside"] == 0
        assert max(other.errors) < 0.03


async def test_declared_outside_tokens_override_learned_ones(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0, overhead=OVERHEAD)) as provider:
        loop = Loop(client, provider, max_tokens=60_000)
        for _ in range(6):
            await loop.turn(words=300)
        assert (await loop.context())["tokens"]["outside"] > 0
        declared = await loop.context(outside_tokens=OVERHEAD + 7)
        assert declared["tokens"]["outside"] == OVERHEAD + 7
        assert (await loop.context())["tokens"]["outside"] != OVERHEAD + 7


async def test_without_an_overhead_no_outside_tokens_are_learned(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.4)) as provider:
        loop = Loop(client, provider, max_tokens=60_000)
        for _ in range(10):
            last = await loop.turn(words=300)
        assert last["tokens"]["outside"] == 0
        assert max(loop.errors[2:]) < 0.03


@pytest.mark.wing("ledger")
async def test_the_ledger_counts_outside_tokens_in_the_prefix(client: httpx.AsyncClient) -> None:
    """Make two calls of a model that would not cache a log this small alone."""
    await client.put("/v1/sessions/s", json={"model": "claude-sonnet-4-5", "outside_tokens": 5_000})
    await append(client, [{"type": "user.message", "content": "hello there " * 20}])
    first = await context(client, format="anthropic")
    await append(client, [{"type": "assistant.message", "content": "hi"}, {"type": "user.message", "content": "so?"}])
    second = await context(client, format="anthropic")
    for call, read in ((first, 0), (second, 5_000 + first["tokens"]["estimate"])):
        total = 5_000 + call["tokens"]["estimate"]
        usage = {"input_tokens": 3, "cache_read_tokens": read, "cache_write_tokens": total - read - 3}
        await client.post(f"/v1/sessions/s/calls/{call['call_id']}/outcome", json={"usage": usage})
    newest = (await client.get("/v1/sessions/s/ledger")).json()["calls"][0]
    assert newest["expected"]["read_tokens"] == pytest.approx(5_000 + first["tokens"]["estimate"], rel=0.02)
    assert newest["cause"] is None
