"""S3: the tool with which a model requests a compaction, under the preset `clip`."""

import httpx
import pytest

from tests.conformance.agent import Agent, request_text
from tests.conformance.conftest import compact

TEXT = "word " * 80


@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic"])
async def test_s3_14_a_tool_without_parameters(client: httpx.AsyncClient, form: str) -> None:
    tool = (await client.get("/v1/tools/compact", params={"format": form})).json()
    inner = tool["function"] if form == "openai" else tool
    assert inner["name"] == "compact_context"
    schema = inner["input_schema" if form == "anthropic" else "parameters"]
    assert (schema["type"], schema["properties"]) == ("object", {})
    assert (await client.get("/v1/tools/compact")).json()[form] == tool
    assert (await client.get("/v1/tools/compact", params={"format": "other"})).status_code == 422


async def test_s3_14_it_answers_what_was_done_and_later_rounds_see_it(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    for number in range(25):
        await agent.user(f"message-{number}. {TEXT}")
    await agent.context()
    await agent.post({"type": "tool.call", "call_id": "t", "tool": "compact_context"})
    done = await compact(client)
    assert (done["messages_compressed"], done["batches_created"]) == (21, 2)
    assert 0 < done["tokens_after"] < done["tokens_before"]
    await agent.post({"type": "tool.result", "call_id": "t", "content": f"{done['messages_compressed']} compressed"})
    context = await agent.context(force=True)
    seen = request_text(context)
    assert "[Context Summary — 21 messages compressed across 1 compaction cycle]" in seen
    assert "message-20." not in seen
    assert all(text in seen for text in ("message-22.", "message-24.", "21 compressed"))  # the newest five, as before
    assert (await agent.context())["sha256"] == context["sha256"]


async def test_s3_14_nothing_to_compress_is_zero_of_both(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    await agent.user("hello")
    before = await agent.context()
    done = await compact(client)
    assert (done["state"], done["messages_compressed"], done["batches_created"]) == ("skipped", 0, 0)
    assert (await agent.context(force=True))["request"] == before["request"]
