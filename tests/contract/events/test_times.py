"""Events may have any time, and every operation on their session keeps working."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import cycle, islice
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.store.engine import Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from tests.contract.contexts.test_context import append
from tests.support.examples import examples

FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "blocks")
EDGES = (
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00.000001Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.99Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "0001-01-01T00:00:00.000000",
    "9999-12-31",
)
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 6
POLICY = {"window_tokens": 12_000, "reserve_tokens": 0, "retention": {"keep_last": None, "superseded": False}}
NAMES = (f"s{number}" for number in range(1_000_000))

zones = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439))
near_edges = st.builds(
    lambda edge, micros: (
        edge + timedelta(microseconds=micros) if edge.year == 1 else edge - timedelta(microseconds=micros)
    ),
    st.sampled_from([datetime.min, datetime.max]),
    st.integers(0, 2_000_000),
)
times = st.one_of(
    st.sampled_from(EDGES),
    st.builds(lambda moment, zone: moment.replace(tzinfo=zone).isoformat(), near_edges, st.just(UTC) | zones),
    st.builds(lambda moment: moment.isoformat(), st.datetimes(timezones=st.none() | st.just(UTC) | zones)),
)


def turns(times: Iterator[str], first: int, count: int) -> list[dict[str, Any]]:
    """Return turns of four events, at successive times of an iterator."""
    events: list[dict[str, Any]] = []
    for turn in range(first, first + count):
        path = {"path": f"src/part_{turn}.py"}
        events += [
            {"type": "user.message", "content": f"question {turn}: please look at src/part_{turn}.py"},
            {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": path, "ttl_seconds": 60},
            {"type": "tool.result", "call_id": f"c{turn}", "content": f"turn {turn}: {WORDS}"},
            {"type": "assistant.message", "content": f"Answer {turn}. {WORDS}"},
        ]
    return [{**event, "occurred_at": next(times)} for event in events]


def walk(http: httpx.Client, given_times: list[str]) -> None:
    """Append events at these times and call every operation that reads events' times."""
    sid = next(NAMES)
    path = f"/v1/sessions/{sid}"
    moments = cycle(given_times)

    def ask(method: str, suffix: str, status: int = 200, **options: Any) -> Any:
        answer = http.request(method, path + suffix, **options)
        assert answer.status_code == status, (given_times, suffix, answer.text)
        return answer.json()

    ask("PUT", "", 201, json={"policy": POLICY})
    for first in (0, 14, 28):
        ask("POST", "/events", 201, json={"events": turns(moments, first, 14)})
        run = ask("POST", "/compactions", json={"wait_ms": 30_000})
        assert run["state"] == "succeeded", (given_times, run)
        ask("GET", "/context")
    for form in FORMATS:
        call = ask("GET", "/context", params={"format": form, "view": form})
        assert ask("GET", f"/calls/{call['call_id']}/context")["sha256"] == call["sha256"]
    summary = ask("GET", "/summaries", params={"live": True})["items"][0]
    ask("GET", f"/summaries/{summary['id']}")
    found = ask("POST", "/recall", json={"query": "question 3", "seqs": [1]})
    assert {item["seq"] for item in found["items"]} > {1}
    ask("GET", "/events/1/history")
    ask("GET", "/ledger")
    assert ask("GET", "/coverage")["ok"]
    log = ask("GET", "/events", params={"limit": 200})["items"]
    assert [event["occurred_at"] for event in log] == list(islice(cycle(given_times), len(log)))
    with http.stream("GET", f"{path}/stream", params={"after": 0}) as stream:
        lines = stream.iter_lines()
        for _ in log:
            while not next(lines).startswith("data:"):
                pass
    audit = http.get("/v1/audit/calls", params={"session": sid})
    assert (audit.status_code, len(audit.json()["items"])) == (200, 8)


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("recall")
@pytest.mark.wing("ledger")
@pytest.mark.wing("stream")
async def test_a_session_with_events_of_any_time_stays_usable(server: str, worker: None) -> None:
    cases = [[edge] for edge in EDGES[:3]]

    @settings(max_examples=examples(18))
    @given(st.lists(times, min_size=1, max_size=7))
    def collect(given_times: list[str]) -> None:
        cases.append(given_times)

    collect()  # first, since a server in the same process draws random numbers too
    with httpx.Client(base_url=server, timeout=30, verify=False) as http:
        for case in cases:
            await asyncio.to_thread(walk, http, case)


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("recall")
@pytest.mark.wing("stream")
@pytest.mark.wing("ledger")
async def test_summaries_stored_with_an_infinite_time_are_read(
    client: httpx.AsyncClient, server: str, worker: None, database: Database
) -> None:
    """Earlier versions stored the first moment of the calendar as minus infinity."""
    with httpx.Client(base_url=server, timeout=30, verify=False) as http:
        await asyncio.to_thread(walk, http, ["2026-01-01T00:00:00Z"])
    sid = (await client.get("/v1/sessions")).json()["items"][0]["id"]
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute(
            "UPDATE summaries SET starts_at = '-infinity', ends_at = '-infinity' WHERE session_id = :session_id",
            session_id=session_key(DEFAULT_TENANT, sid),
        )
    await append(client, turns(cycle(["2026-01-01T00:00:00Z"]), 50, 14), sid)
    run = await client.post(f"/v1/sessions/{sid}/compactions", json={"wait_ms": 30_000})
    assert (run.status_code, run.json()["state"]) == (200, "succeeded"), run.text
    assert (await client.get(f"/v1/sessions/{sid}/context")).status_code == 200


async def test_a_key_that_expires_at_the_calendars_end_works(client: httpx.AsyncClient) -> None:
    end = "9999-12-31T23:59:59.999999Z"
    admin = (await client.post("/v1/keys", json={"name": "a", "scopes": ["admin"]})).json()["secret"]
    headers = {"Authorization": f"Bearer {admin}"}
    made = await client.post("/v1/keys", json={"name": "b", "scopes": ["admin"], "expires_at": end}, headers=headers)
    assert made.status_code == 201, made.text
    theirs = {"Authorization": f"Bearer {made.json()['secret']}"}
    assert (await client.get("/v1/sessions", headers=theirs)).status_code == 200
    listed = (await client.get("/v1/keys", headers=theirs)).json()["items"]
    assert [one["expires_at"] for one in listed if one["name"] == "b"] == ["9999-12-31T23:59:59.999998Z"]
