"""What an agent needs of Palimpsest, in one small class to copy: append, get a context, report, recall."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

Json = dict[str, Any]


class Memory:
    """One session. `format` is whose messages go in and come out: openai, openai-responses or anthropic.

    Every method raises httpx.HTTPStatusError when the server refuses; the answer's `detail` says why.
    """

    def __init__(self, http: httpx.AsyncClient, session: str, format: str, model: str, max_tokens: int) -> None:
        self._http, self._path = http, f"/v1/sessions/{session}"
        self._format, self._model, self._max_tokens = format, model, max_tokens
        self._asked: Json = {"format": format, "model": model, "max_tokens": max_tokens}

    async def begin(self, instructions: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """The system prompt and the agent's own tools, with the one that gets back what was left out."""
        recall = (await self._get("/v1/tools/recall", {"format": self._format})).json()
        await self._post("/events", {"events": [{"type": "tools", "content": [*tools, recall]}]})
        await self._post("/events", {"events": [{"type": "system.prompt", "content": instructions}]})

    async def log(self, *messages: Mapping[str, Any]) -> None:
        """Append what was said or done, as the provider's SDK writes it."""
        await self._post("/messages", {"format": self._format, "messages": list(messages)})

    async def context(self, **more: Any) -> Json:
        """The next context: its `request` is what goes to the provider, its `call_id` names it."""
        return await self._post("/context", self._asked | more)

    async def report(self, call_id: str, **outcome: Any) -> Json:
        """What became of a call. `action` is `retry` when a tighter context is worth asking for: post `next`'s body."""
        return await self._post(f"/calls/{call_id}/outcome", outcome)

    async def recall(self, arguments: Mapping[str, Any], call_id: str) -> Json:
        """The originals that a model asked for with the recall tool; `call_id` is the call in which it did."""
        return await self._post("/recall", {**arguments, "call_id": call_id})

    async def _get(self, path: str, params: Json) -> httpx.Response:
        return (await self._http.get(path, params=params)).raise_for_status()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        answer: Json = (await self._http.post(self._path + path, json=body)).raise_for_status().json()
        return answer
