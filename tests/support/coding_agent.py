"""A client that behaves like a coding agent at a gateway: it sends its whole conversation with each call.

It retries after errors and broken streams, edits and compacts its history, requests titles, runs sub-agents, and makes
requests that the gateway passes through. It records what it sent and received, to compare with the log. The bytes of
every response are compared with the bytes the provider sent.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.gateways import KEY
from tests.support.provider import Provider, ProviderReply, ReceivedRequest

Json = dict[str, Any]
PATHS = {"anthropic": "/gateway/anthropic/v1/messages", "openai": "/gateway/openai/v1/chat/completions"}
PATHS["openai-responses"] = "/gateway/openai/v1/responses"
TOOLS: dict[str, list[Json]] = {
    "anthropic": [{"name": "run", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
    "openai": [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}],
    "openai-responses": [{"type": "function", "name": "run", "parameters": {"type": "object"}}],
}
SYSTEM = "You are a careful agent."
ODD = b'"metadata": {"a": 1.50,  "b":"\\u00e9\\u0041" }'
"""A member of every request, in bytes that no JSON encoder writes."""


class Answers:
    """The provider's replies: unique texts and calls, sometimes an error or a broken stream."""

    def __init__(self, provider: Provider, seed: int, trouble: float) -> None:
        self._random = random.Random(seed)
        self._trouble = trouble
        self.last: dict[str, ProviderReply] = {}
        self.number = 0
        provider.choose = self.choose

    def choose(self, asked: ReceivedRequest) -> ProviderReply:
        """Return the next reply."""
        agent = asked.header("x-agent") or ""
        self.number += 1
        luck = self._random.random()
        if luck < self._trouble / 2:
            message = f"Overloaded, you with the key {KEY}"
            return ProviderReply(status=529, error={"error": {"type": "overloaded_error", "message": message}})
        calls = []
        if asked.body.get("tools"):
            count = self._random.choice([0, 1, 1, 1, 2])
            calls = [(f"call_{self.number}_{n}", "run", {"step": f"#{self.number}.{n}#"}) for n in range(count)]
        said = ProviderReply(f"I say #a{self.number}# now." if self._random.random() < 0.8 or not calls else "", calls)
        if luck < self._trouble and asked.body.get("stream"):
            said.cut = self._random.randrange(1, 5)
        self.last[agent] = said
        return said


@dataclass
class Exchange:
    """A call as the client meant it: its messages, and the complete reply."""

    messages: list[Json]
    reply: list[Json]


