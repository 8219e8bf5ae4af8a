"""A walk through every operation of the API as one tenant, in which each succeeds at least once."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.support.receiver import Receiver
from tests.support.wings import PROBES

Json = dict[str, Any]
SECONDS_MAX = 60
SECRET_WORD = "heliotrope"
"""A word in every text of a walker; another tenant that reads it has seen foreign content."""
TALE = (
    f"The {SECRET_WORD} build of the parser takes its configuration from a folder of its own and writes to disk. " * 6
)
POLICY = {
    "window_tokens": 12_000,
    "reserve_tokens": 0,
    "retention": {"keep_last": None, "superseded": False, "arguments": False},
}
UNSUMMARIZED = {
    "window_tokens": 8_000,
    "reserve_tokens": 0,
    "summarize": {"enabled": False},
    "retention": {"working_set": 0},
}
SINCE = "2020-01-01T00:00:00Z"
NARROW = {**POLICY, "window_tokens": 9_000}


@dataclass(frozen=True)
class Request:
    """A request that succeeded; `path` has its ids filled in, `operation` has not."""

    method: str
    operation: str
    path: str
    params: dict[str, Any]
    body: Any


@dataclass
class Walker:
    """A tenant's client and its requests so far."""

    http: httpx.AsyncClient
    done: list[Request] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        operation: str,
        body: Any = None,
        /,
        *,
        params: Json | None = None,
        key: str | None = None,
        **names: Any,
    ) -> Any:
        """Send a request, with an idempotency key if one is given, and return the parsed response."""
        path = operation.format(**names)
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        answer = await self.http.request(method, path, params=params, content=content, headers=headers)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        self.done.append(Request(method, operation, path, params or {}, body))
        is_json = answer.content and answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json else answer.text

    async def append(self, sid: str, *events: Json, **more: Any) -> Any:
        return await self.ask("POST", "/v1/sessions/{sid}/events", {"events": list(events)}, sid=sid, **more)

    async def talk(self, sid: str, turns: int, first: int = 0) -> None:
        for turn in range(first, first + turns):
            await self.append(sid, {"type": "user.message", "content": f"{SECRET_WORD} question {turn}?"})
            await self.append(
                sid,
                {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": {"path": f"src/{turn}.py"}},
                {"type": "tool.result", "call_id": f"c{turn}", "content": f"{turn}: {TALE}"},
            )
            await self.append(sid, {"type": "assistant.message", "content": f"Answer {turn}. {TALE}"})

    async def until(self, operation: str, enough: Any, **names: Any) -> Any:
        """Repeat a GET until `enough` holds for its response."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                answer = await self.ask("GET", operation, **names)
                if enough(answer):
                    return answer


async def walk(http: httpx.AsyncClient, receiver: Receiver) -> list[Request]:
    """Run the walk, which needs a worker; everything it creates stays, except what its last steps erase."""
    on = Walker(http)
    sid = "s"
    for operation in (*PROBES, "/v1/gateway", "/v1/tools/recall", "/v1/tools/compact"):
        await on.ask("GET", operation)
    await _policies_and_webhooks(on, receiver)
    await _retain(on)
    await on.ask(
        "PUT",
        "/v1/sessions/{sid}",
        {"policy": "small", "model": "gpt-5", "metadata": {"about": SECRET_WORD}, "outside_tokens": 10},
        sid=sid,
    )
    await on.append(sid, {"type": "system.prompt", "content": f"You are {SECRET_WORD}."})
    await on.append(sid, {"type": "tools", "content": [{"type": "function", "name": "read"}]})
    await on.talk(sid, 12)
    for _ in range(2):
        await on.append(sid, {"type": "agent.note", "content": "kept", "id": "n1", "pinned": True, "path": "/a"})
        await on.append(sid, {"type": "agent.note", "content": "said once"}, key="k")
    await _contexts(on, sid)
    await _summaries(on, sid)
    await _decisions(on, sid)
    await _turns_and_layers(on, sid)
    await _forks(on, sid)
    await _lines(on)
    await _audits(on, sid)
    await _keys(on)
    await _stream(on, sid)
    await _deliveries(on)
    await _erase(on, sid)
    return on.done


async def _policies_and_webhooks(on: Walker, receiver: Receiver) -> None:
    await on.ask("PUT", "/v1/policies/{name}", POLICY, name="small")
    await on.ask("GET", "/v1/policies/{name}", name="small")
    await on.ask("GET", "/v1/policies/{name}", params={"version": 1}, name="small")
    await on.ask("GET", "/v1/policies")
    hook = {"url": receiver.url, "events": ["compaction.scheduled", "compaction.finished", "compaction.failed"]}
    for name in ("h", "gone"):
        await on.ask("PUT", "/v1/webhooks/{name}", hook, name=name)
    await on.ask("GET", "/v1/webhooks/{name}", name="h")
    await on.ask("GET", "/v1/webhooks")


async def _contexts(on: Walker, sid: str) -> None:
    context = "/v1/sessions/{sid}/context"
    await on.ask("GET", context, sid=sid)
    await on.ask("GET", context, params={"at": 9}, sid=sid)
    first = await on.ask("POST", context, {"format": "anthropic", "model": "claude-sonnet-4-5", "view": "c"}, sid=sid)
    await on.append(
        sid, {"type": "user.message", "content": "on"}, {"type": "assistant.message", "content": "so be it"}
    )
    for _ in range(2):
        made = await on.ask("POST", context, {}, sid=sid)
    preview = {"policy": NARROW}
    await on.ask("POST", "/v1/sessions/{sid}/context:preview", preview, sid=sid)
    await on.ask("POST", "/v1/sessions/{sid}/context:preview", preview, params={"diff_with": made["call_id"]}, sid=sid)
    usage = {"usage": {"input_tokens": 4000, "cache_read_tokens": 10, "output_tokens": 5}, "latency_ms": 9}
    report = "/v1/sessions/{sid}/calls/{call_id}/outcome"
    await on.ask("POST", report, usage, sid=sid, call_id=made["call_id"])
    for untouched in ({"observe": True}, {"holdout": 0.5}):
        seen = await on.ask("POST", context, untouched, sid=sid)
        await on.ask("POST", report, usage, sid=sid, call_id=seen["call_id"])
    warmings = "/v1/sessions/{sid}/calls/{call_id}/warmings"
    await on.ask("POST", warmings, {"usage": {"cache_read_tokens": 4000}}, sid=sid, call_id=made["call_id"])
    await on.ask("POST", context, {"view": "kept", "format": "anthropic"}, sid=sid)
    await on.ask("POST", "/v1/sessions/{sid}/context:warm", {"view": "kept"}, sid=sid)
    error = {"status": 400, "message": "prompt is too long: 210000 tokens > 200000 maximum"}
    verdict = await on.ask("POST", report, {"error": error}, sid=sid, call_id=first["call_id"])
    if verdict["action"] == "retry":
        await on.ask("POST", context, verdict["next"]["body"], sid=sid)
    await on.ask("GET", "/v1/calibrations")
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": "pipeline"}, sid="p")
    for turns, first in ((3, 0), (8, 3)):  # the view in memory evicts at a warm cache
        await on.talk("p", turns, first)
        held = await on.ask("GET", context, sid="p")
    assert held["epoch"] == 2
    await on.ask(
        "POST", "/v1/sessions/{sid}/messages",
        {"format": "openai", "messages": [{"role": "user", "content": f"hello {SECRET_WORD}"}]}, sid="m",
    )  # fmt: skip


async def _summaries(on: Walker, sid: str) -> None:
    run = await on.ask("POST", "/v1/sessions/{sid}/compactions", {"wait_ms": 60_000, "focus": "the parser"}, sid=sid)
    await on.talk(sid, 8, 12)
    await on.ask("POST", "/v1/sessions/{sid}/context", {"wait_ms": 60_000}, sid=sid)
    listed = await on.until("/v1/sessions/{sid}/summaries", lambda found: found["items"], sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/summaries/{summary_id}", sid=sid, summary_id=listed["items"][0]["id"])
    for view in ("main", "c"):
        await on.ask("GET", "/v1/sessions/{sid}/coverage", params={"view": view}, sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/compactions", sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/compactions/{compaction_id}", sid=sid, compaction_id=run["id"])
    latest = {"summarize": {"view": "latest"}, "cut": {"keep_messages": 2}}  # the second summary contains the first
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": latest}, sid="latest")
    for first in (1, 9):
        await on.talk("latest", 8, first)
        await on.ask("POST", "/v1/sessions/{sid}/compactions", {"wait_ms": 60_000}, sid="latest")
    skipped = await on.ask("POST", "/v1/sessions/{sid}/compactions", {"wait_ms": 60_000}, sid="m")
    await on.ask("POST", "/v1/sessions/{sid}/compactions/{compaction_id}:retry", sid="m", compaction_id=skipped["id"])
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": NARROW}, sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/context", params={"recall": "true"}, sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/epochs", sid=sid)
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": NARROW}, sid="w")  # its summaries are not requested
    await on.talk("w", 12)
    await on.until("/v1/sessions/{sid}/summaries", lambda found: found["items"], sid="w")


async def _decisions(on: Walker, sid: str) -> None:
    visibility = "/v1/sessions/{sid}/visibility"
    events = await on.ask("GET", "/v1/sessions/{sid}/events", params={"limit": 200}, sid=sid)
    last = events["items"][-1]["seq"]
    await on.ask(
        "PATCH", visibility, {"hide": [{"seq": last - 3, "replacement": "out of sight"}], "force": True}, sid=sid
    )
    await on.ask("PATCH", visibility, {"pin": [{"seq": 4}], "unpin": [{"path": "/a"}]}, sid=sid)
    await on.ask("PATCH", visibility, {"show": [{"seq": last - 3}]}, sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/context", sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/events/{seq}", sid=sid, seq=5)
    recall = "/v1/sessions/{sid}/recall"
    await on.ask("POST", recall, {"query": f"{SECRET_WORD} parser question"}, sid=sid)
    await on.ask("POST", recall, {"paths": ["src/3.py"], "query": "answer"}, sid=sid)
    await on.ask("POST", recall, {"seqs": [3, 4, 5]}, sid=sid)


async def _turns_and_layers(on: Walker, sid: str) -> None:
    await on.append(sid, {"type": "turn.start", "turn_id": "t9"}, {"type": "user.message", "content": "a turn"})
    layer = "/v1/sessions/{sid}/layers/{kind}"
    for text in ("one", "two"):
        await on.ask("PUT", layer, {"content": f"{SECRET_WORD} {text}"}, sid=sid, kind="sources")
        await on.ask("PUT", layer, {"content": f"{SECRET_WORD} said {text}"}, sid=sid, kind="announce")
    await on.ask("GET", "/v1/sessions/{sid}/context", sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/layers", sid=sid)
    await on.append(sid, {"type": "assistant.message", "content": "done"})
    await on.ask("POST", "/v1/sessions/{sid}/turns/end", {"turn_id": "t9"}, sid=sid)
    await on.ask("POST", "/v1/sessions/{sid}/turns/end", {"turn_id": "t9"}, sid=sid, key="again")
    await on.ask("GET", "/v1/sessions/{sid}/turns", sid=sid)
    await on.ask("DELETE", layer, sid=sid, kind="sources")


async def _forks(on: Walker, sid: str) -> None:
    await on.ask("POST", "/v1/sessions/{sid}/fork", {"id": "f"}, sid=sid)
    await on.ask("POST", "/v1/sessions/{sid}/fork", {"id": "early", "at": 20}, sid=sid)
    for fork in ("f", "early"):
        await on.append(fork, {"type": "user.message", "content": f"in the fork {SECRET_WORD}", "id": "of-fork"})
        await on.ask("GET", "/v1/sessions/{sid}/context", sid=fork)
        await on.ask("GET", "/v1/sessions/{sid}/context", params={"at": 15}, sid=fork)
        await on.ask("GET", "/v1/sessions/{sid}/events", sid=fork)
        await on.ask("POST", "/v1/sessions/{sid}/recall", {"query": "parser"}, sid=fork)
        await on.ask("GET", "/v1/sessions/{sid}/coverage", sid=fork)
    await on.ask("GET", "/v1/sessions", params={"parent": sid})
    await on.ask("GET", "/v1/sessions/{sid}/events", params={"type": "user.message", "author": "a"}, sid="f")
    filters = {"model": "m", "metadata": '{"a": 1}', "since": SINCE, "until": "2100-01-01T00:00:00Z"}
    await on.ask("GET", "/v1/sessions", params=filters)


async def _lines(on: Walker) -> None:
    """Send messages, branch them, edit them, return to an earlier branch, and start again."""
    context = "/v1/sessions/{sid}/context"
    talk = [{"role": role, "content": f"{SECRET_WORD} {n}"} for n in range(3) for role in ("user", "assistant")]
    system = {"system": f"You are {SECRET_WORD}.", "tools": [{"type": "function", "function": {"name": "read"}}]}
    first = await on.ask("POST", context, {"messages": talk, **system}, sid="l")
    await on.append("l", {"type": "agent.note", "content": "said once"}, key="k")
    on_fork = [*talk[:3], {"role": "user", "content": f"{SECRET_WORD} instead"}]
    for messages in (on_fork, talk, [{"role": "user", "content": f"{SECRET_WORD} anew"}], talk[:2]):
        await on.ask("POST", context, {"messages": messages, **system}, sid="l")
    await on.ask("POST", context, {"messages": talk[:2], "system": f"Be {SECRET_WORD}."}, sid="l")
    moved = await on.ask("POST", context, {"messages": talk[:2], "system": f"Now be {SECRET_WORD}."}, sid="l")
    assert moved["line"] not in (first["line"], "l@line.2")
    await on.ask("POST", "/v1/sessions/{sid}/rewind", {"to": 1}, sid="l")
    await on.ask("GET", "/v1/sessions/{sid}/lines", sid="l")
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}", sid="l", call_id=first["call_id"])
    await on.append("l", {"type": "agent.note", "content": "said once"}, key="k")
    await on.append("l", {"type": "user.message", "content": f"{SECRET_WORD} on"})
    await on.ask("GET", "/v1/sessions")


async def _audits(on: Walker, sid: str) -> None:
    await on.ask("GET", "/v1/sessions")
    await on.ask("GET", "/v1/sessions/{sid}", sid=sid)
    calls = await on.ask("GET", "/v1/sessions/{sid}/calls", sid=sid)
    newest, other = calls["items"][0]["call_id"], calls["items"][1]["call_id"]
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}", sid=sid, call_id=newest)
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}/context", sid=sid, call_id=newest)
    await on.ask("GET", "/v1/sessions/{sid}/next-evictions", sid=sid)
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}/blocks", sid=sid, call_id=newest)
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}/blocks/{index}", sid=sid, call_id=newest, index=0)
    await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}/diff/{other_id}", sid=sid, call_id=newest, other_id=other)
    await on.ask("GET", "/v1/sessions/{sid}/events/{seq}/history", sid=sid, seq=4)
    summaries = await on.ask("GET", "/v1/sessions/{sid}/summaries", sid=sid)
    for summary in summaries["items"]:
        showed = await on.ask("GET", "/v1/audit/calls", params={"summary": summary["id"], "session": sid})
        for call in showed["items"]:
            await on.ask("GET", "/v1/sessions/{sid}/calls/{call_id}/context", sid=sid, call_id=call["call_id"])
    for filters in (
        {},
        {"session": sid},
        {"model": "gpt-5"},
        {"overflow": "true"},
        {"min_evicted_tokens": 1},
        {"summary": summaries["items"][0]["id"]},
        {"summary": summaries["items"][0]["id"], "session": "f"},
        {"session": sid, "evicted_seq": 4},
    ):
        await on.ask("GET", "/v1/audit/calls", params=filters)
    await on.ask("GET", "/v1/sessions/{sid}/ledger", sid=sid)
    for filters in ({}, {"model": "gpt-5"}):
        await on.ask("GET", "/v1/audit/ledger", params={"since": _lately(), **filters})


def _lately() -> str:
    """Return a time that is before the walk and within an audit's longest range."""
    return (datetime.now(UTC) - timedelta(days=20)).isoformat()


async def _keys(on: Walker) -> None:
    """Create a key with a session prefix and read with it."""
    bound = {"name": "k", "scopes": ["admin"], "session_prefix": "s", "expires_at": "2999-01-01T00:00:00Z"}
    made = await on.ask("POST", "/v1/keys", bound)
    await on.ask("GET", "/v1/keys")
    with_it = {"Authorization": f"Bearer {made['secret']}"}
    for path, params in (("/v1/sessions", {}), ("/v1/audit/ledger", {"since": _lately()})):
        assert (await on.http.get(path, params=params, headers=with_it)).status_code == 200
    await on.ask("DELETE", "/v1/keys/{key_id}", key_id=made["id"])


async def _stream(on: Walker, sid: str) -> None:
    operation = "/v1/sessions/{sid}/stream"
    path = operation.format(sid=sid)
    async with on.http.stream("GET", path, params={"after": 2}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if SECRET_WORD in line:
                break
    on.done.append(Request("GET", operation, path, {"after": 2}, None))


async def _deliveries(on: Walker) -> None:
    deliveries = "/v1/webhooks/{name}/deliveries"
    made = await on.until(deliveries, lambda found: any(item["state"] == "failed" for item in found["items"]), name="h")
    failed = next(item["id"] for item in made["items"] if item["state"] == "failed")
    await on.ask("POST", deliveries + "/{delivery_id}:retry", name="h", delivery_id=failed)
    await on.ask("DELETE", "/v1/webhooks/{name}", name="gone")


async def _retain(on: Walker) -> None:
    """Set retention rules, preview them, and erase sessions by metadata."""
    rules = {"session_days": 3, "idle_days": 2, "call_days": 2, "compaction_days": 2, "change_days": 2}
    await on.ask("PUT", "/v1/retention", {**rules, "delivery_days": 2})
    await on.ask("GET", "/v1/retention")
    await on.ask("GET", "/v1/retention:preview")
    about = {"metadata": {"user": SECRET_WORD}, "since": SINCE, "forks": "erase"}
    for name in ("told", "told-too"):
        await on.ask("PUT", "/v1/sessions/{sid}", {"metadata": about["metadata"]}, sid=name)
        await on.append(name, {"type": "user.message", "content": f"forget me {SECRET_WORD}"})
    await on.ask("POST", "/v1/erasures:preview", about)
    begun = await on.ask("POST", "/v1/erasures", about, key="forget")
    await on.ask("POST", "/v1/erasures", about, key="forget")
    await on.until("/v1/erasures/{erasure_id}", lambda found: found["state"] == "done", erasure_id=begun["id"])
    await on.ask("GET", "/v1/erasures")
    await on.ask("GET", "/v1/erasures/{erasure_id}/sessions", erasure_id=begun["id"])
    for name in ("aged", "aged-too", "recorded"):
        await on.append(name, {"type": "user.message", "content": "soon over"})
        await on.ask("GET", "/v1/sessions/{sid}/context", sid=name)


async def _erase(on: Walker, sid: str) -> None:
    await on.ask("PUT", "/v1/sessions/{sid}", {"policy": UNSUMMARIZED}, sid="t")
    await on.talk("t", 24)
    stubbed = await on.ask("GET", "/v1/sessions/{sid}/context", sid="t")
    seq = next(run["from_seq"] for run in stubbed["evictions"] if run["disposition"] == "stubbed")
    await on.ask("DELETE", "/v1/sessions/{sid}/events/{seq}", sid="t", seq=seq)
    await on.ask("DELETE", "/v1/sessions/{sid}/events/{seq}", sid=sid, seq=5)
    await on.append("announced", {"type": "user.message", "content": "go"})
    await on.ask("PUT", "/v1/sessions/{sid}/layers/{kind}", {"content": "soon told"}, sid="announced", kind="announce")
    ended = await on.ask("POST", "/v1/sessions/{sid}/turns/end", {}, sid="announced")
    await on.ask("DELETE", "/v1/sessions/{sid}/events/{seq}", sid="announced", seq=ended["events"][0]["seq"])
    await on.ask("GET", "/v1/sessions/{sid}/context", sid=sid)
    await on.ask("DELETE", "/v1/calibrations", params={"model": "claude-sonnet-4-5"})
    await on.append("gone", {"type": "user.message", "content": "soon forgotten"})
    await on.ask("POST", "/v1/sessions/{sid}/fork", {"id": "gone-too"}, sid="gone")
    await on.ask("DELETE", "/v1/sessions/{sid}", params={"forks": "erase"}, sid="gone")
