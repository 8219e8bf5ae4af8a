"""Random logs: neutral events in any order an agent may post them, and the rows that the store would make of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from app.core.log.appends import OpenCall, SessionState, as_stored, body_text, check, parse_batch, place
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.plan.state.context import NOTHING_UNREAD, Unit, Unread
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Caps, Cut, DialogueWindow, Economics, Retention, Summarize, ToolRule, TtlPruning
from app.core.policy.policy import Policy
from app.core.tokens.counter import CALL_TOKENS, HEURISTIC, MESSAGE_TOKENS, Counter, TextKind
from app.core.tokens.scales import AREA

COUNTER = Counter(HEURISTIC, AREA)
EMPTY = SessionState()

Raw = dict[str, Any]

AUTHORS = ("lead", "scout")
TOOLS = ("read", "ask", "shell/run it", "ü" * 70)
CALL_IDS = ("a", "a_4", "call.1", "call/1", "x" * 90, "Ω")
ODD = (
    "",
    " ",
    "\n\t\n",
    "\u200b",
    "\u202etfel",
    "e\u0301\u0327",
    "\U0001f469\u200d\U0001f4bb",
    "\ufeff",
    "<|endoftext|>",
    "\x07\x7f",
)

words = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30),
    st.builds(
        lambda text, times: text * times,
        st.sampled_from(["word ", "猫", "line\n", "{}"]),
        st.sampled_from([1, 50, 200, 800, 5000]),
    ),
)
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, words),
    st.sampled_from(
        [
            {"type": "image", "url": "https://example.org/a.png"},
            {"type": "image", "data": _PNG, "mime": "image/png"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "low"}},
            {"type": "image"},
            {"type": "reasoning", "text": "hm"},
            {"type": "reasoning", "text": "hm", "signature": "s"},
            {"type": "thinking", "thinking": "hm"},
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "lines"}},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
            {"type": "hologram", "depth": [1, None, {"text": "deep"}]},
            {"text": "a part without a type"},
            {},
        ]
    ),
)
contents = st.one_of(words, st.lists(parts, max_size=4))
objects = st.dictionaries(words.filter(lambda w: len(w) < 40), st.one_of(words, st.integers(), st.none()), max_size=3)
_long = st.just({"path": "a.py", "content": "line of it\n" * 300})
arguments = st.one_of(st.none(), st.just(""), objects, objects.map(json.dumps), _long, _long.map(json.dumps))
definitions = st.lists(
    st.sampled_from(
        [
            {"name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {}}},
            {"type": "function", "function": {"name": "shell/run it", "parameters": {"type": "object"}}},
            {"type": "function", "name": "ask", "parameters": {"type": "object"}, "strict": True},
            {"name": "look", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"},
        ]
    ),
    max_size=4,
    unique_by=json.dumps,
)


@st.composite
def logs(draw: st.DrawFn) -> list[Raw]:
    """Draw neutral events in a legal order: every result names an open call, and no open call's id is used again."""
    events: list[Raw] = []
    open_ids: list[str] = []
    count = draw(st.sampled_from([1, 8, 15, 25, 40]))
    for step in draw(st.lists(_STEPS, min_size=count, max_size=count)):
        if step == "calls":
            for _ in range(draw(st.integers(1, 3))):
                free = [call_id for call_id in CALL_IDS if call_id not in open_ids]
                call_id = draw(st.sampled_from(free)) if free else f"c{len(events)}"
                open_ids.append(call_id)
                events.append(_call(draw, call_id))
        elif step == "results":
            for _ in range(draw(st.integers(1, 3))):
                if open_ids:
                    call_id = open_ids.pop(draw(st.integers(0, len(open_ids) - 1)))
                    events.append(_result(draw, call_id))
        else:
            events.append(_other(draw, step))
    if not events:
        events.append({"type": "user.message", "content": "hello"})
    return events


_STEPS = st.sampled_from(
    ["user.message"] * 4
    + ["assistant.message"] * 3
    + ["calls"] * 5
    + ["results"] * 6
    + ["turn.start", "turn.end", "system.prompt", "tools", "system.message", "agent.note", "announce"]
)


def _call(draw: st.DrawFn, call_id: str) -> Raw:
    event = {"type": "tool.call", "call_id": call_id, "tool": draw(st.sampled_from(TOOLS))}
    if (given := draw(arguments)) is not None:
        event["arguments"] = given
    return event | _extras(draw)


def _result(draw: st.DrawFn, call_id: str) -> Raw:
    event: Raw = {"type": "tool.result", "call_id": call_id}
    if draw(st.integers(0, 9)):
        event["content"] = draw(st.one_of(contents, st.sampled_from(["found\n" * 100, "found\n" * 1000])))
    if not draw(st.integers(0, 3)):
        event["is_error"] = True
    return event | _extras(draw)


def _other(draw: st.DrawFn, kind: str) -> Raw:
    event: Raw = {"type": kind}
    if kind == "tools":
        given = draw(definitions)
        return event | {"content": json.dumps(given) if draw(st.booleans()) else given}
    if kind in ("turn.start", "turn.end"):
        return event | ({"turn_id": "t"} if draw(st.booleans()) else {})
    event["content"] = draw(contents)
    if kind == "user.message" and not draw(st.integers(0, 3)):
        event["turn_id"] = "t"
    return event | _extras(draw)


