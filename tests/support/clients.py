"""Clients of one session that send their whole conversation with every call.

A program is a list of steps, each a name and two numbers that choose among the existing clients and messages, so that
every program can run. After every response the log up to its head must hold exactly the client's messages, and the
messages with the plan applied must equal the request.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from hypothesis import strategies as st

from app.core.render.formats import FORMATS
from tests.support.client_plans import apply_plan, event_pieces, request_pieces
from tests.support.validators import check_gemini, check_openai

Json = dict[str, Any]
Step = tuple[str, int, int]

CLIENTS: Final = 3
WORDS: Final = "which means that the parser reads its settings from a folder of its own "
WINDOWS: Final = (40_000, 40_000, 3_000)

_numbers = st.integers(0, 1_000)
programs = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("talk", "talk", "talk", "calls", "results", "ask", "ask", "ask", "retry", "reply", "at_once"),
                *("edit", "regenerate", "copy", "compact", "anew", "rewind", "append"),
            )
        ),
        _numbers,
        _numbers,
    ),
    min_size=8,
    max_size=30,
)


def in_gemini(messages: Sequence[Json]) -> list[Json]:
    """Return a chat client's messages as Gemini contents, with the results of one round in a single content."""
    found: list[Json] = []
    for one in messages:
        parts: list[Json] = [{"text": one["content"]}] if one["content"] and one["role"] != "tool" else []
        for call in one.get("tool_calls", ()):
            function = call["function"]
            made = {"id": call["id"], "name": function["name"], "args": json.loads(function["arguments"])}
            parts.append({"functionCall": made})
        if one["role"] == "tool":
            answer = {"id": one["tool_call_id"], "name": "look", "response": {"output": one["content"]}}
            parts = [{"functionResponse": answer}]
            if found and "functionResponse" in found[-1]["parts"][0]:
                found[-1]["parts"] += parts
                continue
        found.append({"role": "model" if one["role"] == "assistant" else "user", "parts": parts})
    return found


@dataclass
class Client:
    """The messages of a client and the line of its last response."""

    messages: list[Json] = field(default_factory=list)
    line: str | None = None

    @property
    def waiting(self) -> list[str]:
        """The ids of the tool calls without a result."""
        done = {one["tool_call_id"] for one in self.messages if one["role"] == "tool"}
        return [c["id"] for one in self.messages for c in one.get("tool_calls", ()) if c["id"] not in done]

    @property
    def turns(self) -> list[int]:
        """The indexes of the user messages."""
        return [index for index, one in enumerate(self.messages) if one["role"] == "user"]


