"""Sides whose agents make steps: they report the last call's outcome, append what happened since, and get a context."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from bench.agents.driver import EPOCH, TOKENS, Agent, Times
from bench.agents.sides import Ours, Side, number
from bench.agents.traffic import body_of
from bench.http import Http, Spread

LEAST_SHARE: Final = 0.95
"""The simulated provider counts between this share and all of the estimator's tokens, always alike in a session."""
OUTPUT_TOKENS, LATENCY_MS = 300, 2_000
COUNTED_STEPS: Final = 20
"""Steps of one agent in which commits are counted."""
_RATIO: Final = re.compile(rb'"calibration":\{"ratio":([0-9.]+)')
_CALL_ID: Final = re.compile(rb'"call_id":"([^"]+)"')
_NEXT_TRANSACTION: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
"""Number of the next transaction that writes; reading it takes none."""


@dataclass(frozen=True, slots=True)
class Call:
    """The last call of a session: its id, its epoch, its input tokens by the provider's count, and those cached."""

    id: str
    epoch: int
    tokens: int
    cached: int

    def outcome(self, form: str) -> bytes:
        """Return the fields of its outcome as JSON, without braces."""
        sent = self.tokens - self.cached if form == "anthropic" else self.tokens
        usage = {"input_tokens": sent, "cache_read_tokens": self.cached, "output_tokens": OUTPUT_TOKENS}
        return f'"usage":{json.dumps(usage)},"latency_ms":{LATENCY_MS}'.encode()


NO_CALL: Final = Call("", -1, 0, 0)
"""The last call of a session that has had none."""


def next_call(answer: bytes, session: str, last: Call) -> Call:
    """Return the call of a context response.

    All tokens of the last call count as cached if it was in the same epoch, otherwise none. The estimate of
    the response is divided by the ratio that the server has learned, or each report would lower the next estimate.
    """
    called, epoch = _CALL_ID.search(answer, 0, 4_000), EPOCH.search(answer, 0, 4_000)
    at = max(answer.rfind(b'"tokens":{"estimate":'), 0)
    estimate, learned = TOKENS.match(answer, at), _RATIO.search(answer, at)
    assert called is not None
    assert epoch is not None
    assert estimate is not None
    agent = session.rpartition("-")[2]  # alike on all sides
    share = LEAST_SHARE + (1 - LEAST_SHARE) * crc32(agent.encode()) / 2**32
    tokens = int(int(estimate[1]) / (float(learned[1]) if learned else 1) * share)
    cached = min(last.tokens, tokens) if last.epoch == int(epoch[1]) else 0
    return Call(called[1].decode(), int(epoch[1]), tokens, cached)


@dataclass(slots=True)
class InThreeRequests(Ours):
    """Our server for agents that make a step in three requests; the outcome goes with the append."""

    _calls: dict[str, Call] = field(default_factory=dict)

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        last = self._calls.get(session)
        if last is not None:
            path = f"/v1/sessions/{session}/calls/{last.id}/outcome"
            await http.request("POST", path, b"{%b}" % last.outcome(self.ask.form))
        await Ours.append(self, http, session, messages)

    async def context(self, http: Http | Spread, session: str) -> bytes:
        answer = await Ours.context(self, http, session)
        self._calls[session] = next_call(answer, session, self._calls.get(session, NO_CALL))
        return answer


@dataclass(slots=True)
class InOneRequest(InThreeRequests):
    """Our server for agents that make a step in one request; an append waits for the next context."""

    _messages: dict[str, Sequence[str]] = field(default_factory=dict)

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        self._messages[session] = messages

    async def context(self, http: Http | Spread, session: str) -> bytes:
        last = self._calls.get(session)
        parts = [f'"format":"{self.ask.form}","max_tokens":{self.ask.window}'.encode()]
        if session in self._messages:
            parts.append(b'"append":' + body_of(self.ask.form, self._messages.pop(session)))
        if last is not None:
            parts.append(b'"outcome":{"call_id":"%b",%b}' % (last.id.encode(), last.outcome(self.ask.form)))
        answer = await http.request("POST", f"/v1/sessions/{session}/context", b"{%b}" % b",".join(parts))
        self._calls[session] = next_call(answer, session, last or NO_CALL)
        return answer


CLIENTS: Final[dict[str, type[Ours]]] = {"three": InThreeRequests, "one": InOneRequest}


async def commits_a_step(side: Side, agent: Agent) -> float:
    """Return the transactions that write in a step, the worker suspended. Every other process must be idle."""
    side.suspend_worker()
    before = await number(side.url, _NEXT_TRANSACTION)
    await agent.make_calls(COUNTED_STEPS, Times())
    made = await number(side.url, _NEXT_TRANSACTION) - before
    side.resume_worker()
    return made / COUNTED_STEPS