_EXPIRING: tuple[Raw, ...] = (
    {"ttl_turns": 1},
    {"ttl_seconds": 1_500},
    {"ttl_turns": 1, "replacement": "[gone]"},
    {"supersedes": "k"},
    {"supersedes": "k", "replacement": "[older]"},
)


def _extras(draw: st.DrawFn) -> Raw:
    extras: Raw = {}
    if not draw(st.integers(0, 15)):
        extras["pinned"] = True
    if not draw(st.integers(0, 9)):
        extras |= draw(st.sampled_from(_EXPIRING))
    if not draw(st.integers(0, 4)):
        extras["author"] = draw(st.sampled_from(AUTHORS))
    return extras


_limits = st.sampled_from([None, 0, 1, 3])
rules = st.builds(ToolRule, keep_last=_limits, age_turns=st.one_of(st.none(), st.integers(1, 3)))
policies = st.builds(
    Policy,
    evict=st.sampled_from(["on_pressure", "economic", "economic", "on_cache_expiry", "every_assembly"]),
    low_water=st.sampled_from([0.3, 0.7, 1.0]),
    retention=st.builds(
        Retention,
        keep_last=_limits,
        age_turns=st.one_of(st.none(), st.integers(1, 3)),
        tools=st.dictionaries(st.sampled_from(TOOLS), rules, max_size=1),
        never_evict=st.sampled_from([(), ("ask",)]),
        per_tool=st.booleans(),
        min_tokens=st.sampled_from([0, 0, 50]),
        identifiers=st.sampled_from([0.0, 0.2]),
        dense=st.sampled_from([0.5, 1.0]),
        arguments=st.booleans(),
        superseded=st.booleans(),
    ),
    dialogue_window=st.builds(
        DialogueWindow,
        turns=st.one_of(st.none(), st.none(), st.integers(1, 3)),
        tokens=st.one_of(st.none(), st.none(), st.integers(1, 3000)),
    ),
    economics=st.builds(
        Economics,
        factor=st.sampled_from([0.0, 1.0]),
        least_tokens=st.sampled_from([0, 200]),
        on_cold=st.booleans(),
        once_tokens=st.sampled_from([None, 50]),
    ),
    ttl_pruning=st.one_of(
        st.just(TtlPruning()),
        st.builds(
            TtlPruning, ttl_seconds=st.just(300), keep_recent_turns=st.just(1), keep_recent_intact_turns=st.just(0)
        ),
    ),
    caps=st.builds(
        Caps,
        tool_results=st.sampled_from([None, None, 0.1, 0.5]),
        dialogue=st.sampled_from([None, None, 0.1, 0.5]),
        summaries=st.sampled_from([None, None, 0.05, 0.2]),
    ),
    cut=st.one_of(
        st.just(Cut()),
        st.builds(
            Cut,
            keep_tokens=st.sampled_from([100, 1000]),
            lean=st.sampled_from(["back", "forward"]),
            split_turn=st.sampled_from(["prefix", "protect_current", "advance"]),
        ),
    ),
    authors=st.sampled_from([None, None, None, ("lead",), (), ("!scout",)]),
    types=st.sampled_from([None, None, None, None, ("!tool.result",), ("user.message", "tool.call", "tool.result")]),
    summarize=st.builds(
        Summarize,
        view=st.sampled_from(["all", "all", "clip", "latest"]),
        clip_first=st.sampled_from([0, 1]),
        clip_last=st.just(1),
        role=st.sampled_from(["user", "system"]),
    ),
)


@dataclass(frozen=True, slots=True)
class Session:
    """A log and the state on which the next append builds."""

    events: tuple[Event, ...] = ()
    state: SessionState = EMPTY

    @property
    def turn(self) -> int:
        """Number of the running turn."""
        return self.state.turns


def append(session: Session, raw: Sequence[Raw], *, native: bool = False) -> Session:
    """Return the session after a batch, as ingest and the store make it. Raises their errors."""
    drafts = parse_batch(json.loads(json.dumps(list(raw))), native=native)
    bodies = [json.loads(body_text(draft, index)) for index, draft in enumerate(drafts)]
    batch = place(drafts, [COUNTER.event(draft) for draft in drafts], session.state.turn)
    before = session.state
    check(before, batch, None)
    rows = as_stored(before, batch, bodies)
    still_open = {k: v for k, v in before.open_calls.items() if k not in batch.needs_open}
    opened = {call_id: OpenCall(before.head + offset, tool) for call_id, (offset, tool) in batch.opens.items()}
    state = SessionState(
        head=before.head + len(rows),
        turns=before.turns + batch.turns_begun,
        tokens=before.tokens + batch.tokens,
        turn=batch.turn_after,
        open_calls=still_open | opened,
    )
    return Session((*session.events, *rows), state)


def log_of(raw: Sequence[Raw], *, native: bool = False) -> Session:
    """Return a session with exactly these events."""
    return append(Session(), raw, native=native)


