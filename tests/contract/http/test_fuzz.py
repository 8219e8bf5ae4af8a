"""Fuzzed requests get a documented response, with keys, without keys, and with wrong keys."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from tests.conftest import serving
from tests.contract.contexts.test_context import turn_of_rounds
from tests.support.fuzz import Fuzz
from tests.support.openapi import document

pytestmark = pytest.mark.slow

KEY = "a-key-for-the-fuzz-tests"
CALLERS = [("open", None, None), ("keyed", KEY, KEY), ("keyless", KEY, None), ("wrong", KEY, "pal_wrong")]


@asynccontextmanager
async def fuzzing(
    database_url: str, api_key: str | None, sent: str | None, only: str | None = None
) -> AsyncIterator[Fuzz]:
    """Serve a populated database and yield a fuzzer of all its operations, or of one path."""
    async with serving(Settings(api_key=api_key), database_url) as url:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as http:
            assert (await http.post("/v1/sessions/s/events", json={"events": turn_of_rounds(3)})).status_code == 201
            call = (await http.get("/v1/sessions/s/context", params={"max_tokens": 8000})).json()["call_id"]
            hook = {"url": "http://127.0.0.1:9/", "events": ["compaction.finished"]}
            await http.put("/v1/webhooks/w", json=hook)
        known: dict[str, Any] = {
            "sid": "s",
            "call_id": call,
            "other_id": call,
            "seq": 1,
            "name": "w",
            "kind": "sources",
        }
        operations = json.loads(document())
        if api_key is None:
            del operations["paths"]["/v1/keys"]["post"]  # the first key created would close an open server
        if only is not None:
            operations["paths"] = {only: operations["paths"][only]}
        with closing(Fuzz(url, operations, sent, known)) as fuzz:
            yield fuzz


@pytest.mark.parametrize(("name", "api_key", "sent"), CALLERS)
async def test_requests_generated_from_the_document(
    database_url: str, name: str, api_key: str | None, sent: str | None
) -> None:
    async with fuzzing(database_url, api_key, sent) as fuzz:
        await asyncio.to_thread(fuzz.send_generated, 2)
        assert fuzz.cases > 100
        assert (fuzz.counts[401] > fuzz.cases / 2) is (name in ("keyless", "wrong"))


@pytest.mark.parametrize(("name", "api_key", "sent"), CALLERS)
async def test_hostile_requests(database_url: str, name: str, api_key: str | None, sent: str | None) -> None:
    async with fuzzing(database_url, api_key, sent) as fuzz:
        await asyncio.to_thread(fuzz.send_hostile, 100, 13)
        assert fuzz.cases > 80


async def test_fuzzed_contexts_include_accepted_conversations_of_every_format(database_url: str) -> None:
    async with fuzzing(database_url, None, None, only="/v1/sessions/{sid}/context") as fuzz:
        await asyncio.to_thread(fuzz.send_generated, 60)
        assert set(fuzz.reconciled) == {"openai", "openai-responses", "anthropic", "gemini"}
        assert fuzz.done["get_context"] > 0
