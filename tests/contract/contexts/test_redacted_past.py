"""Past contexts and token counts after a redaction."""

from typing import Any

import httpx
import pytest
import tiktoken

from tests.conformance.session_course import WorkerQueue
from tests.contract.summaries.test_summary_coverage import begin_session, edit_turns, worker, worker_done
from tests.support import recount
from tests.support.background import Background

__all__ = ["worker", "worker_done"]


@pytest.mark.slow
@pytest.mark.wing("audit")
async def test_a_past_context_renders_again_after_a_redaction_under_a_summary(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue
) -> None:
    worker.start()
    agent = await begin_session(client, "default")
    heads = []
    for turn in range(60):
        heads.append((await agent.post(*edit_turns(turn, turn + 1)))["head"])
        await worker_done()
        await agent.context()
    assert (await agent.context())["summaries"]
    assert (await client.delete("/v1/sessions/s/events/2")).status_code == 204
    for written in (False, True):
        if written:
            await worker_done()
        for head in heads[20::5]:
            past = await agent.context(at=head)
            assert all([(await summary(client, one["id"]))["text"] for one in past["summaries"]])
            again = await client.get(f"/v1/sessions/s/calls/{past['call_id']}/context")
            assert (again.status_code, again.json()["sha256"]) == (200, past["sha256"])
            assert (await agent.context(at=head))["epoch"] == past["epoch"]
    epochs = (await client.get("/v1/sessions/s/epochs", params={"view": "main"})).json()["items"]
    assert "redaction" in [row["cause"] for row in epochs]


async def summary(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/sessions/s/summaries/{id}")).json()
    return found


async def test_a_redacted_event_counts_only_its_placeholder(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, "default", window_tokens=100_000)
    await agent.user("short")
    seq = await agent.user("a long message of many words " * 1_000)
    await agent.assistant("and an answer")
    before = (await agent.context())["tokens"]["estimate"]
    assert (await client.delete(f"/v1/sessions/s/events/{seq}")).status_code == 204
    after = await agent.context()
    assert after["tokens"]["estimate"] < before / 10
    fresh = await agent.context(view="fresh", model="gpt-4o")
    assert fresh["tokens"]["estimate"] < before / 10


@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", "gemini"])
async def test_i13_a_short_redacted_event_counts_its_whole_placeholder(client: httpx.AsyncClient, form: str) -> None:
    await client.put("/v1/sessions/s", json={"model": "gpt-4o"})
    said = [{"type": f"{who}.message", "content": "hi"} for _ in range(40) for who in ("user", "assistant")]
    await client.post("/v1/sessions/s/events", json={"events": said})
    for seq in range(1, 81):
        assert (await client.delete(f"/v1/sessions/s/events/{seq}")).is_success
    answer = (await client.get("/v1/sessions/s/context", params={"format": form})).json()
    encoding = tiktoken.get_encoding("o200k_base")
    assert answer["tokens"]["estimate"] >= recount.count_tokens(
        answer["request"], lambda text, _: len(encoding.encode(text))
    )
