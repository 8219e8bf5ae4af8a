"""Calibration: reported usage corrects the estimates, so that contexts fit whichever way a provider counts."""

import asyncio
from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from app.store import calibrations, views
from app.store.engine import Database
from app.tenants import DEFAULT_TENANT
from tests.conftest import serving
from tests.contract.loop import Loop
from tests.support.counting import WITH_NUMBERS, WITHOUT_NUMBERS, Provider, counting

WINDOW = 16_000


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        pytest.param(1.0, WITH_NUMBERS, id="one-numbers"),
        pytest.param(1.55, WITHOUT_NUMBERS, id="more-no-numbers"),
        pytest.param(4.0, WITH_NUMBERS, id="many-numbers"),
        pytest.param(1.0, WITHOUT_NUMBERS, id="one-no-numbers", marks=pytest.mark.slow),
        pytest.param(1.55, WITH_NUMBERS, id="more-numbers", marks=pytest.mark.slow),
        pytest.param(4.0, WITHOUT_NUMBERS, id="many-no-numbers", marks=pytest.mark.slow),
    ],
)
async def test_after_ten_reports_estimates_are_right_and_nothing_overflows(
    client: httpx.AsyncClient, factor: float, message: str
) -> None:
    async with counting(Provider(factor, WINDOW, message)) as provider:
        first = Loop(client, provider, max_tokens=WINDOW)
        for _ in range(5):
            await first.turn(words=700)
        assert len(first.errors) >= 10
        learnt = len(first.overflows)
        assert learnt <= 1
        for _ in range(8):
            await first.turn(words=700)
        assert len(first.overflows) == learnt
        assert max(first.errors[10:]) < 0.03
        second = Loop(client, provider, "t", max_tokens=WINDOW)  # calibrated by the first
        for _ in range(9):
            await second.turn(words=700)
        assert second.overflows == []
        assert max(second.errors) < 0.03
    assert max(provider.asked[-20:]) > 0.4 * WINDOW  # most of the window is used


@pytest.mark.parametrize("message", [WITH_NUMBERS, WITHOUT_NUMBERS], ids=["numbers", "no-numbers"])
@pytest.mark.parametrize(("factor", "window"), [(1.0, 9_000), (1.55, WINDOW), (4.0, WINDOW)])
async def test_the_first_overflow_is_recovered_in_one_retry(
    client: httpx.AsyncClient, factor: float, window: int, message: str
) -> None:
    async with counting(Provider(factor, window, message)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for number in range(14):  # without a context in between, so that nothing is known
            await loop.append(
                {"type": "user.message", "content": f"q{number}"},
                {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"/f{number}"}},
                {"type": "tool.result", "call_id": f"c{number}", "content": "some words " * 200},
            )
        context = await loop.call()
        assert len(loop.overflows) == 1
        assert context["evictions"]
        assert provider.asked[0] > window >= provider.asked[1]
        epochs = (await client.get("/v1/sessions/s/epochs")).json()["items"]
        assert epochs[-1]["cause"] == "overflow"
        assert epochs[-1]["tokens_after"] < epochs[-1]["tokens_before"]


async def test_a_smaller_window_named_in_an_error_is_used(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0, 9_000)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for _ in range(10):
            context = await loop.turn(words=800)
        assert len(loop.overflows) == 1
        assert context["tokens"]["limit"] == 9_000
        [known] = (await client.get("/v1/calibrations")).json()["items"]
        assert known["window_tokens"] == 9_000
        larger = await loop.context(max_tokens=100_000)  # above the learnt window: the caller may know better
        assert larger["tokens"]["limit"] == 100_000


async def test_an_unnamed_smaller_window_is_learnt_from_the_retry(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0, 9_000, WITHOUT_NUMBERS)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for _ in range(14):
            context = await loop.turn(words=800)
        assert 1 <= len(loop.overflows) <= 2
        assert context["tokens"]["limit"] < 11_000


