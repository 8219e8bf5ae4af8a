"""A context's estimate covers everything sent, including fields of a part other than its text."""

import json
from typing import Any

import httpx
import pytest

from tests.support import recount

LONG = "secret words that nobody sees " * 1_400
FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "blocks")
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("openai", {"type": "text", "text": "hi", "x_notes": [{"type": "note", "words": LONG}]}),
    "openai-responses": (
        "openai-responses",
        {"type": "input_text", "text": "hi", "annotations": [{"type": "file_citation", "quote": LONG}]},
    ),
    "anthropic": (
        "anthropic",
        {"type": "text", "text": "hi", "citations": [{"type": "char_location", "cited_text": LONG}]},
    ),
    "unknown": ("anthropic", {"type": "hologram", "text": "hi", "x_depth": LONG}),
    "text_with_content": ("anthropic", {"type": "text", "text": "hi", "content": [{"type": "text", "text": LONG}]}),
    "image": ("openai", {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "x_alt": LONG}}),
    "inner": ("anthropic", {"type": "wrapper", "content": [{"type": "text", "text": "hi"}], "x_beside": LONG}),
}


@pytest.mark.parametrize("what", PARTS)
async def test_i13_every_field_of_a_part_is_counted(client: httpx.AsyncClient, what: str) -> None:
    form, part = PARTS[what]
    message = {"role": "user", "content": [part]}
    posted = await client.post("/v1/sessions/s/messages", json={"format": form, "messages": [message]})
    assert posted.status_code == 201, posted.text
    for model in ("gpt-4o", "claude-sonnet-4-5", "a-model-nobody-knows"):
        for written in FORMATS:
            params: dict[str, Any] = {"format": written, "model": model}
            answer = (await client.get("/v1/sessions/s/context", params=params)).json()
            sent = json.dumps(answer["request"], ensure_ascii=False)
            assert (LONG in sent) or written not in (form, "blocks")
            assert answer["tokens"]["estimate"] >= recount.count_tokens(answer["request"], _at_least)


async def test_i2_a_part_over_the_window_is_refused_whichever_field_is_large(
    client: httpx.AsyncClient,
) -> None:
    for name, (form, part) in PARTS.items():
        message = {"role": "user", "content": [part]}
        await client.post(f"/v1/sessions/{name}/messages", json={"format": form, "messages": [message]})
        params: dict[str, Any] = {"format": form, "model": "gpt-4o", "max_tokens": 4_000}
        refused = await client.get(f"/v1/sessions/{name}/context", params=params)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/context-infeasible"), name


def _at_least(text: str, kind: object) -> int:
    """Return fewer tokens than any tokenizer counts for these words."""
    return len(text) // 6
