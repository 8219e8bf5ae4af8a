"""Calibration: what providers report makes estimates right and contexts fit, whatever their tokenizers count."""

from typing import Any

import httpx
import pytest

from app.settings import Settings
from app.store import views
from tests.conftest import serving
from tests.contract.loop import Loop
from tests.support.counting import WITH_NUMBERS, WITHOUT_NUMBERS, Provider, counting

WINDOW = 16_000


@pytest.mark.parametrize("message", [WITH_NUMBERS, WITHOUT_NUMBERS], ids=["numbers", "no-numbers"])
@pytest.mark.parametrize("factor", [1.0, 1.55, 4.0])
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
        second = Loop(client, provider, "t", max_tokens=WINDOW)  # the tenant's next session knows it from the start
        for _ in range(9):
            await second.turn(words=700)
        assert second.overflows == []
        assert max(second.errors) < 0.03
    assert max(provider.asked[-20:]) > 0.4 * WINDOW  # and the room there is gets used


@pytest.mark.parametrize("message", [WITH_NUMBERS, WITHOUT_NUMBERS], ids=["numbers", "no-numbers"])
@pytest.mark.parametrize(("factor", "window"), [(1.0, 9_000), (1.55, WINDOW), (4.0, WINDOW)])
async def test_the_first_overflow_is_recovered_in_one_retry(
    client: httpx.AsyncClient, factor: float, window: int, message: str
) -> None:
    async with counting(Provider(factor, window, message)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for number in range(14):  # nothing is sent and so nothing is known, until all of it is
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


async def test_a_smaller_window_that_was_named_is_planned_for(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0, 9_000)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for _ in range(10):
            context = await loop.turn(words=800)
        assert len(loop.overflows) == 1
        assert context["tokens"]["limit"] == 9_000
        [known] = (await client.get("/v1/calibrations")).json()["items"]
        assert known["window_tokens"] == 9_000
        larger = await loop.context(max_tokens=100_000)  # more than it was found under: the caller may know better
        assert larger["tokens"]["limit"] == 100_000


async def test_a_smaller_window_that_nobody_names_is_found_from_the_retry(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0, 9_000, WITHOUT_NUMBERS)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        for _ in range(14):
            context = await loop.turn(words=800)
        assert 1 <= len(loop.overflows) <= 2
        assert context["tokens"]["limit"] < 11_000


async def test_a_switch_to_a_model_that_is_known_is_planned_with_it_at_once(client: httpx.AsyncClient) -> None:
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
    """A request of one view with an overhead of its own: known from its last report, whatever the model's ratio is."""
    async with counting(Provider(1.0)) as plain, counting(Provider(1.0, overhead=3_000)) as heavy:
        teacher = Loop(client, plain, "teacher")
        for _ in range(10):
            await teacher.turn(words=400)
        loop = Loop(client, heavy, "s")
        for _ in range(6):
            await loop.turn(words=200)
        assert loop.errors[0] > 0.5
        assert max(loop.errors[1:]) < 0.03


async def test_what_nothing_was_reported_of_is_not_calibrated(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.0)) as provider:
        loop = Loop(client, provider)
        await loop.append({"type": "user.message", "content": "hello"})
        assert (await loop.context())["tokens"]["calibration"] is None
        assert (await client.get("/v1/calibrations")).json() == {"items": [], "next_cursor": None}


async def test_what_is_known_is_listed_by_model(client: httpx.AsyncClient) -> None:
    async with counting(Provider(1.55)) as provider:
        for model in ("b", "a", "c"):
            await Loop(client, provider, model, model=model).turn(words=400)
        found = (await client.get("/v1/calibrations", params={"limit": 2})).json()
        rest = (await client.get("/v1/calibrations", params={"limit": 2, "cursor": found["next_cursor"]})).json()
        items = found["items"] + rest["items"]
        assert [item["model"] for item in items] == ["a", "b", "c"]
        assert rest["next_cursor"] is None
        for item in items:
            assert (item["estimator"], item["samples"], item["window_tokens"]) == ("heuristic", 2, None)
            assert item["ratio"] == pytest.approx(1.55, rel=0.01)
            assert item["margin"] == pytest.approx(0.1, rel=0.2)


async def test_nonsense_teaches_nothing(client: httpx.AsyncClient) -> None:
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


async def test_pressure_and_targets_follow(client: httpx.AsyncClient) -> None:
    async with counting(Provider(4.0)) as provider:
        loop = Loop(client, provider, max_tokens=WINDOW)
        await loop.append({"type": "user.message", "content": "what about it " * 300})
        context = await loop.context()
        before = (await loop.append({"type": "assistant.message", "content": "yes"}))["pressure"]["budget"]
        await loop.report(context, await loop.send(context))
        after = (await loop.append({"type": "user.message", "content": "and now"}))["pressure"]["budget"]
        assert after == pytest.approx(before / 4, rel=0.02)


async def test_what_one_process_learns_the_other_plans_with(client: httpx.AsyncClient, database_url: str) -> None:
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url) as elsewhere,
        counting(Provider(1.55)) as provider,
    ):
        here, there = Loop(client, provider), Loop(elsewhere, provider)
        for _ in range(3):
            await here.append({"type": "user.message", "content": "what about it " * 200})
            first = await there.context()  # and holds the view as it is without the report
            await here.report(first, await here.send(first))
            again = await there.context()
            assert again["tokens"]["estimate"] == provider.count(again["request"])
            assert again["tokens"]["calibration"]["ratio"] == pytest.approx(1.55, rel=0.01)
        other = Loop(elsewhere, provider, "other")
        await other.append({"type": "user.message", "content": "what about it " * 200})
        context = await other.context()
        assert abs(context["tokens"]["estimate"] / provider.count(context["request"]) - 1) < 0.01


async def test_reports_do_not_make_contexts_read_again(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process what is held of a view is brought up to date by its own reports: one statement for a context."""
    read: list[str] = []
    for name in ("load", "news"):
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