async def test_a_switch_to_a_calibrated_model_uses_its_calibration(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.55)) as dear, counting(Provider(1.0)) as plain:
        teacher = Loop(client, dear, "teacher", model="dear-model")
        for _ in range(6):
            await teacher.turn(words=200)
        loop = Loop(client, plain, "s", model="plain-model", max_tokens=WINDOW)
        for _ in range(6):
            context = await loop.turn(words=200)
        switched = await loop.context(model="dear-model")
        assert switched["epoch"] == context["epoch"] + 1
        assert (await client.get("/v1/sessions/s/epochs")).json()["items"][-1]["cause"] == "model"
        assert switched["tokens"]["calibration"]["ratio"] == pytest.approx(1.55, rel=0.01)
        assert abs(switched["tokens"]["estimate"] / dear.count(switched["request"]) - 1) < 0.03
        tight = await loop.context(model="dear-model", max_tokens=4_000)  # a smaller window, before anything failed
        assert dear.count(tight["request"]) <= 4_000


async def test_the_estimate_follows_the_views_last_report(client: httpx.AsyncClient) -> None:
    """A view whose requests have a fixed overhead is estimated from its last report, whatever the model's ratio."""
    async with counting(Provider(1.0)) as plain, counting(Provider(1.0, overhead=3_000)) as heavy:
        teacher = Loop(client, plain, "teacher")
        for _ in range(10):
            await teacher.turn(words=400)
        loop = Loop(client, heavy, "s")
        for _ in range(6):
            await loop.turn(words=200)
        assert loop.errors[0] > 0.5
        assert max(loop.errors[1:]) < 0.03


async def test_without_reports_nothing_is_calibrated(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0)) as provider:
        loop = Loop(client, provider)
        await loop.append({"type": "user.message", "content": "hello"})
        assert (await loop.context())["tokens"]["calibration"] is None
        assert (await client.get("/v1/calibrations")).json() == {"items": [], "next_cursor": None}


async def test_calibrations_are_listed_by_model(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.55)) as provider:
        for model in ("b", "a", "c"):
            await Loop(client, provider, model, model=model).turn(words=400)
        found = (await client.get("/v1/calibrations", params={"limit": 2})).json()
        rest = (await client.get("/v1/calibrations", params={"limit": 2, "cursor": found["next_cursor"]})).json()
        items = found["items"] + rest["items"]
        assert [item["model"] for item in items] == ["a", "b", "c"]
        assert rest["next_cursor"] is None
        for item in items:
            assert (item["estimator"], item["samples"], item["window_tokens"]) == ("heuristic:o200k_base", 2, None)
            assert item["ratio"] == pytest.approx(1.55, rel=0.01)
            assert item["margin"] == pytest.approx(0.1, rel=0.2)


async def test_implausible_usage_is_not_learnt(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.55)) as provider:
        loop = Loop(client, provider)
        for _ in range(5):
            await loop.turn(words=400)
        before = (await client.get("/v1/calibrations")).json()["items"]
        for tokens in (0, 10**7):
            context = await loop.context()
            await loop.report(context, {"usage": {"input_tokens": tokens}})
        after = (await client.get("/v1/calibrations")).json()["items"]
        assert [{**one, "updated_at": None} for one in after] == [{**one, "updated_at": None} for one in before]
        assert abs((await loop.context())["tokens"]["estimate"] / context["tokens"]["estimate"] - 1) < 0.01


async def test_pressure_uses_the_calibration(client: httpx.AsyncClient) -> None:
    async with counting(Provider(4.0)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        await loop.append({"type": "user.message", "content": "what about it " * 300})
        context = await loop.context()
        before = (await loop.append({"type": "assistant.message", "content": "yes"}))["pressure"]["budget"]
        await loop.report(context, await loop.send(context))
        after = (await loop.append({"type": "user.message", "content": "and now"}))["pressure"]["budget"]
        assert after == pytest.approx(before / 4, rel=0.02)


async def test_a_calibration_of_one_server_is_used_by_another(client: httpx.AsyncClient, database_url: str) -> None:
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url) as elsewhere,
        counting(Provider(1.55)) as provider,
    ):
        here, there = Loop(client, provider), Loop(elsewhere, provider)
        for _ in range(3):
            await here.append({"type": "user.message", "content": "what about it " * 200})
            first = await there.context()  # also caches the view without the report
            await here.report(first, await here.send(first))
            again = await there.context()
            assert again["tokens"]["estimate"] == provider.count(again["request"])
            assert again["tokens"]["calibration"]["ratio"] == pytest.approx(1.55, rel=0.01)
        other = Loop(elsewhere, provider, "other")
        await other.append({"type": "user.message", "content": "what about it " * 200})
        context = await other.context()
        assert abs(context["tokens"]["estimate"] / provider.count(context["request"]) - 1) < 0.01


