"""Hide, show, pin and unpin over HTTP: they change what is shown and leave the log unchanged."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from app.tenants import Tenants
from tests.conftest import Servers
from tests.support import validators
from tests.support.openapi import document

Json = dict[str, Any]
CLAUDE = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 100_000}


async def append(client: httpx.AsyncClient, *events: Json, sid: str = "s") -> int:
    answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": list(events)})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["head"])


def read(number: int, content: str, path: str | None = None) -> list[Json]:
    """Return a call that reads a file, and its result."""
    arguments = {"path": path or f"/f{number}"}
    return [
        {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": arguments},
        {"type": "tool.result", "call_id": f"c{number}", "content": content},
    ]


async def decide(client: httpx.AsyncClient, status: int = 200, sid: str = "s", **asked: Any) -> Json:
    answer = await client.patch(f"/v1/sessions/{sid}/visibility", json=asked)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


async def context(client: httpx.AsyncClient, sid: str = "s", **asked: Any) -> Json:
    answer = await client.post(f"/v1/sessions/{sid}/context", json=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def shown(found: Json) -> str:
    return json.dumps(found["request"], ensure_ascii=False)


def reasons(done: Json) -> list[tuple[int | None, str]]:
    return [(one["seq"], one["reason"]) for one in done["refused"]]


@pytest.fixture
async def session(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """A session of two turns: 1 prompt, 2 user, 3-4 and 5-6 rounds, 7 reply, 8 user."""
    await append(
        client,
        {"type": "system.prompt", "content": "Be brief."},
        {"type": "user.message", "content": "the first task"},
        *read(1, "SECRET one " + "word " * 100),
        *read(2, "SECRET two " + "word " * 100),
        {"type": "assistant.message", "content": "the first answer"},
        {"type": "user.message", "content": "the second task"},
    )
    return client


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_a_hidden_event_shows_its_replacement_in_every_view_and_stays_in_the_log(
    session: httpx.AsyncClient,
) -> None:
    before = await context(session)
    log = (await session.get("/v1/sessions/s/events")).json()["items"]
    done = await decide(session, hide=[{"seq": 4, "replacement": "[nothing of interest]"}])
    assert (done["hidden"], done["refused"], done["decisions"]) == ([4], [], 1)
    after = await context(session)
    assert after["epoch"] == before["epoch"] + 1
    assert "SECRET one" not in shown(after)
    assert "[nothing of interest]" in shown(after)
    assert "SECRET two" in shown(after)
    [row] = after["evictions"]
    assert (row["from_seq"], row["disposition"], row["reducer"]) == (4, "replaced", "visibility")
    assert after["tokens"]["estimate"] == before["tokens"]["estimate"] - row["tokens_saved"]
    epochs = (await session.get("/v1/sessions/s/epochs")).json()["items"]
    assert epochs[-1]["cause"] == "visibility"
    assert (await context(session))["sha256"] == after["sha256"]
    assert "SECRET one" not in shown(await context(session, view="another"))
    assert (await session.get("/v1/sessions/s/events")).json()["items"] == log
    assert (await session.get("/v1/sessions/s/coverage")).json()["ok"]
    history = (await session.get("/v1/sessions/s/events/4/history")).json()["items"]
    assert {"replaced"} <= {one["disposition"] for one in history}
    assert "visibility" in {one.get("reducer") for one in history}


async def test_without_a_replacement_a_hidden_event_is_left_out_if_that_is_valid(session: httpx.AsyncClient) -> None:
    done = await decide(session, hide=[3, 4, 6, 7])
    assert done["hidden"] == [3, 4, 6, 7]
    for form, check in (
        ("openai", validators.check_openai),
        ("openai-responses", validators.check_openai_responses),
        ("anthropic", validators.check_anthropic),
    ):
        found = await context(session, format=form, view=form, recall=True)
        check(found["request"])
        assert "SECRET" not in shown(found)
        assert "the first answer" not in shown(found)
        assert "c1" not in shown(found)  # the whole round is hidden
        assert "Recall it with seq 6." in shown(found)  # its call is still shown


async def test_all_events_of_a_path_are_hidden_and_the_first_shows_the_replacement(client: httpx.AsyncClient) -> None:
    await append(
        client,
        {"type": "user.message", "content": "go"},
        *read(1, "SECRET old", "/a.py"),
        *read(2, "kept", "/b.py"),
        *read(3, "SECRET new", "/a.py"),
        {"type": "agent.note", "content": "SECRET note", "path": "/a.py"},
    )
    done = await decide(client, hide=[{"path": "/a.py", "replacement": "[a.py: see below]"}])
    assert done["hidden"] == [3, 6, 7, 8]  # call 2 stays with the result that shows the replacement
    assert done["refused"] == []
    seen = shown(await context(client))
    assert "SECRET" not in seen
    assert seen.count("[a.py: see below]") == 1
    assert seen.count("/a.py") == 1
    assert "kept" in seen
    done = await decide(client, show=[{"path": "/a.py"}])
    assert done["shown"] == [2, 3, 6, 7, 8]
    assert shown(await context(client)).count("SECRET") == 3


async def test_a_hidden_event_shown_again_is_unchanged(session: httpx.AsyncClient) -> None:
    before = await context(session)
    await decide(session, hide=[3, 4, {"seq": 6, "replacement": "x"}, 7])
    assert (await context(session))["sha256"] != before["sha256"]
    done = await decide(session, show=[3, {"seq": 4}, 6, 7])
    assert (done["shown"], done["decisions"]) == ([3, 4, 6, 7], 2)
    after = await context(session)
    assert (after["sha256"], after["evictions"]) == (before["sha256"], [])


async def test_a_repeated_decision_changes_nothing(session: httpx.AsyncClient) -> None:
    asked = {"hide": [{"seq": 4, "replacement": "x"}], "pin": [6], "show": [7], "unpin": [2]}
    first = await decide(session, **asked)
    found = await context(session)
    assert await decide(session, **asked) == first
    assert first["decisions"] == 1
    again = await context(session)
    assert (again["epoch"], again["sha256"]) == (found["epoch"], found["sha256"])
    assert (await decide(session))["decisions"] == 1


async def test_an_evicted_event_shown_again_stays(client: httpx.AsyncClient) -> None:
    policy = {"evict": "every_assembly", "retention": {"keep_last": 1}}
    assert (await client.put("/v1/sessions/s", json={"policy": policy})).status_code == 201
    head = await append(
        client, {"type": "user.message", "content": "go"}, *read(1, "SECRET " * 400), *read(2, "b " * 400)
    )
    assert shown(await context(client)).count("SECRET") < 400
    assert (await decide(client, show=[3]))["shown"] == [3]
    found = await context(client)
    assert shown(found).count("SECRET") == 400
    await append(client, *read(3, "c " * 400))
    found = await context(client)
    assert shown(found).count("SECRET") == 400
    assert [row["from_seq"] for row in found["evictions"]] == [head]


async def test_events_without_room_are_not_shown_again(client: httpx.AsyncClient) -> None:
    asks = {
        "max_tokens": 4_000,
        "policy": {
            "reserve_tokens": 0,
            "retention": {"keep_last": 0, "working_set": 0},
            "summarize": {"enabled": False},
        },
    }
    await append(client, {"type": "user.message", "content": "go"})
    for number in range(3):
        await append(client, *read(number, f"n{number} " * 1_000))
    found = await context(client, **asks)
    assert [(row["from_seq"], row["to_seq"]) for row in found["evictions"]] == [(3, 7)]
    done = await decide(client, show=[3, 5, 7])
    assert (done["shown"], reasons(done)) == ([3], [(5, "no_room"), (7, "no_room")])
    assert reasons(await decide(client, pin=[5])) == [(5, "no_room")]
    found = await context(client)
    assert [(row["from_seq"], row["to_seq"]) for row in found["evictions"]] == [(5, 7)]


async def test_a_pinned_event_is_not_evicted_until_it_is_unpinned(client: httpx.AsyncClient) -> None:
    asks = {"max_tokens": 4_000, "policy": {"reserve_tokens": 0, "summarize": {"enabled": False}}}
    await append(
        client,
        {"type": "user.message", "content": "PINNED"},
        {"type": "user.message", "content": "LOGGED", "pinned": True},
    )
    assert (await decide(client, pin=[1]))["pinned"] == [1]
    await append(client, *({"type": "user.message", "content": "filler " * 100} for _ in range(60)))
    found = await context(client, **asks)
    assert found["evictions"]
    assert "PINNED" in shown(found)
    assert "LOGGED" in shown(found)
    assert (await decide(client, unpin=[1, 2]))["unpinned"] == [1, 2]
    await append(client, *({"type": "user.message", "content": "filler " * 100} for _ in range(60)))
    found = await context(client)
    assert "PINNED" not in shown(found)
    assert "LOGGED" not in shown(found)
    assert reasons(await decide(client, pin=[1], show=[2], hide=[1])) == [
        (2, "dropped"),
        (1, "dropped"),
        (1, "dropped"),
    ]


async def test_events_that_must_not_be_hidden_are_refused_singly_with_a_reason(session: httpx.AsyncClient) -> None:
    await append(session, {"type": "tool.call", "call_id": "open", "tool": "run", "arguments": {}})
    await append(session, {"type": "turn.start"}, {"type": "user.message", "content": "now"})
    await append(
        session,
        {"type": "assistant.message", "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "so"}]},
    )
    await decide(session, pin=[7])
    done = await decide(session, hide=[99, 1, 9, 7, 10, 11, 12, {"path": "/no"}, 4])
    assert done["hidden"] == [4]
    assert {one["action"] for one in done["refused"]} == {"hide"}
    assert dict(reasons(done)) == {
        99: "unknown",
        1: "protocol",
        9: "open_call",
        7: "protected",
        10: "unknown",  # bookkeeping events are never shown
        11: "protected",
        12: "protocol",
        None: "unknown",
    }


async def test_a_call_stays_while_its_result_has_a_replacement(session: httpx.AsyncClient) -> None:
    assert reasons(await decide(session, hide=[3])) == [(3, "protocol")]
    done = await decide(session, hide=[3, {"seq": 4, "replacement": "gone"}])
    assert (done["hidden"], reasons(done)) == ([4], [(3, "protocol")])
    assert (await decide(session, hide=[3, 4]))["hidden"] == [3, 4]


async def test_a_hidden_event_cannot_be_pinned(session: httpx.AsyncClient) -> None:
    assert reasons(await decide(session, hide=[4], pin=[4])) == [(4, "hidden")]
    done = await decide(session, show=[4], pin=[4])
    assert (done["shown"], done["pinned"], done["refused"]) == ([4], [4], [])
    done = await decide(session, unpin=[4], hide=[4])
    assert (done["unpinned"], done["hidden"], done["refused"]) == ([4], [4], [])


async def test_a_warm_cache_is_not_rewritten_for_a_small_saving(client: httpx.AsyncClient) -> None:
    await append(client, {"type": "user.message", "content": "go"}, *read(1, "small " * 60))
    await append(client, *read(2, "large " * 3_000), {"type": "assistant.message", "content": "seen"})
    await append(client, *read(3, "fresh " * 60))
    before = await context(client, **CLAUDE)
    assert reasons(await decide(client, hide=[3])) == [(3, "not_worth_it")]
    done = await decide(client, hide=[5, 8])
    assert (done["hidden"], done["refused"]) == ([5, 8], [])  # large, and not yet sent to the model
    assert (await decide(client, hide=[3], force=True))["hidden"] == [3]
    after = await context(client)
    assert after["tokens"]["estimate"] < before["tokens"]["estimate"] - 3_000


async def test_with_a_cold_cache_a_small_saving_is_made(client: httpx.AsyncClient) -> None:
    await append(client, {"type": "user.message", "content": "go"}, *read(1, "small " * 60))
    await append(client, *read(2, "large " * 3_000), {"type": "assistant.message", "content": "seen"})
    await context(client, now=(datetime.now(UTC) - timedelta(hours=1)).isoformat(), **CLAUDE)
    assert (await decide(client, hide=[3]))["hidden"] == [3]


async def test_a_decision_holds_when_a_view_is_planned_again(session: httpx.AsyncClient) -> None:
    await context(session)
    await decide(session, hide=[{"seq": 4, "replacement": "GONE"}, 7])
    first = await context(session)
    other = await context(session, policy={"markers": "none"})
    assert other["epoch"] == first["epoch"] + 1
    assert other["sha256"] == first["sha256"]
    assert "SECRET one" not in shown(await context(session, max_tokens=50_000))


async def test_a_context_as_of_an_earlier_seq_ignores_later_decisions(session: httpx.AsyncClient) -> None:
    await decide(session, hide=[4], pin=[6])
    await append(session, {"type": "assistant.message", "content": "more"})
    await decide(session, hide=[7])
    assert "the first answer" not in shown(await context(session))
    early = shown(await context(session, at=8, view="past"))
    assert "SECRET one" not in early
    assert "the first answer" in early


async def test_a_redaction_also_erases_the_replacement(session: httpx.AsyncClient, database: Database) -> None:
    await decide(session, hide=[{"seq": 4, "replacement": "it quotes the SECRET"}])
    first = await context(session)
    assert "quotes" in shown(first)
    assert (await session.delete("/v1/sessions/s/events/4")).status_code == 204
    found = await context(session, recall=True)
    assert "quotes" not in shown(found)
    assert "Recall it with seq 4." in shown(found)
    for table in ("visibility", "epochs"):
        rows = await database.fetch(f"SELECT t::text AS row FROM {table} t")
        assert rows
        assert not [row for row in rows if "quotes" in row["row"]], table


@pytest.mark.wing("recall")
async def test_hidden_originals_can_be_recalled(session: httpx.AsyncClient) -> None:
    await decide(session, hide=[{"seq": 4, "replacement": "x"}])
    await context(session)
    answer = await session.post("/v1/sessions/s/recall", json={"seqs": [4, 6]})
    hidden, whole = answer.json()["items"]
    assert (hidden["visible"], whole["visible"]) == (False, True)
    assert hidden["content"].startswith("SECRET one")


async def test_concurrent_decisions_all_apply(session: httpx.AsyncClient) -> None:
    asked = [{"hide": [4]}, {"hide": [6]}, {"pin": [2]}, {"hide": [{"seq": 7, "replacement": "x"}]}]
    answers = await asyncio.gather(*(decide(session, **one) for one in asked))
    assert sorted(one["decisions"] for one in answers) == [1, 2, 3, 4]
    seen = shown(await context(session))
    assert "SECRET" not in seen
    assert "the first answer" not in seen


async def test_decisions_apply_during_concurrent_appends(session: httpx.AsyncClient) -> None:
    said = [{"type": "assistant.message", "content": f"said {number}"} for number in range(20)]
    done, *_ = await asyncio.gather(decide(session, hide=[4], pin=[6]), *(append(session, one) for one in said))
    assert (done["hidden"], done["pinned"]) == ([4], [6])
    assert "SECRET one" not in shown(await context(session))


@pytest.mark.parametrize(
    "asked",
    [
        {"hide": [{"replacement": "x"}]},
        {"hide": [{"seq": 1, "path": "/a"}]},
        {"hide": [0]},
        {"hide": [True]},
        {"hide": ["1"]},
        {"hide": [{"seq": 2**63}]},
        {"hide": [{"path": ""}]},
        {"hide": [{"path": "a\x00b"}]},
        {"hide": [{"seq": 2, "replacement": "x" * 2_001}]},
        {"hide": [{"seq": 2, "replacement": "\x00"}]},
        {"hide": [2] * 1_001},
        {"show": [{"seq": 2, "replacement": "x"}]},
        {"pins": [2]},
        {"view": "no spaces"},
        {"force": "perhaps"},
    ],
)
async def test_invalid_decisions_are_refused(session: httpx.AsyncClient, asked: Json) -> None:
    problem = await decide(session, 422, **asked)
    assert problem["type"] == "/problems/invalid-request"
    assert (await decide(session))["decisions"] == 0


async def test_an_unknown_session_is_404(client: httpx.AsyncClient) -> None:
    assert (await decide(client, 404, sid="nobody", hide=[1]))["type"] == "/problems/not-found"


async def test_a_read_key_cannot_decide(session: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    keys = {scope: (await tenants.create_key("default", scope, [scope])).secret for scope in ("read", "ingest")}
    for scope, status in (("read", 403), ("ingest", 200)):
        answer = await session.patch(
            "/v1/sessions/s/visibility", json={"hide": [4]}, headers={"Authorization": f"Bearer {keys[scope]}"}
        )
        assert answer.status_code == status


async def test_a_cached_view_never_shows_events_hidden_through_another_server(
    servers: Servers,
) -> None:
    first, second = servers
    await append(
        first, {"type": "user.message", "content": "go"}, *read(1, "SECRET"), {"type": "user.message", "content": "and"}
    )
    for _ in range(2):
        assert "SECRET" in shown(await context(first))
    await decide(second, hide=[3])
    assert "SECRET" not in shown(await context(first))
    await append(first, {"type": "assistant.message", "content": "ok"})
    assert "SECRET" not in shown(await context(first))
    await decide(second, show=[3])
    assert "SECRET" in shown(await context(first))


async def test_a_decision_without_a_feasible_context_is_a_documented_refusal(client: httpx.AsyncClient) -> None:
    await append(client, {"type": "user.message", "content": "go"})
    await context(client, max_tokens=4_000)
    assert (await client.put("/v1/sessions/s", json={"outside_tokens": 5_000})).status_code == 200
    answer = await client.patch("/v1/sessions/s/visibility", json={"hide": [1]})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/context-infeasible")
    named = json.loads(document())["paths"]["/v1/sessions/{sid}/visibility"]["patch"]["responses"]["422"]
    assert "context-infeasible" in named["content"]["application/problem+json"]["examples"]
