"""A small client of Palimpsest for an agent, to copy: append, get a context, report, recall."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

Json = dict[str, Any]


def server() -> httpx2.AsyncClient:
    """Return a client of the server that PALIMPSEST_URL and PALIMPSEST_API_KEY name, by default the local one."""
    key = os.environ.get("PALIMPSEST_API_KEY")
    return httpx2.AsyncClient(
        base_url=os.environ.get("PALIMPSEST_URL", "http://127.0.0.1:8700"),
        headers={"Authorization": f"Bearer {key}"} if key else None,
        timeout=60,
    )


class Memory:
    """One session. `format` is the provider's: openai, openai-responses or anthropic.

    Every method raises httpx2.HTTPStatusError when the server refuses; the response's `detail` says why.
    """

    def __init__(self, http: httpx2.AsyncClient, session: str, format: str, model: str, max_tokens: int) -> None:
        self._http, self._path = http, f"/v1/sessions/{session}"
        self._format, self._model, self._max_tokens = format, model, max_tokens
        self._asked: Json = {"format": format, "model": model, "max_tokens": max_tokens}

    async def begin(self, instructions: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Append the system prompt and the agent's tools, with the recall tool. The session must be new."""
        recall = (await self._get("/v1/tools/recall", {"format": self._format})).json()
        prefix = [{"type": "tools", "content": [*tools, recall]}, {"type": "system.prompt", "content": instructions}]
        await self._post("/events", {"events": prefix, "expected_head": 0})

    async def log(self, *messages: Mapping[str, Any]) -> None:
        """Append messages in the form of the provider's SDK."""
        await self._post("/messages", {"format": self._format, "messages": list(messages)})

    async def context(self, *messages: Mapping[str, Any], **more: Any) -> Json:
        """Append messages, and return the next context: `request` is for the provider, `call_id` identifies the call.

        With `outcome`, the outcome of the call before is reported in the same request.
        """
        append = {"append": {"format": self._format, "messages": list(messages)}} if messages else {}
        return await self._post("/context", self._asked | append | more)

    async def report(self, call_id: str, **outcome: Any) -> Json:
        """Report a call's outcome. If `action` is `retry`, a tighter context is available: post `next`'s body."""
        return await self._post(f"/calls/{call_id}/outcome", outcome)

    async def recall(self, arguments: Mapping[str, Any], call_id: str) -> Json:
        """Return the originals that a model requested with the recall tool in the call `call_id`."""
        return await self._post("/recall", {**arguments, "call_id": call_id})

    async def erase(self) -> None:
        """Erase the session with its log. The key must have the scope `admin`."""
        (await self._http.delete(self._path)).raise_for_status()

    async def _get(self, path: str, params: Json) -> httpx2.Response:
        return (await self._http.get(path, params=params)).raise_for_status()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        answer: Json = (await self._http.post(self._path + path, json=body)).raise_for_status().json()
        return answer
