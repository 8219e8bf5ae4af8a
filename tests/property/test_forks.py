"""A fork equals a session with the same events of its own, whatever its parents do afterwards."""

import itertools
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.core.assembly.inputs import LoadedView
from app.core.log.event import Event
from app.core.log.segments import InheritableSummary, ancestry, clip, cover_at, log_segments, shared_to
from app.store import event_log, spans, views
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import session_ref
from app.tenants import DEFAULT_TENANT
from tests.property.builders import Raw, logs
from tests.support.examples import examples

_numbers = itertools.count(1)

ROW = (
    "head, turns, tokens, turn_id, awaits_user, open_calls, system_seq, tools_seq, user_seqs, pinned_seqs, estimator,"
    " policy_name, policy_version"
)
OF_ITS_OWN = {"call_id", "session", "created_at", "id", "line", "updated_at"}
JUNK: list[Raw] = [
    {"type": "system.prompt", "content": "another one"},
    {"type": "turn.start", "turn_id": "elsewhere"},
    {"type": "user.message", "content": "not meant for forks", "pinned": True},
    {"type": "agent.note", "content": "elsewhere"},
]

on_a_database = settings(
    max_examples=examples(10),
    database=None,
    deadline=None,
    phases=[Phase.generate],  # shrinking would take minutes, at half a second an example
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


async def post(http: httpx.AsyncClient, name: str, events: list[Raw]) -> None:
    for start in range(0, len(events), 7):  # several appends, some of which start at a fork's first seq
        answer = await http.post(f"/v1/sessions/{name}/events", json={"events": events[start : start + 7]})
        assert answer.status_code == 201, answer.text


async def fork_line(http: httpx.AsyncClient, raw: list[Raw], cuts: list[int], name: str) -> str:
    """Create these events as a line of forks, and continue every parent differently."""
    await http.put(f"/v1/sessions/{name}0", json={})
    for number, (start, end) in enumerate(itertools.pairwise([0, *cuts, len(raw)])):
        await post(http, f"{name}{number}", raw[start:end])
        if number == len(cuts):
            break
        body = {"id": f"{name}{number + 1}"}
        if number % 2:  # fork from a seq that is no longer the head
            body["at"] = end
            await _continue(http, f"{name}{number}")
        answer = await http.post(f"/v1/sessions/{name}{number}/fork", json=body)
        assert answer.status_code == 201, answer.text
        if not number % 2:
            await _continue(http, f"{name}{number}")
    return f"{name}{len(cuts)}"


async def _continue(http: httpx.AsyncClient, name: str) -> None:
    """Answer the parent's open calls and append more events to it."""
    calls: dict[str, None] = {}
    for row in (await http.get(f"/v1/sessions/{name}/events", params={"limit": 1000})).json()["items"]:
        if row["type"] == "tool.call":
            calls[row["call_id"]] = None
        elif row["type"] == "tool.result":
            del calls[row["call_id"]]
    await post(http, name, [{"type": "tool.result", "call_id": call, "content": "elsewhere"} for call in calls])
    await post(http, name, JUNK)


def comparable_view(loaded: LoadedView | None) -> Any:
    assert loaded is not None
    return replace(loaded, session_id=None, created_at=None, events=_plain(loaded.events)), [
        event.body for event in loaded.events
    ]


def _plain(events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(replace(event, at=0.0) for event in events)


@given(data=st.data())
@on_a_database
async def test_a_fork_is_as_good_as_a_session_of_its_own(
    client: httpx.AsyncClient, database: Database, data: st.DataObject
) -> None:
    raw = data.draw(logs())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), min_size=1, max_size=3)))
    name = f"s{next(_numbers)}-"
    fork = await fork_line(client, raw, cuts, name)
    await post(client, f"{name}own", raw)
    names = (fork, f"{name}own")
    rows = [await database.fetchrow(f"SELECT {ROW} FROM sessions WHERE external_id = :name", name=one) for one in names]
    assert rows[0] == rows[1]
    refs = [session_ref(DEFAULT_TENANT, one) for one in names]
    keys = [ref.session_id for ref in refs]
    total = sum(row["tokens"] for row in rows if row) // 2
    for _ in range(4):
        at = data.draw(st.sampled_from([None, *range(1, len(raw) + 1)]))
        bound = data.draw(st.integers(1, max(2, total)))
        loads = [await views.load(database, ref, "v", at=at, fresh=False, bound_tokens=bound) for ref in refs]
        assert comparable_view(loads[0]) == comparable_view(loads[1])
    for asked in ({}, {"max_tokens": 60 + total // 3}, {"max_tokens": 60 + total // 8, "at": len(raw) // 2 + 1}):
        form = data.draw(st.sampled_from(["openai", "anthropic", "openai-responses", "gemini", "blocks"]))
        body = {"format": form, "view": "v", "policy": {"reserve_tokens": 0}} | asked
        answers = [(await client.post(f"/v1/sessions/{one}/context", json=body)).json() for one in names]
        assert _comparable(answers[0]) == _comparable(answers[1])
    listed = [await client.get(f"/v1/sessions/{one}/events", params={"limit": 1000}) for one in names]
    mine, theirs = ([_comparable(row) for row in one.json()["items"]] for one in listed)
    assert mine == theirs
    outlines = [await event_log.events_without_bodies(database, SessionLog(key), len(raw)) for key in keys]
    assert _plain(outlines[0]) == _plain(outlines[1])
    after, tokens = data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, total + 1))
    facts = [await spans.facts(database, ref) for ref in refs]
    for log in ([one.log for one in facts if one], [SessionLog(key) for key in keys]):
        newest = [_plain(await event_log.newest(database, one, after, tokens)) for one in log]
        assert newest[0] == newest[1]
        oldest = [_plain(await event_log.oldest(database, one, after, tokens, 100)) for one in log]
        assert oldest[0] == oldest[1]
        between = [_plain(await event_log.events(database, one, after, after + 5, (1, after + 7))) for one in log]
        assert between[0] == between[1]


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in answer.items() if name not in OF_ITS_OWN}
    return own | ({"cache": own["cache"] | {"expires_at": None}} if "cache" in own else {})


