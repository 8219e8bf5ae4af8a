"""Violations of the contract that a replay detects, against a stub of the server."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from palimpsest import AsyncPalimpsest
from palimpsest.types import EvictionOut

from palimpsest_tools.recordings.recording import AppendEvents, ModelCall, Recording
from palimpsest_tools.replay.options import Options
from palimpsest_tools.replay.report import CallReport, SessionReport
from palimpsest_tools.replay.requests import Logged
from palimpsest_tools.replay.run import difference, left_out, replay_session
from palimpsest_tools.server import server_environment

RECORDING = Recording(
    id="r",
    format=None,
    system="be brief",
    tools=None,
    steps=(
        AppendEvents(({"type": "user.message", "id": "m0", "content": "hi"},)),
        ModelCall(0.0),
        AppendEvents(({"type": "assistant.message", "id": "m1", "content": "hello"},)),
        ModelCall(60.5),
    ),
)


@dataclass
class Wire:
    """A stub of the server that counts ten tokens an event; `bend` may change any response before it is sent."""

    bend: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda path, answer: answer
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        parts = request.url.path.split("/")[3:]
        log = self.logs.setdefault(parts[0], [])
        action = parts[1] if len(parts) > 1 else "session"
        if request.method == "DELETE":
            self.erased.append(parts[0])
            return httpx2.Response(204)
        body = json.loads(request.content) if request.content else {}
        answer = self.answer(action, request, log, body)
        bent = self.bend(action if request.method != "GET" else "log", answer)
        if bent is None:
            problem = {"type": "/problems/context-infeasible", "title": "t", "status": 422, "detail": "too small"}
            return httpx2.Response(422, json=problem)
        return httpx2.Response(201 if request.method == "PUT" and not log else 200, json=bent)

    def answer(self, action: str, request: httpx2.Request, log: list[Any], body: Any) -> dict[str, Any]:
        if action == "session":
            return {"head": len(log)}
        if action == "context":
            self.asked.append(body)
            messages = [{"role": "user", "content": str(event["seq"])} for event in log]
            return {
                "epoch": 0,
                "request": {"messages": messages},
                "tokens": {
                    "estimate": 10 * len(log),
                    "target": body.get("max_tokens", 1250) * 4 // 5,
                    "estimator": "e",
                },
                "evictions": [],
            }
        if request.method == "GET":
            return {"items": list(log), "next_cursor": None}
        first = len(log) + 1
        log.extend(
            event | {"seq": seq, "tokens": self.tokens.get(event["type"], 10)}
            for seq, event in enumerate(body["events"], start=first)
        )
        return {
            "events": [{"seq": e["seq"], "id": e["id"], "turn": 1, "tokens": e["tokens"]} for e in log[first - 1 :]]
        }


def wired(server: Callable[[httpx2.Request], httpx2.Response]) -> AsyncPalimpsest:
    """A client that asks a function, once."""
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(server))
    return AsyncPalimpsest(base_url="http://wire", http_client=http, max_retries=0)


async def run_replay(wire: Wire, options: Options = Options()) -> tuple[SessionReport, list[CallReport]]:  # noqa: B008
    seen: list[CallReport] = []
    async with wired(wire) as client:
        return await replay_session(client, RECORDING, "s", options, seen.append), seen


async def test_appends_and_calls_in_recorded_order() -> None:
    wire = Wire()
    report, seen = await run_replay(wire, Options(max_tokens=500, model="m"))
    assert [event["type"] for event in wire.logs["s"]] == ["system.prompt", "user.message", "assistant.message"]
    assert wire.asked == [
        {"format": "openai", "max_tokens": 500, "model": "m", "now": "1970-01-01T00:00:00Z"},
        {"format": "openai", "max_tokens": 500, "model": "m", "now": "1970-01-01T00:01:00.500000Z"},
    ]
    assert [call.estimate for call in seen] == [20, 30]
    assert (report.failures, report.events, report.window_tokens) == ((), 3, 500)


async def test_a_share_counts_the_prefix_whole_and_erases_its_scratch_session() -> None:
    wire = Wire(tokens={"system.prompt": 1000, "user.message": 6000, "assistant.message": 2000})
    report, _ = await run_replay(wire, Options(share=0.25))
    # The target is four fifths of the window: 1,000 tokens of the prefix and a quarter of 8,000 others.
    assert report.window_tokens in (3749, 3750)
    assert wire.asked[-1]["max_tokens"] == report.window_tokens
    assert wire.erased == ["s.size", "s"]


async def test_a_replay_erases_the_session_it_made_unless_it_is_to_be_kept() -> None:
    wire = Wire()
    await run_replay(wire, Options(keep=True))
    assert wire.erased == []
    await run_replay(Wire(erased=wire.erased))
    assert wire.erased == ["s"]


async def test_an_interrupted_replay_erases_its_session() -> None:
    def interrupt(call: CallReport) -> None:
        raise asyncio.CancelledError

    wire = Wire()
    async with wired(wire) as client:
        with pytest.raises(asyncio.CancelledError):
            await replay_session(client, RECORDING, "s", Options(), interrupt)
    assert wire.erased == ["s"]


async def test_a_scratch_session_that_is_not_new_is_left_alone() -> None:
    wire = Wire(logs={"s.size": [{"seq": 1, "type": "user.message", "content": "mine"}]})
    report, _ = await run_replay(wire, Options(share=0.5))
    assert [failure.type for failure in report.failures] == ["session-not-new"]
    assert (len(wire.logs["s.size"]), wire.erased) == (1, ["s"])


async def test_a_tiny_share_still_leaves_room_for_a_turn() -> None:
    report, _ = await run_replay(Wire(), Options(share=0.25))
    assert report.window_tokens is not None
    assert report.window_tokens * 4 // 5 == 10 + 512


async def test_a_context_above_its_target_is_a_failure() -> None:
    def above(action: str, answer: dict[str, Any]) -> dict[str, Any]:
        return (
            answer | {"tokens": {"estimate": 1001, "target": 1000, "estimator": "e"}} if action == "context" else answer
        )

    report, _ = await run_replay(Wire(above))
    assert [(failure.where, failure.type) for failure in report.failures] == [
        ("call 1", "over-target"),
        ("call 2", "over-target"),
    ]


async def test_a_refused_context_is_counted_and_the_replay_goes_on() -> None:
    report, seen = await run_replay(Wire(lambda action, answer: None if action == "context" else answer))
    assert [failure.type for failure in report.failures] == ["context-infeasible"] * 2
    assert (seen, report.events) == ([], 3)


async def test_a_refused_append_ends_the_session() -> None:
    report, _ = await run_replay(Wire(lambda action, answer: None if action == "events" else answer))
    assert [(failure.where, failure.type) for failure in report.failures] == [("after event 0", "context-infeasible")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda items: items[:-1], "event-lost"),
        (lambda items: [*items, items[-1]], "log-differs"),
        (lambda items: [*items[:-1], {**items[-1], "content": "hell"}], "log-differs"),
        (lambda items: [*items[:-1], {**items[-1], "id": "other"}], "log-differs"),
    ],
)
async def test_a_lost_doubled_or_changed_event_is_a_failure(change: Any, expected: str) -> None:
    def bend(action: str, answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"items": change(answer["items"])} if action == "log" and "items" in answer else answer

    report, _ = await run_replay(Wire(bend))
    assert [failure.type for failure in report.failures] == [expected]


async def test_a_session_that_is_not_new_is_left_alone() -> None:
    wire = Wire(logs={"s": [{"seq": 1, "type": "user.message", "content": "mine"}]})
    report, _ = await run_replay(wire)
    assert [failure.type for failure in report.failures] == ["session-not-new"]
    assert (len(wire.logs["s"]), wire.erased) == (1, [])


async def test_an_unreachable_server_is_a_failure_not_a_traceback() -> None:
    def gone(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    async with wired(gone) as client:
        report = await replay_session(client, RECORDING, "s", Options(), lambda call: None)
    assert [failure.type for failure in report.failures] == ["unreachable"]


def test_left_out_counts_events_by_disposition() -> None:
    types = ("system.prompt", "user.message", "tool.call", "tool.result", "tool.call", "tool.result", "user.message")
    log = [Logged(seq, type, 10) for seq, type in enumerate(types, start=1)]
    runs = [run(1, 1, "replaced"), run(2, 2, "dropped"), run(4, 6, "stubbed")]
    assert left_out(runs, log) == {"replaced": 1, "dropped": 1, "stubbed": 2}
    assert left_out([run(2, 6, "summarized")], log) == {"summarized": 5}


def run(from_seq: int, to_seq: int, disposition: str) -> EvictionOut:
    return EvictionOut(
        from_seq=from_seq, to_seq=to_seq, disposition=disposition, reducer="r", reason="why", tokens_saved=1
    )


def test_fields_that_the_server_adds_are_no_difference() -> None:
    sent = [{"type": "user.message", "content": "a"}]
    assert difference(sent, 0, {"seq": 1, "type": "user.message", "content": "a", "turn": 1}) is None
    assert difference(sent, 0, {"seq": 2, "type": "user.message", "content": "a"}) == "seq is 2"


def test_a_server_of_our_own_never_touches_the_users_database(tmp_path: Any) -> None:
    users = {"PATH": "/bin", "PALIMPSEST_DATABASE_URL": "postgresql://prod", "PALIMPSEST_HOST": "0.0.0.0"}
    users |= {"PALIMPSEST_DATABASE_URL_FILE": "/run/secrets/url", "PALIMPSEST_API_KEY_FILE": "/run/secrets/key"}
    ours = server_environment(users, tmp_path, 4321, "pal_given_on_the_command_line")
    assert not ours.keys() & {"PALIMPSEST_DATABASE_URL", "PALIMPSEST_DATABASE_URL_FILE", "PALIMPSEST_API_KEY_FILE"}
    assert (ours["PATH"], ours["PALIMPSEST_HOST"], ours["PALIMPSEST_PORT"]) == ("/bin", "127.0.0.1", "4321")
    assert ours["PALIMPSEST_DATA_DIR"] == str(tmp_path)
    assert ours["PALIMPSEST_API_KEY"] == "pal_given_on_the_command_line"
    assert "PALIMPSEST_API_KEY" not in server_environment(users, tmp_path, 4321, None)
