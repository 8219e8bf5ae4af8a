"""Clients that run random programs on several servers of one database, checked against a model of the log.

A program is a list of steps, each a name and its arguments as plain data. Numbers choose among the sessions and events
that exist at that moment, so every program can run, and any part of one. The server is compared with the model of
acknowledged requests after every step (`Machine.run`).

The last message of a request in the format `openai` may gain tool calls within an epoch if it is the assistant's;
nothing else about it may change.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import httpx
from hypothesis import strategies as st

from app.core.policy.policy import PRESETS
from app.resources.summaries.service import Compaction
from app.store.engine import Database
from app.store.ids import session_key, session_ref
from app.tenants import DEFAULT_TENANT
from migrations.tables import metadata
from tests.property.histories import policy
from tests.support.validators import check_anthropic, check_openai, check_openai_responses

Json = dict[str, Any]
Step = tuple[str, Json]
Program = Sequence[Step]

CHECKS: Final[Mapping[str, Callable[[Json], None]]] = {
    "openai": check_openai,
    "openai-responses": check_openai_responses,
    "anthropic": check_anthropic,
    "blocks": lambda request: None,
}
VIEWS: Final = ("main", "side")
MODELS: Final = (None, "gpt-4o", "claude-sonnet-4-5")
WINDOWS: Final = (600, 1_200, 2_500, 6_000, 40_000)
REFUSALS: Final = ("/problems/context-infeasible", "/problems/nothing-to-send", "/problems/injection-over-reserve")
ROOTS: Final = 2
"""The number of sessions that are not forks; an erased one may be created again with the same id."""
SESSIONS_MAX: Final = 5
POLICIES: Final = 40
TOO_LONG: Final = {"error": {"status": 400, "message": "prompt is too long: 215000 tokens > 200000 maximum"}}
ROUND: Final = ("tool.call", "tool.result")
SILENT: Final = ("turn.start", "turn.end")
LEFT_OUT: Final = ("dropped", "not_rendered", "redacted")
HIDES_REDACTION: Final = ("dropped", "not_rendered", "summarized")
"""Dispositions that a redacted event keeps: its content was not shown anyway."""


def policy_of(number: int) -> Json:
    """Return a preset, or a policy with random settings of every reducer.

    No policy excludes authors; `tests/property` covers what is protected then.
    """
    names = sorted(PRESETS)
    if number < len(names):
        return {"preset": names[number]}
    return {**policy(Random(number)), "authors": None}


_numbers = st.integers(0, 30)
_sizes = st.sampled_from([0, 5, 40, 40, 200, 800])
_maybe = st.sampled_from([False, False, False, False, True])
_pieces = st.one_of(
    st.fixed_dictionaries({"kind": st.just("user"), "words": _sizes, "pinned": _maybe, "ttl": _maybe}),
    st.fixed_dictionaries(
        {
            "kind": st.just("round"),
            "results": st.lists(st.one_of(_sizes, _sizes, _sizes, st.none()), min_size=1, max_size=3),
            "said": st.booleans(),
            "tool": st.sampled_from(["read", "edit", "grep"]),
            "pinned": _maybe,
        }
    ),
    st.fixed_dictionaries({"kind": st.just("late"), "words": _sizes, "which": _numbers}),
    st.fixed_dictionaries({"kind": st.just("says"), "words": _sizes}),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(
                ["system.prompt", "tools", "system.message", "agent.note", "announce", "turn.start", "turn.end"]
            )
        }
    ),
)
_turn = st.builds(
    lambda words, rounds, said: [
        {"kind": "user", "words": words, "pinned": False, "ttl": False},
        *({"kind": "round", "results": sizes, "said": False, "tool": "read", "pinned": False} for sizes in rounds),
        *([{"kind": "says", "words": said}] if said else []),
    ],
    _sizes,
    st.lists(st.lists(_sizes, min_size=1, max_size=2), min_size=1, max_size=4),
    _sizes,
)
_asks = {
    "who": _numbers,
    "view": st.sampled_from(["main", "main", "side"]),
    "format": st.sampled_from(list(CHECKS)),
    "window": st.sampled_from(WINDOWS),
    "model": st.sampled_from(MODELS),
    "minutes": st.sampled_from([0, 0, 1, 90]),
    "more": st.sampled_from(["", "", "", "", "force", "inject", "at"]),
    "which": _numbers,
    "as_before": st.booleans(),
}


def _step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


_talks = st.lists(_turn, min_size=1, max_size=5).map(lambda turns: [piece for turn in turns for piece in turn])
_steps: Final[Mapping[str, tuple[int, st.SearchStrategy[Step]]]] = {
    "append": (8, _step("append", who=_numbers, pieces=st.lists(_pieces, min_size=1, max_size=5))),
    "talk": (8, _step("append", who=_numbers, pieces=_talks)),
    "context": (18, _step("context", **_asks)),
    "compact": (3, _step("compact", who=_numbers)),
    "again": (1, _step("again", who=_numbers, how=st.sampled_from(["key", "ids", "other"]))),
    "outcome": (2, _step("outcome", who=_numbers, what=st.sampled_from(["overflow", "overflow", "more", "less"]))),
    "redact": (3, _step("redact", who=_numbers, which=_numbers)),
    "erase": (1, _step("erase", who=_numbers, forks=st.booleans())),
    "fork": (2, _step("fork", who=_numbers, which=st.one_of(st.none(), _numbers))),
    "policy": (3, _step("policy", who=_numbers, number=st.integers(0, POLICIES))),
    "visibility": (
        2,
        _step(
            "visibility",
            who=_numbers,
            **{name: st.lists(_numbers, max_size=2) for name in ("hide", "show", "pin", "unpin")},
        ),
    ),
    "layer": (1, _step("layer", who=_numbers, kind=st.sampled_from(["sources", "announce"]), text=st.booleans())),
    "end_turn": (1, _step("end_turn", who=_numbers)),
}
"""The steps and their relative frequency."""
_chosen = st.sampled_from([name for name, (times, _) in _steps.items() for _ in range(times)])
programs = st.sampled_from([1, 14, 24]).flatmap(
    lambda least: st.lists(_chosen.flatmap(lambda name: _steps[name][1]), min_size=least, max_size=36)
)


@dataclass
class Entry:
    """An acknowledged event, shared by the forks that contain it; `mark` occurs in no other event."""

    event: Json
    mark: str
    row: Json
    redacted_at: int | None = None

    @property
    def kind(self) -> str:
        return str(self.event["type"])


@dataclass
class Call:
    """A context response.

    `waiting` are the calls then without a result, and `plain` means nothing ephemeral was included. `dispositions` has
    one for each event up to the head.
    """

    answer: Json
    request: str
    made_at: int
    waiting: frozenset[str]
    plain: bool
    past: bool
    dispositions: Mapping[int, str]


@dataclass
class Session:
    """The model of an existing session; `pins` holds (head at the decision, seq, pinned)."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    parent: "Session | None" = None
    at: int = 0
    pins: list[tuple[int, int, bool]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    views: set[str] = field(default_factory=set)
    epochs: dict[str, list[Json]] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    asked: Json | None = None
    posted: tuple[list[Json], str, Json, int] | None = None

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.name}"

    @property
    def head(self) -> int:
        return len(self.entries)

    @property
    def turn(self) -> int:
        return int(self.entries[-1].row["turn"]) if self.entries else 0

    def waiting(self, head: int | None = None) -> dict[str, int]:
        """Return the open calls up to a head and their seqs."""
        found: dict[str, int] = {}
        for seq, entry in enumerate(self.entries[:head], 1):
            if entry.kind == "tool.call":
                found[entry.event["call_id"]] = seq
            elif entry.kind == "tool.result":
                del found[entry.event["call_id"]]
        return found

    def pinned(self) -> set[int]:
        found = {seq for seq, entry in enumerate(self.entries, 1) if entry.event.get("pinned")}
        for _, seq, pins in self.pins:
            (found.add if pins else found.discard)(seq)
        return found

    def protected(self) -> set[int]:
        """Return the seqs that a context at the head must not leave out (I9)."""
        found = {seq for seq in self.pinned() if self.entries[seq - 1].kind not in ("system.prompt", "tools")}
        found |= set(self.waiting().values())
        for seq, entry in enumerate(self.entries, 1):
            if entry.kind == "user.message" and entry.row["turn"] == self.turn:
                found.add(seq)
        for kind in ("system.prompt", "tools"):
            found |= {max((seq for seq, entry in enumerate(self.entries, 1) if entry.kind == kind), default=0)}
        return {seq for seq in found if seq and self.entries[seq - 1].kind not in SILENT}


