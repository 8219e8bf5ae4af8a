"""An agent's loop over real HTTP: append, request a context, send it to a fake provider, report the outcome."""

from typing import Any

import httpx

from tests.support.counting import Provider

MODEL = "stand-in-model"
WAIT_MS = 100
"""The time a retry waits for summaries, instead of the ten seconds it would: no worker runs here."""


class Loop:
    """An agent in one session with one provider; the figures of every context are checked."""

    def __init__(
        self, http: httpx.AsyncClient, provider: Provider, sid: str = "s", *, model: str = MODEL, **asks: Any
    ) -> None:
        self.http, self.provider = http, provider
        self.path, self.asks = f"/v1/sessions/{sid}", {"format": "openai", "model": model, **asks}
        self.overflows: list[dict[str, Any]] = []
        self.errors: list[float] = []
        self.turns = 0

    async def append(self, *events: dict[str, Any]) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/events", json={"events": list(events)})
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    async def context(self, **asks: Any) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/context", json=self.asks | asks)
        assert answer.status_code == 200, answer.text
        return check_figures(answer.json())

    async def send(self, context: dict[str, Any]) -> dict[str, Any]:
        """Send a context to the provider and return the outcome to report."""
        url = f"{self.provider.url}/v1/chat/completions"
        answer = await self.http.post(url, json={"model": context["model"], **context["request"]})
        body = answer.json()
        if answer.status_code == 200:
            expected = context["tokens"]["estimate"] + context["tokens"]["outside"]
            self.errors.append(abs(expected / body["usage"]["prompt_tokens"] - 1))
            return {"usage": {"input_tokens": body["usage"]["prompt_tokens"], "output_tokens": 3}}
        return {"error": {"status": answer.status_code, "message": body["error"]["message"]}}

    async def report(self, context: dict[str, Any], outcome: dict[str, Any], status: int = 200) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/calls/{context['call_id']}/outcome", json=outcome)
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def call(self, **asks: Any) -> dict[str, Any]:
        """Make a model call, retried once after an overflow, and return the context that was accepted."""
        context = await self.context(**asks)
        outcome = await self.send(context)
        verdict = await self.report(context, outcome)
        if verdict["action"] == "retry":
            self.overflows.append(verdict)
            retry = verdict["next"]
            body = {**retry["body"], "wait_ms": WAIT_MS}
            again = await self.http.request(retry["method"], retry["path"], json=body)
            assert again.status_code == 200, again.text
            context = check_figures(again.json())
            verdict = await self.report(context, await self.send(context))
        assert verdict == {"overflow": False, "action": "none"}, "one retry was not enough"
        return context

    async def turn(self, words: int = 60, **asks: Any) -> dict[str, Any]:
        """Append a user message and a tool round, with a model call after each."""
        self.turns += 1
        number = self.turns
        await self.append({"type": "user.message", "content": f"Question {number}: " + "what about it " * (words // 4)})
        await self.call(**asks)
        await self.append(
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"/f{number}"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"file {number}\n" + "word " * words},
        )
        context = await self.call(**asks)
        await self.append({"type": "assistant.message", "content": "Yes."})
        return context


def check_figures(context: dict[str, Any]) -> dict[str, Any]:
    tokens = context["tokens"]
    assert tokens["estimate"] <= tokens["target"] <= tokens["limit"]
    assert sum(tokens["by_source"].values()) == tokens["estimate"]
    return context
