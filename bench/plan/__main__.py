"""`make bench NAME=plan`: planning a tail of 2,000 events on one core, by the state that is already known.

`anew`: no plan of the view is cached. `grown`: an earlier plan is. Times are medians; the last column is the ratio
to printing the same events as JSON, in the same run.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import canonical_json
from app.core.log.parse import body_text, parse_batch
from app.core.log.placement import OpenCall, SessionState, as_stored, place
from app.core.plan.pipeline import Plan, plan
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import EarlierPlan, PlanInputs
from app.core.policy.policy import PRESETS
from app.core.tokens.budget import budget_for
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.models import CacheProfile
from app.core.tokens.scales import AREA

EVENTS: Final = 2_000
ROUNDS: Final = 30
COUNTER: Final = Counter(HEURISTIC, AREA)
WINDOW: Final = 2_000_000


def session(events: int) -> tuple[Event, ...]:
    """Return a coding agent's log: a user message every 40 events, between them text, a call and its result in turn."""
    raw: list[dict[str, object]] = []
    for number in range(events):
        if number % 40 == 0:
            raw.append({"type": "user.message", "content": f"Now make part {number} of app/service_{number}.py work."})
        elif number % 3 == 1:
            raw.append({"type": "assistant.message", "content": "I shall look at what is there before I change it."})
        elif number % 3 == 2:
            call = {"path": f"app/package_{number % 50}/module_{number}.py"}
            raw.append({"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": call})
        elif raw[-1]["type"] == "tool.call":
            text = "".join(f"def function_{number}_{line}(value): return value + {line}\n" for line in range(20))
            raw.append({"type": "tool.result", "call_id": raw[-1]["call_id"], "content": text})
        else:
            raw.append({"type": "assistant.message", "content": "That is done."})
    state = SessionState()
    rows: list[Event] = []
    for event in raw:
        drafts = parse_batch([event])
        batch = place(drafts, [COUNTER.event(draft) for draft in drafts], state.turn)
        rows += as_stored(state, batch, [json.loads(body_text(draft, 0)) for draft in drafts])
        waiting = {name: call for name, call in state.open_calls.items() if name not in batch.needs_open}
        opened = {name: OpenCall(state.head + offset, tool) for name, (offset, tool) in batch.opens.items()}
        turns = state.turns + batch.turns_begun
        state = SessionState(state.head + 1, turns, state.tokens + batch.tokens, waiting | opened, batch.turn_after)
    return tuple(rows)


def median_ms(prepare: Callable[[], tuple[Event, ...]], work: Callable[[tuple[Event, ...]], object]) -> float:
    """Return the median of ROUNDS runs of `work`, without `prepare`."""
    times = []
    for _ in range(ROUNDS):
        given = prepare()
        started = time.perf_counter()
        work(given)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def fresh(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return copies of the events without their memoized values."""
    return tuple(replace(event) for event in events)


def main() -> None:
    """Measure and print."""
    policy = PRESETS["default"]
    budget = budget_for(policy, WINDOW, COUNTER.estimator.margin)
    events = session(EVENTS + 1)
    tail, one_more = events[:EVENTS], events

    turn, more_turn = tail[-1].turn, one_more[-1].turn

    def planned(rows: tuple[Event, ...], turn: int, state: Frontier = START, before: EarlierPlan | None = None) -> Plan:
        read = PlanInputs(rows, turn, COUNTER, before=before, now=0.0, used_at=0.0, cache=CacheProfile())
        return plan(read, budget, policy, state)

    first = planned(tail, turn)
    state = first.state
    before = EarlierPlan(planned(tail, turn, state).context, state, EVENTS)
    cases: dict[str, Callable[[], float]] = {
        "printing the events as JSON": lambda: median_ms(
            tuple, lambda _: [canonical_json(dict(event.body or {})) for event in tail]
        ),
        "anew, events never looked at": lambda: median_ms(lambda: fresh(tail), lambda rows: planned(rows, turn)),
        "anew, events known": lambda: median_ms(tuple, lambda _: planned(tail, turn)),
        "anew under its epoch": lambda: median_ms(tuple, lambda _: planned(tail, turn, state)),
        "grown by nothing": lambda: median_ms(tuple, lambda _: planned(tail, turn, state, before)),
        "grown by one event": lambda: median_ms(tuple, lambda _: planned(one_more, more_turn, state, before)),
    }
    measured = {name: case() for name, case in cases.items()}
    base = next(iter(measured.values()))
    print(f"| planning {EVENTS:,} events, {len(state.stubs)} of them stubs | ms | against JSON |\n|---|---|---|")
    for name, ms in measured.items():
        print(f"| {name} | {ms:.2f} | {ms / base:.2f} |")


if __name__ == "__main__":
    main()