class Machine:
    """A runner of programs that sends each request to a random server and erases every session at the end."""

    def __init__(
        self, servers: Sequence[httpx.AsyncClient], database: Database, compaction: Compaction, seed: int
    ) -> None:
        self._servers, self._database, self._compaction = servers, database, compaction
        self._random = Random(seed)
        self._live: dict[str, Session] = {}
        self._gone: set[str] = set()
        self._erased: set[str] = set()
        self._count = self._clock = 0
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    async def run(self, program: Program) -> None:
        """Run all steps with the checks after each, then erase everything and check that nothing is left."""
        for left in (await self._ask("GET", "/v1/sessions"))["items"]:  # left by a program that failed
            await self._http.delete(f"/v1/sessions/{left['id']}", params={"forks": "erase"})
        await self._answer("DELETE", "/v1/calibrations")
        for name, arguments in program:
            self._clock += 1
            grows: set[tuple[str, str]] = await getattr(self, f"_{name}")(**arguments) or set()
            await self._check(grows)
        for session in [one for one in self._live.values() if one.parent is None]:
            await self._answer("DELETE", session.path, 204, params={"forks": "erase"})
            for one in [other for other in self._live.values() if _root(other) is session]:
                self._forget(one)
        await self._check_erased()
        for name, table in metadata.tables.items():
            if "session_id" in table.columns:
                assert not await self._database.fetch(f"SELECT FROM {name}"), name

    @property
    def _http(self) -> httpx.AsyncClient:
        """A random server's client."""
        return self._random.choice(self._servers)

    async def _ask(self, method: str, path: str, status: int | None = None, **more: Any) -> Any:
        """Return the parsed response, which must contain no erased content."""
        return (await self._answer(method, path, status, **more)).json()

    async def _answer(self, method: str, path: str, status: int | None = None, **more: Any) -> httpx.Response:
        answer = await self._http.request(method, path, **more)
        said = (method, path, more, answer.status_code, answer.text[:2_000])
        assert answer.is_success if status is None else answer.status_code == status, said
        assert not [mark for mark in self._erased if mark in answer.text], said
        return answer

    # Resolving numbers to sessions

    def _name(self, who: int) -> str:
        names = [f"root-{number}" for number in range(ROOTS)]
        names += [name for name in self._live if name not in names]
        return names[who % len(names)]

    def _session(self, who: int) -> Session | None:
        live = list(self._live.values())
        return live[who % len(live)] if live else None

    # The steps; one that may open an epoch returns the views of which it may, the others return None.

    async def _append(self, who: int, pieces: list[Json]) -> None:
        name = self._name(who)
        session = self._live.get(name) or Session(name)
        waiting = list(session.waiting())
        events = [event for piece in pieces for event in self._events(piece, waiting)]
        if not events:
            return
        key = f"key{self._clock}"
        body = await self._ask(
            "POST", f"{session.path}/events", 201, json={"events": events}, headers={"Idempotency-Key": key}
        )
        first = session.head
        assert [row["seq"] for row in body["events"]] == list(range(first + 1, first + len(events) + 1))
        assert body["head"] == first + len(events)
        self._live[name] = session
        self._gone.discard(name)
        rows = await self._rows(session)
        for number, (event, given, row) in enumerate(zip(events, body["events"], rows[first:], strict=True)):
            assert {field: row[field] for field in event} == event
            assert {field: row[field] for field in given if field != "index"} | {"index": number} == given
            session.entries.append(Entry(event, self._mark_of(event), row))
        session.posted = (events, key, body, first)

    def _events(self, piece: Json, waiting: list[str]) -> list[Json]:
        kind = piece["kind"]
        if kind == "user":
            more: Json = {"pinned": True} if piece["pinned"] else {}
            more |= {"ttl_turns": 1, "replacement": "[expired]"} if piece["ttl"] else {}
            return [self._said("user.message", piece["words"], **more)]
        if kind == "says":
            return [self._said("assistant.message", piece["words"])]
        if kind == "late":
            if not waiting:
                return []
            call_id = waiting.pop(piece["which"] % len(waiting))
            return [self._said("tool.result", piece["words"], call_id=call_id)]
        if kind == "round":
            return self._round(piece, waiting)
        if kind in SILENT:
            return [{"type": kind}]
        if kind == "tools":
            self._count += 1
            return [{"type": kind, "content": [{"name": f"tool_{_mark(self._count)}", "parameters": {}}]}]
        return [self._said(kind, 10)]

    def _round(self, piece: Json, waiting: list[str]) -> list[Json]:
        said = [self._said("assistant.message", 8)] if piece["said"] else []
        calls, results = [], []
        for words in piece["results"]:
            self._count += 1
            call_id = f"c{self._count}"
            arguments = {"path": f"src/{_mark(self._count)}.py"}
            calls.append({"type": "tool.call", "call_id": call_id, "tool": piece["tool"], "arguments": arguments})
            if words is None:
                waiting.append(call_id)
            else:
                results.append(self._said("tool.result", words, call_id=call_id))
        if piece["pinned"] and results:
            results[0]["pinned"] = True
        return [*said, *calls, *results]

    def _said(self, kind: str, words: int, **more: Any) -> Json:
        self._count += 1
        text = f"{_mark(self._count)} begins it; " + "and the build of it goes on\n" * (words // 7)
        return {"type": kind, "content": text, "id": f"e{self._count}", **more}

    @staticmethod
    def _mark_of(event: Json) -> str:
        text = json.dumps(event.get("content") or event.get("arguments") or "")
        return "zq" + text.partition("zq")[2].partition("qz")[0] + "qz" if "zq" in text else ""

    async def _again(self, who: int, how: str) -> None:
        session = self._session(who)
        if session is None or session.posted is None:
            return
        events, key, body, first = session.posted
        if any(entry.redacted_at for entry in session.entries[first : first + len(events)]):
            return
        path, headers = f"{session.path}/events", {"Idempotency-Key": key}
        if how == "key":
            again = await self._ask("POST", path, 200, json={"events": events}, headers=headers)
            assert again["events"] == body["events"]
        elif how == "ids" and all("id" in event for event in events):
            again = await self._ask("POST", path, 200, json={"events": events})
            assert again["events"] == body["events"]
        elif how == "other":
            other = [{"type": "user.message", "content": "something else"}]
            again = await self._ask("POST", path, 409, json={"events": other}, headers=headers)
            assert again["type"] == "/problems/idempotency-conflict"

    async def _context(
        self,
        who: int,
        view: str,
        format: str,
        window: int,
        model: str | None,
        minutes: int,
        more: str,
        which: int,
        as_before: bool,
    ) -> set[tuple[str, str]]:
        session = self._session(who)
        if session is None:
            return set()
        self._now += timedelta(minutes=minutes)
        asked: Json = {"view": view, "format": format, "max_tokens": window} | ({"model": model} if model else {})
        if as_before and session.asked is not None:  # keeps the epoch for several calls
            asked = session.asked
        session.asked = asked
        asked = {**asked, "now": self._now.isoformat()}
        if more == "force":
            asked["force"] = True
        elif more == "inject":
            asked["injections"] = [{"name": "hook", "content": "for this call only"}]
        elif more == "at" and session.head:
            asked["at"] = which % session.head + 1
        await self._made(session, asked)
        return {(session.name, asked["view"])}

    async def _made(self, session: Session, asked: Json) -> None:
        answer = await self._http.post(f"{session.path}/context", json=asked)
        assert not [mark for mark in self._erased if mark in answer.text]
        if answer.status_code != 200:
            assert answer.status_code == 422, answer.text
            problem = answer.json()
            assert problem["type"] in REFUSALS, problem
            if problem["type"] == REFUSALS[0]:
                assert sum(problem["by_source"].values()) == problem["minimum_tokens"] > problem["target"], problem
                await self._holds(session, asked, problem)
            return
        found = answer.json()
        at = asked.get("at", session.head)
        past = "at" in asked
        manifest = await self._ask("GET", f"{session.path}/calls/{found['call_id']}")
        dispositions = _dispositions(manifest["dispositions"])
        plain = not (manifest["injections"] or manifest["layers"] or manifest["notice"])
        waiting = frozenset(session.waiting(at))
        call = Call(found, _request(answer.text), self._clock, waiting, plain, past, dispositions)
        _check_figures(found, injected=bool(manifest["injections"]))
        assert (found["session"], found["view"], found["head"]) == (session.name, asked["view"], at)
        CHECKS[found["format"]](found["request"])
        assert list(dispositions) == list(range(1, at + 1))
        self._check_dispositions(session, call)
        if not past:
            self._check_protected(session, call)
            self._check_prefix(session, call)
            covered = await self._ask("GET", f"{session.path}/coverage", params={"view": asked["view"]})
            assert _dispositions(covered["runs"]) == dispositions
        session.calls.append(call)
        session.views.add(asked["view"])

    async def _holds(self, session: Session, asked: Json, problem: Json) -> None:
        """Check that the minimum named in a refusal suffices (I2)."""
        least, target = problem["minimum_tokens"], problem["target"]
        if target < 50:
            return
        wider = {**asked, "max_tokens": asked["max_tokens"] * least // target * 11 // 10 + 50}
        answer = await self._http.post(f"{session.path}/context:preview", json=wider)
        found = answer.json()
        assert answer.status_code == 200 or found["target"] < least, (problem, found)

    def _check_dispositions(self, session: Session, call: Call) -> None:
        """Check that verbatim events are in the request and omitted ones are not (I4)."""
        unfit = {
            seq
            for row in call.answer["evictions"]
            if row["reducer"] == "format"
            for seq in range(row["from_seq"], row["to_seq"] + 1)
        }
        summarized = bool(call.answer["summaries"])
        for seq, disposition in call.dispositions.items():
            entry = session.entries[seq - 1]
            shows_redaction = entry.redacted_at is not None and disposition not in HIDES_REDACTION
            assert (disposition == "redacted") == shows_redaction
            if entry.kind in SILENT:
                assert disposition == "not_rendered", (seq, disposition)
            elif disposition == "verbatim" and entry.mark and seq not in unfit:
                assert entry.mark in call.request, (seq, entry.event)
            elif disposition in LEFT_OUT and entry.mark and not summarized and entry.kind != "tool.call":
                assert entry.mark not in call.request, (seq, disposition, entry.event)

    def _check_protected(self, session: Session, call: Call) -> None:
        for seq in session.protected():
            allowed = ("redacted",) if session.entries[seq - 1].redacted_at is not None else ("verbatim",)
            assert call.dispositions[seq] in allowed, (seq, call.dispositions[seq], session.entries[seq - 1].event)

    def _check_prefix(self, session: Session, call: Call) -> None:
        """Check that within an epoch an earlier request is a prefix of a later one (I5)."""
        same = ("view", "epoch", "format", "model")
        before = [
            one
            for one in session.calls
            if not one.past and one.plain and all(one.answer[name] == call.answer[name] for name in same)
        ]
        if not before:
            return
        earlier = before[-1]
        # The stub of a pending call may give way to its result: it is part of the tail while its round is the newest.
        sent, sends = (_blocks(one.answer, earlier.waiting) for one in (earlier, call))
        assert len(sends) >= len(sent), (earlier.answer, call.answer)
        for number, (was, now) in enumerate(zip(sent, sends, strict=False)):
            if was != now:
                assert call.answer["format"] == "openai", (number, was, now)
                assert number == len(sent) - 1, (number, was, now)
                assert _extends(was, now), (number, was, now, earlier.answer["head"], call.answer["head"])

    async def _outcome(self, who: int, what: str) -> set[tuple[str, str]]:
        session = self._session(who)
        if session is None or not session.calls or session.calls[-1].answer.get("reported"):
            return set()
        call = session.calls[-1]
        call.answer["reported"] = True
        path = f"{session.path}/calls/{call.answer['call_id']}/outcome"
        if what != "overflow":
            tokens = int(call.answer["tokens"]["estimate"] * {"more": 1.3, "less": 0.8}[what])
            body = await self._ask("POST", path, 200, json={"usage": {"input_tokens": tokens}})
            assert body["action"] == "none"
            return set()
        body = await self._ask("POST", path, 200, json=TOO_LONG)
        assert body["overflow"]
        if body["action"] != "retry":
            return set()
        await self._made(session, {**body["next"]["body"], "wait_ms": 0, "now": self._now.isoformat()})
        return {(session.name, call.answer["view"])}

    async def _redact(self, who: int, which: int) -> None:
        session = self._session(who)
        if session is None or not session.head:
            return
        seq = which % session.head + 1
        entry = session.entries[seq - 1]
        await self._answer("DELETE", f"{session.path}/events/{seq}", 204)
        if entry.redacted_at is None:
            entry.redacted_at = self._clock
            if entry.mark:
                self._erased.add(entry.mark)
            entry.row = (await self._rows(session))[seq - 1]
            assert entry.row["redacted"] is True
            assert (entry.row["type"], entry.row.get("call_id")) == (entry.kind, entry.event.get("call_id"))
        await self._check_erased()

    async def _erase(self, who: int, forks: bool) -> None:
        session = self._session(who)
        if session is None:
            return
        sharing = [one for one in self._live.values() if one is not session and _descends(one, session)]
        if sharing and not forks:
            problem = await self._ask("DELETE", session.path, 409)
            assert set(problem["forks"]) == {one.name for one in sharing}
            return
        await self._answer("DELETE", session.path, 204, params={"forks": "erase"} if forks else {})
        for one in [session, *(sharing if forks else [])]:
            self._forget(one)
        await self._check_erased()

    def _forget(self, session: Session) -> None:
        del self._live[session.name]
        self._gone.add(session.name)
        kept = {entry.mark for one in self._live.values() for entry in one.entries}
        self._erased |= {entry.mark for entry in session.entries if entry.mark and entry.mark not in kept}

    async def _fork(self, who: int, which: int | None) -> None:
        session = self._session(who)
        if session is None or len(self._live) >= SESSIONS_MAX:
            return
        at = session.head if which is None else which % (session.head + 1)
        name = f"fork-{self._clock}"
        body: Json = {"id": name} if which is None else {"id": name, "at": at}
        made = await self._ask("POST", f"{session.path}/fork", 201, json=body)
        assert (made["head"], made["parent"]) == (at, {"id": session.name, "at": at})
        pins = [one for one in session.pins if one[0] <= at and one[1] <= at]
        self._live[name] = Session(name, session.entries[:at], session, at, pins)

    async def _policy(self, who: int, number: int) -> None:
        session = self._session(who)
        if session is None:
            return
        document = policy_of(number)
        await self._ask("PUT", session.path, 200, json={"policy": document.get("preset", document)})

    async def _visibility(
        self, who: int, hide: list[int], show: list[int], pin: list[int], unpin: list[int]
    ) -> set[tuple[str, str]]:
        session = self._session(who)
        if session is None or not session.head or not (hide or show or pin or unpin):
            return set()
        given = {"hide": hide, "show": show, "pin": pin, "unpin": unpin}
        seqs = {name: sorted({one % session.head + 1 for one in those}) for name, those in given.items()}
        body: Json = {name: [{"seq": seq} for seq in those] for name, those in seqs.items()} | {"force": True}
        for number, one in enumerate(body["hide"]):
            if number % 2:
                one["replacement"] = "[hidden]"
        answer = await self._http.patch(f"{session.path}/visibility", json=body)
        found = answer.json()
        assert answer.status_code == 200, answer.text
        refused = {(row["action"], row["seq"]) for row in found["refused"]}
        done = {"hide": "hidden", "show": "shown", "pin": "pinned", "unpin": "unpinned"}
        for action, those in seqs.items():
            assert {seq for seq in those if (action, seq) not in refused} == set(found[done[action]]), found
        session.pins += [(session.head, seq, False) for seq in found["unpinned"]]
        session.pins += [(session.head, seq, True) for seq in found["pinned"]]
        return {(session.name, "main")}

    async def _compact(self, who: int) -> None:
        session = self._session(who)
        if session is None:
            return
        await self._ask("POST", f"{session.path}/compactions", 202, json={})
        await self._compaction.run(session_ref(DEFAULT_TENANT, session.name))
        items = (await self._ask("GET", f"{session.path}/compactions"))["items"]
        assert not [item for item in items if item["state"] == "failed"], items

    async def _layer(self, who: int, kind: str, text: bool) -> None:
        session = self._session(who)
        if session is None:
            return
        path = f"{session.path}/layers/{kind}"
        if text:
            await self._ask("PUT", path, json={"content": "there for a while"})
            session.layers.add(kind)
        else:
            answer = await self._http.delete(path)
            assert answer.status_code == 204 if kind in session.layers else answer.status_code in (204, 404)
            session.layers.discard(kind)

    async def _end_turn(self, who: int) -> None:
        session = self._session(who)
        if session is None:
            return
        answer = await self._http.post(f"{session.path}/turns/end", json={})
        if session.turn == 0 and answer.status_code == 409:  # no event yet that could form a turn
            return
        assert answer.status_code in (200, 201), answer.text
        for row in (await self._rows(session))[session.head :]:
            event = {"type": row["type"]} | ({"content": row["content"]} if row.get("content") else {})
            assert row["type"] in ("announce", "turn.end"), row
            session.entries.append(Entry(event, "", row))
            session.layers.clear()

    # Checks after each step

    async def _check(self, grows: set[tuple[str, str]]) -> None:
        for session in self._live.values():
            await self._check_log(session)
            await self._check_views(session, grows)
            await self._check_summaries(session)
            for call in session.calls:
                await self._check_rendered_again(session, call)
        for name in self._gone:
            for tail in ("", "/events", "/context", "/calls", "/epochs", "/summaries", "/coverage", "/events/1"):
                await self._answer("GET", f"/v1/sessions/{name}{tail}", 404)

    async def _check_log(self, session: Session) -> None:
        """Check that the log holds exactly the acknowledged events (I1)."""
        rows = await self._rows(session)
        assert [row["seq"] for row in rows] == list(range(1, session.head + 1))
        for row, entry in zip(rows, session.entries, strict=True):
            assert _comparable(row, entry) == _comparable(entry.row, entry)
        assert (await self._ask("GET", session.path))["head"] == session.head

    async def _rows(self, session: Session) -> list[Json]:
        found: list[Json] = []
        while True:
            after = found[-1]["seq"] if found else 0
            page = await self._ask("GET", f"{session.path}/events", params={"after": after, "limit": 1_000})
            found += page["items"]
            if page["next_cursor"] is None:
                return found

    async def _check_views(self, session: Session, grows: set[tuple[str, str]]) -> None:
        """Check that every event is accounted for (I4, I7) and that only views in `grows` have new epochs (I5, I6)."""
        for view in VIEWS:
            params = {"view": view, "limit": 1_000}
            answer = await self._http.get(f"{session.path}/epochs", params=params)
            assert answer.is_success or (answer.status_code == 404 and view not in (*session.views, "main"))
            items = answer.json()["items"] if answer.is_success else []
            before = session.epochs.get(view)
            if before is not None:
                assert items[: len(before)] == before, view
                assert len(items) == len(before) or (session.name, view) in grows, (view, items[len(before) :])
            session.epochs[view] = items
        for view in session.views:
            proof = await self._ask("GET", f"{session.path}/coverage", params={"view": view})
            assert proof["ok"], proof["faults"]
            assert proof["head"] == session.head
            assert list(_dispositions(proof["runs"])) == list(range(1, session.head + 1))

    async def _check_summaries(self, session: Session) -> None:
        """Check that live summaries never overlap (I7)."""
        params = {"live": True, "limit": 1_000}
        items = (await self._ask("GET", f"{session.path}/summaries", params=params))["items"]
        spans = sorted((item["from_seq"], item["to_seq"]) for item in items)
        assert all(first[1] < then[0] for first, then in itertools.pairwise(spans)), spans
        assert all(last <= session.head for _, last in spans)

    async def _check_rendered_again(self, session: Session, call: Call) -> None:
        """Check that a call renders to its original bytes unless an event it showed was redacted since (I6)."""
        sent = call.answer
        answer = await self._answer("GET", f"{session.path}/calls/{sent['call_id']}/context", 200)
        found = answer.json()
        assert found["recorded_sha256"] == sent["sha256"]
        head = sent["head"]
        later = {
            seq
            for seq, entry in enumerate(session.entries[:head], 1)
            if entry.redacted_at is not None and entry.redacted_at > call.made_at
        }
        if found["reproduced"]:
            assert found["sha256"] == sent["sha256"]
            assert _request(answer.text) == call.request
            assert found["redacted"] == []
        else:
            assert found["redacted"]
            assert set(found["redacted"]) <= later, (found["redacted"], later)
            named = [seq for seq in later if session.entries[seq - 1].kind == "tool.call"]  # in a note on dropped calls
            shown = [seq for seq in later if call.dispositions[seq] not in LEFT_OUT]
            assert {*named, *shown}, (found["redacted"], call.dispositions)

    async def _check_erased(self) -> None:
        """Check that no table holds erased content or rows of erased sessions."""
        keys = [session_key(DEFAULT_TENANT, name) for name in self._gone]
        names = await self._database.fetch(
            "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        for row in names:
            name = row["name"]
            if self._erased:
                said = "|".join(sorted(self._erased))
                found = await self._database.fetch(f"SELECT t::text FROM {name} t WHERE t::text ~ :said", said=said)
                assert not found, (name, found[:2])
            if name in metadata.tables and "session_id" in metadata.tables[name].columns and keys:
                found = await self._database.fetch(f"SELECT * FROM {name} WHERE session_id = ANY(:keys)", keys=keys)
                assert not found, (name, found[:2])


def _mark(number: int) -> str:
    return f"zq{number}qz"


def _root(session: Session) -> Session:
    return session if session.parent is None else _root(session.parent)


def _descends(one: Session, other: Session) -> bool:
    return one is other or (one.parent is not None and _descends(one.parent, other))


def _request(text: str) -> str:
    """Return the request's JSON from a response, byte for byte."""
    start = text.index('"request":') + len('"request":')
    return text[start : start + json.JSONDecoder().raw_decode(text[start:])[1]]


def _dispositions(runs: Sequence[Json]) -> dict[int, str]:
    return {seq: run["disposition"] for run in runs for seq in range(run["from_seq"], run["to_seq"] + 1)}


def _check_figures(found: Json, *, injected: bool) -> None:
    """Check that a context is within its budget and every token has a source (I2).

    Injections have a reserve of their own and do not count towards the target.
    """
    tokens = found["tokens"]
    ours = tokens["estimate"] - (tokens["by_source"]["ephemeral"] if injected else 0)
    assert ours <= tokens["target"] <= tokens["limit"], tokens
    assert tokens["estimate"] <= tokens["limit"] - tokens["reserve"] - tokens["outside"], tokens
    assert sum(tokens["by_source"].values()) == tokens["estimate"], tokens


def _comparable(row: Json, entry: Entry) -> Json:
    """Return a row without the generated id, which differs between a session and its forks."""
    return row if "id" in entry.event else {**row, "id": ""}


def _blocks(answer: Json, waiting: frozenset[str]) -> list[Any]:
    """Return the parts of a request in order, without cache markers and the results of the `waiting` calls."""
    request, form = answer["request"], answer["format"]
    if form == "blocks":
        parts = request["blocks"]
        return [part for part in parts if not (part["kind"] == "result" and part.get("call_id") in waiting)]
    front: list[Any] = [("tools", _unmarked(request.get("tools")))]
    if form == "openai":
        return front + [part for part in request["messages"] if part.get("tool_call_id") not in waiting]
    if form == "openai-responses":
        front.append(("instructions", request.get("instructions")))
        kept = (
            p for p in request["input"] if not (p.get("type") == "function_call_output" and p["call_id"] in waiting)
        )
        return front + list(kept)
    front.append(("system", _unmarked(request.get("system"))))
    for message in request["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        front += [(message["role"], _unmarked(part)) for part in parts if part.get("tool_use_id") not in waiting]
    return front


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    if isinstance(value, dict):
        return {name: _unmarked(one) for name, one in value.items() if name != "cache_control"}
    return value


def _extends(was: Any, now: Any) -> bool:
    """Return whether an assistant's last message in the format `openai` differs only by additional tool calls."""
    if not (isinstance(was, dict) and isinstance(now, dict) and was.get("role") == now.get("role") == "assistant"):
        return False
    calls = was.get("tool_calls") or []
    return (now.get("tool_calls") or [])[: len(calls)] == calls and {**was, "tool_calls": 0} == {**now, "tool_calls": 0}