async def test_reports_do_not_reload_cached_views(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of one process update its cached view, so that a context needs one statement."""
    read: list[str] = []
    for name in ("load", "refresh"):
        real = getattr(views, name)

        async def spied(*args: object, real: Any = real, name: str = name, **more: object) -> object:
            read.append(name)
            return await real(*args, **more)

        monkeypatch.setattr(views, name, spied)
    async with counting(Provider(1.55)) as provider:
        loop = Loop(client, provider)
        for _ in range(6):
            await loop.turn(words=200)
        assert len(read) <= 3


TALK = {"type": "user.message", "content": "what about it " * 300}


async def limit(client: httpx.AsyncClient, sid: str, **asks: Any) -> int:
    answer = await client.post(f"/v1/sessions/{sid}/context", json={"max_tokens": WINDOW, **asks})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["tokens"]["limit"])


async def report_call(client: httpx.AsyncClient, sid: str, outcome: dict[str, Any], **asks: Any) -> dict[str, Any]:
    """Append a message, request a context and report an outcome of it; return the context."""
    (await client.post(f"/v1/sessions/{sid}/events", json={"events": [TALK]})).raise_for_status()
    answer = await client.post(f"/v1/sessions/{sid}/context", json={"max_tokens": WINDOW, **asks})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    path = f"/v1/sessions/{sid}/calls/{made['call_id']}/outcome"
    (await client.post(path, json=outcome)).raise_for_status()
    return made


def window_error(window: int) -> dict[str, Any]:
    return {"error": {"status": 400, "message": f"This model's maximum context length is {window} tokens."}}


@pytest.mark.parametrize("asks", [{}, {"model": "m"}], ids=["nameless", "named"])
@pytest.mark.parametrize("window", [5, 200])
async def test_an_implausible_window_is_ignored(client: httpx.AsyncClient, window: int, asks: dict[str, Any]) -> None:
    for sid in ("a", "b"):
        await report_call(client, sid, window_error(window), **asks)
    for sid in ("a", "b"):
        assert await limit(client, sid, **asks) == WINDOW


async def test_sessions_without_a_model_share_no_calibration(client: httpx.AsyncClient) -> None:
    await report_call(client, "b", {"latency_ms": 1})
    for _ in range(3):
        made = await report_call(client, "a", {"usage": {"input_tokens": 9_000}})
        await report_call(client, "a", window_error(8_000))
    assert await limit(client, "b") == WINDOW
    other = (await client.post("/v1/sessions/b/context", json={"max_tokens": WINDOW})).json()["tokens"]
    assert (other["calibration"], other["target"]) == (None, made["tokens"]["target"])
    assert (await client.get("/v1/calibrations")).json()["items"] == []


async def test_a_session_without_a_model_is_calibrated_by_its_own_reports(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await report_call(client, "a", {"latency_ms": 1})
    await report_call(client, "a", window_error(2_500))
    assert await limit(client, "a") == 2_500
    made = await report_call(client, "b", {"usage": {"input_tokens": 3_200}})
    ratio = 3_200 / made["tokens"]["estimate"]
    again = (await client.post("/v1/sessions/b/context", json={"max_tokens": WINDOW, "force": True})).json()
    assert again["tokens"]["calibration"]["ratio"] == pytest.approx(ratio, rel=0.01)


async def test_an_error_applies_to_other_sessions_once_a_second_one_agrees(client: httpx.AsyncClient) -> None:
    """The message does not confirm the error: the call was far smaller than the named window."""
    for sid in ("a", "b", "c"):
        await report_call(client, sid, {"latency_ms": 1}, model="m")
    await report_call(client, "a", window_error(9_000), model="m")
    assert await limit(client, "a", model="m") == 9_000
    assert await limit(client, "b", model="m") == WINDOW
    await report_call(client, "a", window_error(9_000), model="m")  # the same session is no second witness
    assert await limit(client, "b", model="m") == WINDOW
    await report_call(client, "b", window_error(9_000), model="m")
    assert await limit(client, "c", model="m") == 9_000
    assert (await client.get("/v1/calibrations")).json()["items"][0]["window_tokens"] == 9_000


async def test_an_error_below_accepted_usage_is_ignored(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await report_call(client, "a", {"usage": {"input_tokens": 1_200}}, model="m")
    message = "This model's maximum context length is 1000 tokens. However, your messages resulted in 1100 tokens."
    for sid in ("a", "b"):
        await report_call(client, sid, {"error": {"message": message}}, model="m")
    for sid in ("a", "b", "c"):
        await report_call(client, sid, {"latency_ms": 1}, model="m")
        assert await limit(client, sid, model="m") == WINDOW


async def test_one_outlier_does_not_affect_other_sessions(client: httpx.AsyncClient) -> None:
    await report_call(client, "b", {"latency_ms": 1}, model="m")
    before = (await client.post("/v1/sessions/b/context", json={"max_tokens": WINDOW, "model": "m"})).json()
    made = await report_call(client, "a", {"latency_ms": 1}, model="m")
    made = await report_call(client, "a", {"usage": {"input_tokens": made["tokens"]["estimate"] * 9}}, model="m")
    after = (await client.post("/v1/sessions/b/context", json={"max_tokens": WINDOW, "model": "m"})).json()
    assert after["tokens"]["target"] == before["tokens"]["target"]
    for number in range(3):
        made = await report_call(client, "c", {"usage": {"input_tokens": (number + 1) * 1_000}}, model="m")
    known = (await client.get("/v1/calibrations")).json()["items"][0]
    assert known["ratio"] * (1 + known["margin"]) < 2


async def test_calibrations_can_be_deleted(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.55)) as provider:
        for model in ("a", "b", "c"):
            await Loop(client, provider, model, model=model).turn(words=400)
    one = await client.delete("/v1/calibrations", params={"model": "a", "estimator": "heuristic:o200k_base"})
    assert (one.status_code, one.json()) == (200, {"forgotten": 1})
    none = await client.delete("/v1/calibrations", params={"model": "b", "estimator": "ceil4"})
    assert none.json() == {"forgotten": 0}
    assert [row["model"] for row in (await client.get("/v1/calibrations")).json()["items"]] == ["b", "c"]
    assert (await client.delete("/v1/calibrations")).json() == {"forgotten": 2}
    new = Loop(client, Provider(1.0), "new", model="b")
    await new.append(TALK)
    assert (await new.context())["tokens"]["calibration"] is None


async def test_usage_reports_do_not_wait_for_a_locked_calibration(
    client: httpx.AsyncClient, database: Database
) -> None:
    made = await report_call(client, "a", {"usage": {"input_tokens": 900}}, model="m")
    async with database.transaction() as other:
        assert (await calibrations.lock(other, DEFAULT_TENANT, "m", "heuristic:o200k_base", 0.1, wait=False)).locked
        for sid in ("a", "b"):
            await report_call(client, sid, {"usage": {"input_tokens": made["tokens"]["estimate"] * 2}}, model="m")
        refusal = asyncio.create_task(report_call(client, "b", window_error(9_000), model="m"))  # it waits
        own = (await client.post("/v1/sessions/a/context", json={"max_tokens": WINDOW, "model": "m"})).json()
        assert own["tokens"]["calibration"]["ratio"] > 1
        assert (await client.get("/v1/calibrations")).json()["items"][0]["samples"] == 1
        assert not refusal.done()
    await refusal
    await report_call(client, "b", {"usage": {"input_tokens": 900}}, model="m")
    assert (await client.get("/v1/calibrations")).json()["items"][0]["samples"] == 2


async def test_a_report_learns_from_its_view_as_another_report_leaves_it(
    client: httpx.AsyncClient, database: Database
) -> None:
    """The second statement of the report waits for the other one, and then finds the view changed."""
    await report_call(client, "a", {"usage": {"input_tokens": 900}}, model="m")
    teach = "UPDATE views SET learned_version = learned_version + 5 WHERE view = 'main'"
    waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.transaction() as other:
        await other.execute(teach)
        report = asyncio.create_task(report_call(client, "a", {"usage": {"input_tokens": 800}}, model="m"))
        while await database.fetchrow(waits) is None:
            assert not report.done()
    made = await report
    row = await database.fetchrow(
        "SELECT learned_version, reported_call::text, reported_tokens, learned -> 'points' ->> 1 AS point FROM views"
    )
    assert row is not None
    assert (row["learned_version"], row["reported_call"], row["reported_tokens"]) == (7, made["call_id"], 800)
    assert row["point"] is not None
    assert (await client.get("/v1/calibrations")).json()["items"][0]["samples"] == 2
