"""The provider gets the bytes of a thousand requests, written in many ways, through a gateway that observes."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import httpx
import pytest

from tests.conftest import serving
from tests.support.gateways import settings
from tests.support.provider import Provider

pytestmark = [pytest.mark.slow, pytest.mark.wing("gateway")]

SESSIONS: Final = 50
CALLS: Final = 20
"""Calls of each session."""
TEXTS: Final = ("Größe: 3 µm", "日本語", "a \u2028 b", 'tab\tand \\ and "quotes"', "</script>", "😀 \u0000", "1e3", "")
UNKNOWN: Final = ({"metadata": {"user_id": "u"}}, {"x_unknown": [1e3, -0.0, 12345678901234567890, None]}, {})
IMAGE: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PATHS: Final = {
    "anthropic": "anthropic/v1/messages",
    "openai": "openai/v1/chat/completions",
    "responses": "openai/v1/responses",
}
Json = dict[str, Any]


def _said(form: str, random: Random, number: int) -> Json:
    """Return a message of the user; some have an image."""
    text = f"{number}: {random.choice(TEXTS)} " + "a line of the file. " * random.randrange(60)
    if random.random() < 0.8:
        return {"role": "user", "content": text}
    url = f"data:image/png;base64,{IMAGE}"
    images: dict[str, Json] = {
        "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
        "openai": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url, "detail": "auto"},
    }
    kind = "input_text" if form == "responses" else "text"
    return {"role": "user", "content": [{"type": kind, "text": text}, images[form]]}


def _called(form: str, random: Random, number: int) -> list[Json]:
    """Return a call of a tool with its result."""
    name, given, result = f"call_{number}", {"path": random.choice(TEXTS), "n": number}, random.choice(TEXTS) or "."
    if form == "anthropic":
        call = {"type": "tool_use", "id": name, "name": "read", "input": given}
        answer = {"type": "tool_result", "tool_use_id": name, "content": result}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
    arguments = json.dumps(given)
    if form == "openai":
        call = {"id": name, "type": "function", "function": {"name": "read", "arguments": arguments}}
        told = {"role": "tool", "tool_call_id": name, "content": result}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, told]
    return [
        {"type": "function_call", "call_id": name, "name": "read", "arguments": arguments},
        {"type": "function_call_output", "call_id": name, "output": result},
    ]


def _written(value: Json, random: Random) -> bytes:
    """Return a body as JSON, in one of the ways in which clients write it."""
    members = list(value.items())
    random.shuffle(members)
    separators = random.choice([(",", ":"), (", ", ": "), (" ,  ", " :\t")])
    indent = random.choice([None, None, 3])
    ascii_only = random.random() < 0.5
    text = json.dumps(dict(members), ensure_ascii=ascii_only, indent=indent, separators=separators)
    return f"{random.choice(['', ' ', chr(10)])}{text}{random.choice(['', chr(10)])}".encode()


def _session(form: str, random: Random) -> Iterator[bytes]:
    """Yield the requests of a conversation that grows, and now and then begins anew."""
    messages: list[Json] = []
    for number in range(CALLS):
        if random.random() < 0.05:
            messages = []
        messages.append(_said(form, random, number))
        if random.random() < 0.6:
            messages += _called(form, random, number)
        body: Json = {"model": "some-model", "input" if form == "responses" else "messages": messages}
        body |= random.choice(UNKNOWN)
        if form == "anthropic":
            body |= {"max_tokens": 64, "system": random.choice(TEXTS) or "Be brief."}
        if random.random() < 0.5:
            body["stream"] = True
        yield _written(body, random)
        messages = [*messages, {"role": "assistant", "content": "Hello."}]


async def test_a_thousand_requests_reach_the_provider_byte_for_byte(database_url: str, provider: Provider) -> None:
    random, modes = Random(33), Counter[str]()
    async with (
        serving(settings(provider, gateway_mode="observe"), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        for number in range(SESSIONS):
            form = list(PATHS)[number % len(PATHS)]
            await http.put(f"/v1/sessions/s{number}", json={"policy": {"window_tokens": 4_000}})
            for raw in _session(form, random):
                provider.requests.clear()
                path = f"/gateway/s/s{number}/{PATHS[form]}"
                answer = await http.post(path, content=raw, headers={"content-type": "application/json"})
                (received,) = provider.requests
                same = received.raw == raw and answer.content == bytes(received.answered)
                assert same, (form, raw[:200], received.raw[:200])
                modes[answer.headers["x-palimpsest-mode"]] += 1
    print(dict(modes))
    assert provider.refused == []
    assert modes.total() == SESSIONS * CALLS
    assert modes["observed"] >= 0.9 * modes.total()