class Clients:
    """Several clients of one session that use several servers."""

    def __init__(self, servers: Sequence[httpx.AsyncClient], session: str, room: int) -> None:
        self._servers = servers
        self._session = session
        self._room = WINDOWS[room % len(WINDOWS)]
        self._clients = [Client() for _ in range(CLIENTS)]
        self._counter = itertools.count(1)
        self._seen: dict[str, tuple[int, list[tuple[str, ...]]]] = {}
        self._begun = False
        self._forms: set[str] = set()

    async def run(self, program: Sequence[Step]) -> None:
        """Run a program, then erase the session and check that all of its lines are gone."""
        for name, who, which in program:
            client, http = self._clients[who % CLIENTS], self._servers[which % len(self._servers)]
            if not client.messages:
                await self._talk(http, client, which)
            if name == "ask":
                await self._ask(http, client, "gemini" if which % 3 == 0 else "openai")
            elif name == "at_once":
                await asyncio.gather(
                    *(
                        self._ask(self._servers[(which + n) % len(self._servers)], one)
                        for n, one in enumerate(self._clients)
                    )
                )
            else:
                await getattr(self, f"_{name}")(http, client, which)
        for line, (head, words) in self._seen.items():
            assert await self._said(line, head) == words, line
        if self._begun:
            answer = await self._servers[0].delete(f"/v1/sessions/{self._session}")
            assert answer.status_code == 204, answer.text
        for line in self._seen:
            assert (await self._servers[-1].get(f"/v1/sessions/{line}")).status_code == 404

    def _text(self, who: str) -> str:
        return f"{who} {next(self._counter)}, {WORDS * 14}"

    async def _talk(self, http: httpx.AsyncClient, client: Client, which: int) -> None:
        """Add one to three turns, some with tool calls; the last reply may be missing."""
        for turn in range(1 + which % 3):
            await self._results(http, client, 2)
            if client.messages and client.messages[-1]["role"] != "assistant":
                client.messages.append({"role": "assistant", "content": self._text("answer")})
            client.messages.append({"role": "user", "content": self._text("user")})
            if (which + turn) % 2:
                await self._calls(http, client, which)
                await self._results(http, client, 2)

    async def _calls(self, _: httpx.AsyncClient, client: Client, which: int) -> None:
        if client.messages and not client.waiting:
            calls = [f"call_{next(self._counter)}" for _ in range(1 + which % 3)]
            client.messages.append(
                {
                    "role": "assistant",
                    "content": self._text("look") if which % 2 else None,
                    "tool_calls": [
                        {"id": one, "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{one}"}}'}}
                        for one in calls
                    ],
                }
            )

    async def _results(self, _: httpx.AsyncClient, client: Client, which: int) -> None:
        for call_id in client.waiting[: 1 + which % 3]:
            client.messages.append({"role": "tool", "tool_call_id": call_id, "content": self._text("result")})

    async def _retry(self, http: httpx.AsyncClient, client: Client, _: int) -> None:
        """Repeat a request; nothing is appended the second time."""
        if await self._ask(http, client):
            again = await self._ask(http, client)
            assert again["appended"] == []

    async def _reply(self, http: httpx.AsyncClient, client: Client, _: int) -> None:
        """Log the model's reply on the line of the context, then keep it in the conversation."""
        answer = None if client.waiting else await self._ask(http, client)
        if answer:
            message = {"role": "assistant", "content": self._text("reply")}
            body = {"format": "openai", "messages": [message]}
            logged = await http.post(f"/v1/sessions/{answer['line']}/messages", json=body)
            assert logged.status_code == 201, logged.text
            client.messages.append(message)

    async def _edit(self, _: httpx.AsyncClient, client: Client, which: int) -> None:
        """Replace a user message and drop everything after it."""
        if client.turns:
            at = client.turns[which % len(client.turns)]
            client.messages[at:] = [{"role": "user", "content": self._text("edited")}]

    async def _regenerate(self, http: httpx.AsyncClient, client: Client, _: int) -> None:
        """Request the last reply again."""
        if client.turns:
            del client.messages[client.turns[-1] + 1 :]
            await self._ask(http, client)

    async def _copy(self, _: httpx.AsyncClient, client: Client, which: int) -> None:
        """Copy the conversation, or a beginning of it, to another client."""
        other = self._clients[which % CLIENTS]
        other.messages = client.messages[: client.turns[which % len(client.turns)]] if client.turns else []

    async def _compact(self, _: httpx.AsyncClient, client: Client, which: int) -> None:
        """Replace the beginning with the client's own summary."""
        if client.turns:
            at = client.turns[which % len(client.turns)]
            client.messages[:at] = [{"role": "user", "content": self._text("So far")}]

    async def _anew(self, _: httpx.AsyncClient, client: Client, __: int) -> None:
        client.messages = []

    async def _rewind(self, http: httpx.AsyncClient, _: Client, which: int) -> None:
        """Rewind the session to an earlier seq without telling any client."""
        if not self._begun:
            return
        head = (await http.get(f"/v1/sessions/{self._session}")).json()["head"]
        to = which % (head + 1)
        answer = await http.post(f"/v1/sessions/{self._session}/rewind", json={"to": to})
        assert (answer.status_code, answer.json()["head"]) == (200, to), answer.text

    async def _append(self, http: httpx.AsyncClient, _: Client, which: int) -> None:
        """Append by the session's id and read the event in a context from another server."""
        text = self._text("aside")
        body = {"events": [{"type": "user.message", "content": text}]}
        answer = await http.post(f"/v1/sessions/{self._session}/events", json=body)
        assert answer.status_code == 201, answer.text
        self._begun = True
        other = self._servers[(which + 1) % len(self._servers)]
        made = await other.get(f"/v1/sessions/{self._session}/context", params={"max_tokens": 40_000})
        assert (made.json()["line"], made.json()["head"]) == (answer.json()["line"], answer.json()["head"])
        assert text in made.text

    async def _ask(self, http: httpx.AsyncClient, client: Client, form: str = "openai") -> Json:
        """Request a context for a client's messages and check it; return {} if it is empty or infeasible."""
        messages = list(client.messages) if form == "openai" else in_gemini(client.messages)
        if not messages:
            return {}
        body = {"messages": messages, "max_tokens": self._room, "format": form}
        response = await http.post(f"/v1/sessions/{self._session}/context", json=body)
        self._begun = True
        if response.json().get("type") == "/problems/context-infeasible":
            return {}
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        client.line = answer["line"]
        words = event_pieces(FORMATS[form].read(messages))
        assert words == event_pieces(FORMATS["openai"].read(client.messages)), (
            "the client does not say the same in both"
        )
        assert await self._said(answer["line"], answer["head"]) == words
        (check_gemini if form == "gemini" else check_openai)(answer["request"])
        assert apply_plan(form, messages, answer) == request_pieces(form, answer["request"])
        self._forms.add(form)
        if self._forms == {"openai"} and not answer["evictions"] and not client.waiting:
            assert answer["request"]["messages"] == messages
        before = self._seen.get(answer["line"], (0, []))
        if answer["head"] > before[0]:
            self._seen[answer["line"]] = (answer["head"], words)
        return answer

    async def _said(self, line: str, head: int) -> list[tuple[str, ...]]:
        """Return the pieces of a line's log up to a head."""
        events: list[Json] = []
        while len(events) < head:
            params = {"after": len(events), "limit": min(1_000, head - len(events))}
            events += (await self._servers[0].get(f"/v1/sessions/{line}/events", params=params)).json()["items"]
        return event_pieces(events)
