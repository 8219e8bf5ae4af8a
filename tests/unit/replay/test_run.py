"""Violations of the contract that a replay detects, against a stub of the server."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from app.recordings.recording import AppendEvents, ModelCall, Recording
from app.remote.client import Client
from app.remote.server import own_environment
from app.replay.options import Options
from app.replay.report import CallReport, SessionReport
from app.replay.requests import Logged
from app.replay.run import left_out, replay_session
from app.replay.verify import difference

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
        return httpx2.Response(200, json=bent)

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
        log.extend(event | {"seq": seq} for seq, event in enumerate(body["events"], start=first))
        return {
            "events": [
                {"seq": e["seq"], "id": e["id"], "turn": 1, "tokens": self.tokens.get(e["type"], 10)}
                for e in log[first - 1 :]
            ]
        }


async def run_replay(wire: Wire, options: Options = Options()) -> tuple[SessionReport, list[CallReport]]:  # noqa: B008
    seen: list[CallReport] = []
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(wire), base_url="http://wire") as http:
        return await replay_session(Client(http), RECORDING, "s", options, seen.append), seen


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
    assert wire.erased == ["s.size"]


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
    assert len(wire.logs["s"]) == 1


async def test_an_unreachable_server_is_a_failure_not_a_traceback() -> None:
    def gone(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(gone), base_url="http://wire") as http:
        report = await replay_session(Client(http), RECORDING, "s", Options(), lambda call: None)
    assert [failure.type for failure in report.failures] == ["unreachable"]


def test_left_out_counts_events_by_disposition() -> None:
    types = ("system.prompt", "user.message", "tool.call", "tool.result", "tool.call", "tool.result", "user.message")
    log = [Logged(seq, type, 10) for seq, type in enumerate(types, start=1)]
    runs = [
        {"from_seq": 1, "to_seq": 1, "disposition": "replaced"},
        {"from_seq": 2, "to_seq": 2, "disposition": "dropped"},
        {"from_seq": 4, "to_seq": 6, "disposition": "stubbed"},
    ]
    assert left_out(runs, log) == {"replaced": 1, "dropped": 1, "stubbed": 2}
    assert left_out([{"from_seq": 2, "to_seq": 6, "disposition": "summarized"}], log) == {"summarized": 5}


def test_fields_that_the_server_adds_are_no_difference() -> None:
    sent = [{"type": "user.message", "content": "a"}]
    assert difference(sent, 0, {"seq": 1, "type": "user.message", "content": "a", "turn": 1}) is None
    assert difference(sent, 0, {"seq": 2, "type": "user.message", "content": "a"}) == "seq is 2"


def test_a_server_of_our_own_never_touches_the_users_database(tmp_path: Any) -> None:
    users = {"PATH": "/bin", "PALIMPSEST_DATABASE_URL": "postgresql://prod", "PALIMPSEST_HOST": "0.0.0.0"}
    ours = own_environment(users, tmp_path, 4321, "pal_given_on_the_command_line")
    assert "PALIMPSEST_DATABASE_URL" not in ours
    assert (ours["PATH"], ours["PALIMPSEST_HOST"], ours["PALIMPSEST_PORT"]) == ("/bin", "127.0.0.1", "4321")
    assert ours["PALIMPSEST_DATA_DIR"] == str(tmp_path)
    assert ours["PALIMPSEST_API_KEY"] == "pal_given_on_the_command_line"
    assert "PALIMPSEST_API_KEY" not in own_environment(users, tmp_path, 4321, None)
