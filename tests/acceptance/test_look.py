"""The commands that show a session, on a server."""

from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from tests.acceptance.transfers import command, json_lines
from tests.conftest import serving
from tests.support.processes import Result

LONG = "a line of the file, and then another one\n" * 60
POLICY = {"reserve_tokens": 0, "retention": {"keep_last": 1, "min_tokens": 50}, "evict": "on_pressure"}
NARROW = {"max_tokens": 3_000, "policy": POLICY}


async def append(http: httpx.AsyncClient, session: str, *events: dict[str, Any]) -> None:
    (await http.post(f"/{session}/events", json={"events": list(events)})).raise_for_status()


async def context(http: httpx.AsyncClient, session: str, **asks: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await http.post(f"/{session}/context", json=asks)).raise_for_status().json()
    return answer


def reading(number: int, content: str) -> list[dict[str, Any]]:
    """A user's message, a call, its result and the reply."""
    call = f"c{number}"
    return [
        {"type": "user.message", "content": f"What is in file {number}?"},
        {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"f{number}.txt"}},
        {"type": "tool.result", "call_id": call, "content": content},
        {"type": "assistant.message", "content": "A lot."},
    ]


def rows(done: Result) -> list[list[str]]:
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_sessions_calls_and_events_are_found_from_their_lists(database_url: str) -> None:
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=f"{url}/v1/sessions") as http:
        settings = {"URL": url}
        assert (await command("sessions", settings=settings)).stdout == "no sessions\n"
        await append(http, "older", {"type": "user.message", "content": "x"})
        await append(http, "newer", *reading(0, LONG))
        sent = [(await context(http, "newer", model="gpt-4o"))["call_id"]]
        for number in range(1, 4):
            await append(http, "newer", *reading(number, f"the port is 54{number}\n{LONG}"))
            sent.append((await context(http, "newer", **NARROW))["call_id"])
        usage = {"usage": {"input_tokens": 777}}
        (await http.post(f"/newer/calls/{sent[1]}/outcome", json=usage)).raise_for_status()
        titled = await context(http, "newer", view="title", max_tokens=9_000)
        await append(http, "older", {"type": "user.message", "content": "y"})

        listed = rows(await command("sessions", settings=settings))
        assert [row[0] for row in listed] == ["SESSION", "older", "newer"]
        assert listed[2][2] == "16"
        assert [row[0] for row in rows(await command("sessions", "--find", "NEW", settings=settings))][1:] == ["newer"]

        done = await command("calls", "newer", settings=settings)
        assert [(row[0], row[-1]) for row in rows(done)[1:5]] == [
            (str(number), id) for number, id in enumerate(sent, 1)
        ]
        assert rows(done)[1][4] == "start"
        assert rows(done)[2][-4] == "777"
        assert rows(done)[5] == ["other", "views:", "--view", "title", "has", "1", "call"]
        done = await command("calls", "newer", "--view", "title", "--json", settings=settings)
        (only,) = json_lines(done)
        assert (only["number"], only["cause"], only["call_id"]) == (1, "start", titled["call_id"])
        done = await command("calls", "newer", "--limit", "1", settings=settings)
        assert [row[0] for row in rows(done)[1:2]] == ["4"]

        done = await command("events", "newer", "--find", "port is 542", settings=settings)
        assert [row[0] for row in rows(done)] == ["SEQ", "11"]
        done = await command(
            "events", "newer", "--type", "tool.call", "--after", "3", "--limit", "2", settings=settings
        )
        assert [row[0] for row in rows(done)][:3] == ["SEQ", "6", "10"]
        done = await command("events", "newer", "--limit", "3", "--json", settings=settings)
        assert [event["seq"] for event in json_lines(done)] == [14, 15, 16]


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_why_a_text_was_forgotten_at_a_call_is_one_command(database_url: str) -> None:
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=f"{url}/v1/sessions") as http:
        await append(http, "s", *reading(0, f"{LONG}the port is 5432\n"))
        await context(http, "s", **NARROW)
        for number in range(1, 5):
            await append(http, "s", *reading(number, LONG))
            last = await context(http, "s", **NARROW)
        await append(http, "s", {"type": "user.message", "content": "the host is db.example"})

        why = ("explain", "s", "--find", "port is 5432")
        first = await command(*why, "--call", "1", settings={"URL": url})
        assert first.stdout.splitlines()[1:3] == [
            'Its request held "port is 5432": in event 3 (result).',
            "Of the 4 events before it, 1 has it, shown whole:",
        ]
        forgotten = await command(*why, "--call", "5", settings={"URL": url})
        assert (forgotten.returncode, forgotten.stderr) == (0, "")
        lines = forgotten.stdout.splitlines()
        assert lines[0].startswith("Call 5 of view main, ")
        assert lines[1:3] == [
            'Its request did not hold "port is 5432".',
            "Of the 20 events before it, 1 has it, not shown whole:",
        ]
        assert lines[4].startswith("Event 3, tool.result, turn 1, ")
        assert lines[5].endswith("from call 1 on, epoch 1 (start): shown whole")
        assert "shown as a stub, by " in lines[6]
        assert lines[-1].startswith('  In its place: "[result of read left out of this context')
        by_id = await command(*why, "--call", last["call_id"], settings={"URL": url})
        assert by_id.stdout == (await command(*why, settings={"URL": url})).stdout == forgotten.stdout

        (found,) = json_lines(await command(*why, "--json", settings={"URL": url}))
        assert (found["held"], found["events"][0]["block"]["mark"]) == (False, "stub")
        of_event = await command("explain", "s", "3", "--call", "5", settings={"URL": url})
        assert of_event.stdout.splitlines()[-1] == lines[-1]
        later = await command("explain", "s", "--find", "db.example", settings={"URL": url})
        assert later.returncode == 1
        assert later.stdout.splitlines()[-1] == "Event 21, the first that has it, was appended after this call."
        for words, status in (
            (("s", "21", "--call", "5"), 1),
            (("s", "--find", "x", "--call", "6"), 1),
            (("s",), 2),
            (("s", "3", "--find", "x"), 2),
        ):
            assert (await command("explain", *words, settings={"URL": url})).returncode == status


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_the_window_of_a_session_is_shown_with_what_follows(database_url: str) -> None:
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=f"{url}/v1/sessions") as http:
        await append(http, "s", *reading(0, LONG))
        first = await command("context", "s", settings={"URL": url})
        assert first.stdout.splitlines()[1] == "No call of s@line.1 is recorded; the next call would have this window:"
        assert (await http.get("/s/calls")).json()["items"] == []

        sent = await context(http, "s", model="gpt-4o", **NARROW)
        usage = {"usage": {"input_tokens": 777}}
        (await http.post(f"/s/calls/{sent['call_id']}/outcome", json=usage)).raise_for_status()
        await append(http, "s", *reading(1, LONG))
        done = await command("context", "s", settings={"URL": url})
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        estimate, target = sent["tokens"]["estimate"], sent["tokens"]["target"]
        assert lines[0] == f"{target - estimate:,} of {target:,} tokens remain before content must be left out"
        assert lines[1].startswith("Call 1 of view main of s@line.1, made ")
        assert {"h", "c", ".", "-"} >= set(lines[3]) - {"f"} and len(lines[3]) == 120
        assert f"target {target:,}" in lines[4]
        assert f"Estimate: {estimate:,} tokens, by {sent['tokens']['estimator']}" in lines
        assert "Provider's count: 777 input tokens for this call" in lines
        assert "All blocks:" in lines
        assert any(line.split()[1:5] == ["3", "result", "read", "verbatim"] for line in lines)
        assert any(line.startswith("Appended since this call: 4 events with ") for line in lines)
        assert "\x1b" not in done.stdout
        same = await command("context", "s", "--call", "1", "--json", settings={"URL": url})
        (found,) = json_lines(same)
        assert (found["left"], found["call"]["call_id"]) == (target - estimate, sent["call_id"])
        assert len((await http.get("/s/calls")).json()["items"]) == 1


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("pages")
async def test_a_calls_number_is_the_same_on_the_pages(database_url: str) -> None:
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=f"{url}/v1/sessions") as http:
        for line in (1, 2):
            for number in range(3):
                await append(http, "s", {"type": "user.message", "content": f"{line} {number}"})
                await context(http, "s")
                await context(http, "s", view="title", max_tokens=9_000)
            if line == 1:
                (await http.post("/s/rewind", json={"to": 1})).raise_for_status()
        for view in ("main", "title"):
            listed = json_lines(await command("calls", "s", "--view", view, "--json", settings={"URL": url}))
            assert [one["number"] for one in listed] == [1, 2, 3]
            for one in listed:
                query = {"number": one["number"], "view": view}
                page = await http.get(f"{url}/ui/sessions/s/calls", params=query)
                assert (page.status_code, one["call_id"] in page.headers["location"]) == (303, True)


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_an_unknown_session_is_one_line(database_url: str) -> None:
    async with serving(Settings(), database_url) as url:
        for words in (("calls", "nope"), ("events", "nope"), ("explain", "nope", "1"), ("context", "nope")):
            done = await command(*words, settings={"URL": url})
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == "palimpsest: there is no session 'nope'\n"
    done = await command("sessions", settings={"URL": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "http://127.0.0.1:1 does not answer" in done.stderr
