"""Request streams as coding agents send them: side calls, sub-agents, reminders, edits and compactions.

The streams are invented, in the shape of observed requests of Claude Code, Codex and opencode.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.provider import Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")

STREAMS = json.loads((Path(__file__).parents[2] / "support" / "gateway_streams.json").read_text(encoding="utf-8"))


def comparable(value: Any) -> Any:
    """Return the content of a request in a comparable form, without markers and item ids and with texts as parts."""
    if isinstance(value, dict):
        item = value.get("type") in ("message", "reasoning", "function_call")  # the provider assigns item ids
        ignored = ("cache_control", "is_error", "annotations", *(("id", "status") if item else ()))
        kept = {name: comparable(one) for name, one in value.items() if name not in ignored}
        if isinstance(kept.get("content"), str):
            kept["content"] = [{"type": "text", "text": kept["content"]}]
        if "arguments" in kept:
            kept["arguments"] = json.loads(kept["arguments"])
        return kept
    return [comparable(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("stream", STREAMS, ids=[one["client"] for one in STREAMS])
async def test_each_request_has_its_clients_content_and_each_conversation_its_line(
    http: httpx.AsyncClient, provider: Provider, stream: dict[str, Any]
) -> None:
    for step in stream["steps"]:
        reply = step["reply"]
        provider.script.append(ProviderReply(reply["text"], reply["calls"], thinking=reply.get("thinking")))
        answer = await http.post(stream["path"], json=step["body"], headers=step["headers"])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-palimpsest-mode"] == "context", answer.headers
        sent, meant = provider.requests[-1].body, step["body"]
        for name in ("messages", "input", "system"):
            assert comparable(sent.get(name)) == comparable(meant.get(name)), name
        assert {n: v for n, v in sent.items() if n not in ("messages", "input", "system")} == {
            n: v for n, v in meant.items() if n not in ("messages", "input", "system")
        }
    assert not provider.refused
    sessions = (await http.get("/v1/sessions")).json()["items"]
    lines = {one["id"]: len((await http.get(f"/v1/sessions/{one['id']}/lines")).json()["items"]) for one in sessions}
    assert lines == stream["lines"]