@dataclass
class Agent:
    """A coding agent; `check` gets each request that reached the provider, and the messages it was made of."""

    name: str
    form: str
    session: str
    http: httpx.AsyncClient
    answers: Answers
    seed: int
    check: Callable[["Agent", list[Json], Json], None]
    provider: Provider
    text_words: int = 30
    words_infeasible: int = 0
    """A number of words that exceeds the window; 0 if no text does."""
    messages: list[Json] = field(default_factory=list)
    sent: list[list[Json]] = field(default_factory=list)
    """Every message list that was sent for a context, whatever the outcome."""
    exchanges: list[Exchange] = field(default_factory=list)
    requests: int = 0
    numbers: int = 0
    modes: dict[str, int] = field(default_factory=dict)
    reason: str | None = None
    came: list[ReceivedRequest] = field(default_factory=list)
    """The requests that the provider received for the last call."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.messages = [self.user()]

    async def live(self, requests: int) -> None:
        """Make `requests` requests."""
        for why in self.reasons():
            await self.ask_passed_through(why)
        while self.requests < requests:
            await self.step()

    async def step(self) -> None:
        """Make one call, after editing, compacting or extending the history at random."""
        luck = self.random.random()
        if luck < 0.06:
            await self.ask([self.user("Title for")], tools=False)
            return
        if luck < 0.10 and len(self.messages) > 6:
            self.edit()
        elif luck < 0.13 and len(self.messages) > 12:
            self.compact()
        elif luck < 0.20 and self.form != "openai-responses" and self.ends_with_user_text():
            self.messages.append({"role": "system", "content": f"Reminder {self.mark()}"})
            self.messages.append(self.user())
        elif luck < 0.24:
            await self.ask([self.user("Do this apart:")], tools=False, part=f"sub{self.random.randrange(3)}")
            return
        elif luck < 0.27:
            await self.ask_passed_through(self.random.choice(self.reasons()))
            return
        reply = await self.ask(self.messages, drops=luck > 0.95)
        if reply is not None:
            self.messages = [*self.messages, *reply]
            self.messages += self.results(reply) or [self.user()]

    async def ask(
        self, messages: list[Json], *, tools: bool = True, part: str | None = None, drops: bool = False
    ) -> list[Json] | None:
        """Send a conversation and return the reply; None after an error or a broken stream."""
        self.sent.append(list(messages))
        raw = self.body(messages, stream=self.random.random() < 0.7, tools=tools)
        mode, status = await self.post(raw, self.headers(part), drops=drops)
        for asked in self.came:
            assert ODD in asked.raw
            self.check(self, messages, asked.body)
        assert mode == "context"
        if status != 200:
            return None
        reply = self.reply(self.answers.last[self.name])
        self.exchanges.append(Exchange(list(messages), reply))
        return reply

    async def ask_passed_through(self, why: str) -> None:
        """Make a request that the gateway must pass to the provider byte for byte."""
        messages = [self.user("Between us:")]
        if why == "context-infeasible":
            messages[0]["content"] += "word " * self.words_infeasible
            self.sent.append(messages)
        raw = self.body(messages, stream=self.random.random() < 0.7, tools=False)
        if why == "conversation-at-provider":
            raw = raw[:-1] + b', "previous_response_id": "resp_of_another"}'
        mode, _ = await self.post(raw, {} if why == "no-session" else self.headers(None))
        assert (mode, self.reason) == ("passthrough" if why == "no-session" else "bypass", why)
        assert [asked.raw for asked in self.came] == [raw]

    def reasons(self) -> list[str]:
        """The reasons for which calls of this agent are passed through."""
        at_provider = ["conversation-at-provider"] if self.form == "openai-responses" else []
        return ["no-session", *at_provider, *(["context-infeasible"] if self.words_infeasible else [])]

    async def post(self, raw: bytes, headers: dict[str, str], *, drops: bool = False) -> tuple[str, int | None]:
        """Send a request and return its mode and status, None for a broken stream; the bytes must be the provider's."""
        self.requests += 1
        fields = {"x-agent": self.name, "content-type": "application/json", "x-api-key": KEY, **headers}
        fields["authorization"] = f"Bearer {KEY}"
        count, got, whole = len(self.provider.requests), bytearray(), False
        url = f"{PATHS[self.form]}?key={KEY}"
        try:
            async with self.http.stream("POST", url, content=raw, headers=fields) as answer:
                mode, self.reason = answer.headers["x-palimpsest-mode"], answer.headers.get("x-palimpsest-reason")
                self.modes[mode] = self.modes.get(mode, 0) + 1
                async for piece in answer.aiter_raw():
                    got += piece
                    if drops and answer.status_code == 200:
                        break
                else:
                    whole = True
        except httpx.RemoteProtocolError:
            pass
        self.came = [one for one in self.provider.requests[count:] if one.header("x-agent") == self.name]
        assert all((one.header("x-api-key"), one.query) == (KEY, f"key={KEY}") for one in self.came)
        wanted = self.visible(bytes(self.came[-1].answered))
        assert got == wanted if whole else wanted.startswith(got)
        assert answer.status_code in (200, 529), bytes(got)
        return mode, answer.status_code if whole else None

    def visible(self, answered: bytes) -> bytes:
        """Return a response without the usage chunk that chat completions send only on request."""
        if self.form != "openai" or not answered.startswith(b"data:"):
            return answered
        return b"\n\n".join(one for one in answered.split(b"\n\n") if b'"choices": []' not in one)

    def headers(self, part: str | None) -> dict[str, str]:
        """Return the headers that identify the session and the sub-agent, as a client of this format sends them."""
        if self.form == "anthropic":
            return {"x-claude-code-session-id": self.session, **({"x-claude-code-agent-id": part} if part else {})}
        if self.form == "openai-responses":
            return {"session-id": self.session, "thread-id": part or self.session}
        return {"x-session-id": f"{self.session}:{part}" if part else self.session}

    def body(self, messages: list[Json], *, stream: bool, tools: bool) -> bytes:
        return (
            json.dumps(self.members(messages, stream=stream, tools=tools), indent=1).encode()[:-2] + b", " + ODD + b"}"
        )

    def members(self, messages: list[Json], *, stream: bool, tools: bool) -> Json:
        body: Json = {"model": "test-model", "stream": stream, **({"tools": TOOLS[self.form]} if tools else {})}
        if self.form == "anthropic":
            system: list[Json] = [{"type": "text", "text": f"x-anthropic-billing-header: cch={self.requests};"}]
            system.append({"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}})
            return {**body, "max_tokens": 100, "system": system, "messages": messages}
        if self.form == "openai":
            return {**body, "messages": [{"role": "system", "content": SYSTEM}, *messages]}
        return {**body, "instructions": SYSTEM, "store": False, "input": messages}

    def mark(self) -> str:
        """Return a unique text."""
        self.numbers += 1
        return f"#{self.name}{self.numbers}#"

    def user(self, lead: str = "Now") -> Json:
        return {"role": "user", "content": f"{lead} {self.mark()} " + "word " * self.random.randrange(self.text_words)}

    def reply(self, said: ProviderReply) -> list[Json]:
        """Return a reply as this client stores it."""
        if self.form == "anthropic":
            content: list[Json] = [{"type": "text", "text": said.text}] if said.text else []
            content += [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in said.calls]
            return [{"role": "assistant", "content": content}]
        calls = [(id, {"name": name, "arguments": json.dumps(given)}) for id, name, given in said.calls]
        if self.form == "openai":
            message: Json = {"role": "assistant", "content": said.text or None}
            listed = [{"id": id, "type": "function", "function": function} for id, function in calls]
            return [message | ({"tool_calls": listed} if listed else {})]
        items: list[Json] = []
        if said.text:
            content = [{"type": "output_text", "text": said.text, "annotations": []}]
            items.append({"type": "message", "role": "assistant", "content": content})
        return items + [{"type": "function_call", "call_id": id, **function} for id, function in calls]

    def results(self, reply: list[Json]) -> list[Json]:
        """Return results for the calls of a reply."""
        if self.form == "anthropic":
            ids = [part["id"] for part in reply[0]["content"] if part["type"] == "tool_use"]
            parts = [{"type": "tool_result", "tool_use_id": id, "content": self.output()} for id in ids]
            return [{"role": "user", "content": parts}] if parts else []
        if self.form == "openai":
            ids = [call["id"] for call in reply[0].get("tool_calls", ())]
            return [{"role": "tool", "tool_call_id": id, "content": self.output()} for id in ids]
        ids = [item["call_id"] for item in reply if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": id, "output": self.output()} for id in ids]

    def output(self) -> str:
        return f"output {self.mark()} " + "line\n" * self.random.randrange(3 * self.text_words)

    def ends_with_user_text(self) -> bool:
        """Return whether the last message is the user's own text."""
        return self.messages[-1].get("role") == "user" and isinstance(self.messages[-1].get("content"), str)

    def users(self) -> list[int]:
        """The indexes of the user's own messages."""
        return [
            index
            for index, one in enumerate(self.messages)
            if one.get("role") == "user" and isinstance(one.get("content"), str)
        ]

    def edit(self) -> None:
        """Return to an earlier message and rewrite it."""
        at = self.random.choice(self.users())
        self.messages = [*self.messages[:at], self.user("Rather")]

    def compact(self) -> None:
        """Replace the beginning with a summary."""
        users = [at for at in self.users() if at > len(self.messages) // 2]
        rest = self.messages[users[0] :] if users else []
        self.messages = [self.user("What happened so far:"), *(rest if rest[:1] != self.messages[:1] else [])]
        if len(self.messages) > 1:
            self.messages.insert(1, self.spoken(f"Understood {self.mark()}"))

    def spoken(self, text: str) -> Json:
        """Return an assistant message that no provider sent."""
        if self.form == "openai-responses":
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return {"type": "message", "role": "assistant", "content": content}
        return {"role": "assistant", "content": text}


async def run_together(agents: list[Agent], requests: int) -> None:
    """Run agents concurrently."""
    await asyncio.gather(*(agent.live(requests) for agent in agents))