def whole_inputs(session: Session, now: float | None = None, used_at: float | None = None) -> PlanInputs:
    """Return inputs with the whole log."""
    return PlanInputs(session.events, session.turn, COUNTER, now=now, used_at=used_at)


def cover_of(session: Session, chunk: int) -> tuple[Summary, ...]:
    """Return the live summaries of `tree_of`."""
    return tuple(one for one in tree_of(session, chunk) if one.live)


def tree_of(session: Session, chunk: int) -> tuple[Summary, ...]:
    """Return summaries of `chunk` units each, up to the first open or late round; of four, three are merged."""
    whole_log = project(session.events, START, COUNTER, turn=session.turn)
    made: list[Summary] = []
    pending: list[Unit] = []
    for unit, following in pairwise((*whole_log.units, None)):
        if unit is None or following is None:
            break
        pending.append(unit)
        last = max(item.event.seq for one in pending for item in one.all_items)
        if len(pending) >= chunk and last < following.items[0].event.seq:
            start = made[-1].to_seq + 1 if made else 1
            tokens = sum(item.event.tokens for one in pending for item in one.all_items)
            text = f"what was said from {start} on"
            made.append(Summary(f"s{start}-{last}", start, last, 0, COUNTER.message(text), text, tokens, len(pending)))
            pending = []
    if len(made) > 3:
        first = made[:3]
        text = f"all up to {first[-1].to_seq}"
        tokens = sum(one.source_tokens for one in first)
        merged = Summary(f"m1-{first[-1].to_seq}", 1, first[-1].to_seq, 1, COUNTER.message(text), text, tokens, 3)
        return (*(replace(one, status="superseded") for one in first), merged, *made[3:])
    return tuple(made)


def visible_only(session: Session, state: Frontier, folded: tuple[Summary, ...] = ()) -> PlanInputs:
    """Return the inputs that the store reads under an epoch: the tail and kept events, without the bodies of stubs."""
    kept = frozenset(state.kept)
    stubbed = {stub.seq for stub in state.stubs if not stub.chars}
    rows = (event for event in session.events if event.seq > state.floor or event.seq in kept)
    bare = tuple(replace(event, body=None) if event.seq in stubbed else event for event in rows)
    return PlanInputs(bare, session.turn, COUNTER, folded=folded)


def prompts_of(session: Session) -> list[int]:
    """Return the seqs of the newest run of system prompts that no conversation interrupts."""
    silent = ("system.prompt", "tools", "turn.start", "turn.end")
    runs: list[list[int]] = [[]]
    for event in session.events:
        if event.type == "system.prompt":
            runs[-1].append(event.seq)
        elif event.type not in silent and runs[-1]:
            runs.append([])
    return next((run for run in reversed(runs) if run), [])


def bounded_inputs(session: Session, bound_tokens: int, state: Frontier = START, epoch_head: int = 0) -> PlanInputs:
    """Return the inputs that the store reads when the tail exceeds its bound: its end, and events that must stay.

    If the bound reaches back to the epoch's head, they are all events after the epoch's floor.
    """
    start = next((e.seq for e in session.events if e.cum_tokens > session.state.tokens - bound_tokens), 1)
    if start <= epoch_head + 1:
        return visible_only(session, state)
    pinned = {event.seq for event in session.events if event.pinned}
    anchors = {call.seq for call in session.state.open_calls.values()} | pinned | set(state.kept)
    anchors |= {e.call_seq for e in session.events if e.seq in pinned and e.call_seq}
    anchors |= {e.seq for e in session.events if e.call_seq in pinned}
    anchors |= {e.seq for e in session.events if e.type is EventType.USER_MESSAGE and e.turn == session.turn}
    anchors |= {*prompts_of(session), max((e.seq for e in session.events if e.type is EventType.TOOLS), default=0)}
    rows = tuple(e for e in session.events if e.seq >= start or e.seq in anchors)
    last = session.events[start - 2]
    unread = Unread(last.seq, last.cum_tokens, last.turn) if start > state.floor + 1 else NOTHING_UNREAD
    return PlanInputs(rows, session.turn, COUNTER, unread)


def recount(request: Mapping[str, Any]) -> int:
    """Return the tokens of a chat-completions request by the same counter, read from the request itself.

    Wrapping is included; the few words that a format puts in place of empty content, or before an error, are not.
    """
    tokens = 0
    for message in request["messages"]:
        content = message.get("content") or ""
        pieces = [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
        is_result = message["role"] == "tool"
        kind = TextKind.RESULT if is_result else TextKind.PROSE
        own = [piece.removeprefix("[error] ") for piece in pieces]
        said = [piece for piece in own if piece not in ("(empty)", "(no output)")]
        tokens += sum(COUNTER.estimator.count(piece, kind) for piece in said)
        tokens += CALL_TOKENS if is_result else MESSAGE_TOKENS if content else 0
        for call in message.get("tool_calls", ()):
            function = call["function"]
            tokens += COUNTER.estimator.count(function["name"], TextKind.DATA) + CALL_TOKENS
            tokens += COUNTER.estimator.count(function["arguments"], TextKind.DATA)
    return tokens