numbers = st.lists(st.integers(1, 30), max_size=4).map(lambda steps: list(itertools.accumulate(steps)))


@given(numbers, st.integers(0, 130), st.integers(0, 130))
def test_segments_hold_each_seq_once(ends: list[int], first: int, last: int) -> None:
    owners = [UUID(int=number) for number in range(len(ends))]
    shared = ancestry(owners, ends)
    head = shared_to(shared) + 5
    log = log_segments(shared, UUID(int=99), head)
    seqs = [seq for one in log for seq in range(one.from_seq, one.to_seq + 1)]
    assert seqs == list(range(1, head + 1))
    part = [seq for one in clip(log, first, last) for seq in range(one.from_seq, one.to_seq + 1)]
    assert part == [seq for seq in seqs if first <= seq <= last]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[InheritableSummary], list[int]]:
    """Draw summaries in order of creation, of events or of the last few summaries, and the ends of the live ones."""
    made: list[InheritableSummary] = []
    standing: list[InheritableSummary] = []
    for number in range(draw(st.integers(0, 12))):
        merged = standing[draw(st.integers(0, len(standing))) :] if draw(st.booleans()) else []
        end = standing[-1].to_seq if standing else 0
        start, to = (merged[0].from_seq, end) if merged else (end + 1, end + draw(st.integers(1, 9)))
        standing = [
            *standing[: len(standing) - len(merged)],
            InheritableSummary(UUID(int=number), start, to, live=True),
        ]
        made.append(standing[-1])
    live = {one.id for one in standing}
    return [replace(one, live=one.id in live) for one in made], [one.to_seq for one in standing]


@given(histories(), st.integers(0, 100))
def test_a_fork_takes_over_a_cover_without_a_hole(history: tuple[list[InheritableSummary], list[int]], at: int) -> None:
    made, ends = history
    chain = cover_at(made, at)
    assert all(one.to_seq <= at for one in chain)
    assert [one.from_seq for one in chain] == [1, *(one.to_seq + 1 for one in chain)][: len(chain)]
    reached = chain[-1].to_seq if chain else 0
    assert reached >= max((end for end in ends if end <= at), default=0)
    if not ends or at >= ends[-1]:
        assert all(one.live for one in chain)
