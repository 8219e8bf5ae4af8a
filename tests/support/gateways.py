"""Clients of the gateway, and what it has left in the log."""

import asyncio
from typing import Any, Final

import anthropic
import httpx
import openai

from app.settings import Settings
from tests.support.provider import Provider

KEY: Final = "sk-the-providers-key-123456"
SESSION: Final = {"x-palimpsest-session": "s"}


def settings(provider: Provider, **given: Any) -> Settings:
    return Settings(gateway_anthropic_url=provider.url, gateway_openai_url=f"{provider.url}/v1", **given)


def claude(gateway: str, headers: dict[str, str] = SESSION) -> anthropic.AsyncAnthropic:
    url = f"{gateway}/gateway/anthropic"
    return anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


def gpt(gateway: str, headers: dict[str, str] = SESSION) -> openai.AsyncOpenAI:
    url = f"{gateway}/gateway/openai/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


async def logged(http: httpx.AsyncClient, number: int, session: str = "s", **headers: str) -> list[dict[str, Any]]:
    """The session's events, once there are so many: replies are logged behind the answer."""
    for _ in range(500):
        answer = await http.get(f"/v1/sessions/{session}/events?limit=1000", headers=headers)
        items = answer.json()["items"] if answer.status_code == 200 else []
        if len(items) >= number:
            break
        await asyncio.sleep(0.01)
    assert len(items) == number, [one["type"] for one in items]
    return items


async def reported(http: httpx.AsyncClient, call: str, session: str = "s") -> dict[str, Any]:
    """A call's record, once its outcome is there."""
    for _ in range(500):
        found = (await http.get(f"/v1/sessions/{session}/calls/{call}")).json()
        if found.get("outcome"):
            break
        await asyncio.sleep(0.01)
    return found


async def events_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await http.get("/v1/sessions/s/events?limit=1000")).json()["items"]
    return items


async def settled_calls(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """The calls of the session, once there is one."""
    items: list[dict[str, Any]] = []
    for _ in range(500):
        items = (await http.get("/v1/sessions/s/calls")).json()["items"]
        if items:
            break
        await asyncio.sleep(0.01)
    return items
