"""`make bench NAME=plan`: planning tails of 500 to 4,000 events on one core, by the state that is already known.

`anew`: no plan of the view is held. `grown`: the last one is, and one event has been added to it, or none. Times are
medians of the process's CPU time, in brackets relative to printing the same events as JSON in the same run.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.core.log.appends import OpenCall, SessionState, as_stored, body_text, parse_batch, place
from app.core.log.event import Event
from app.core.log.events import canonical_json
from app.core.plan.pipeline import Plan, begin, finish, finish_unchanged
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import EarlierPlan, PlanInputs
from app.core.policy.policy import PRESETS
from app.core.tokens.budget import budget_for
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.models import CacheProfile
from app.core.tokens.scales import AREA

SIZES: Final = (500, 1_000, 2_000, 4_000)
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
        started = time.process_time()
        work(given)
        times.append(time.process_time() - started)
    return statistics.median(times) * 1e3


def fresh(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return copies of the events without their memoized values."""
    return tuple(replace(event) for event in events)


def cases(size: int) -> tuple[int, dict[str, float]]:
    """Return how many of `size` events are stubs, and the milliseconds of each way to plan them."""
    policy = PRESETS["default"]
    budget = budget_for(policy, WINDOW, COUNTER.estimator.margin)
    one_more = session(size + 1)
    tail = one_more[:size]

    def planned(rows: tuple[Event, ...], state: Frontier = START, before: EarlierPlan | None = None) -> Plan:
        read = PlanInputs(rows, rows[-1].turn, COUNTER, earlier=before, now=0.0, used_at=0.0, cache=CacheProfile())
        begun = begin(read, budget, policy, state)
        return (finish_unchanged(begun) if before else None) or finish(begun)

    state = planned(tail).state
    state = planned(tail, state).state  # the second reduction finds what the first left for its price
    before = EarlierPlan(planned(tail, state).context, state, size)
    return len(state.stubs), {
        "printing the events as JSON": median_ms(
            tuple, lambda _: [canonical_json(dict(event.body or {})) for event in tail]
        ),
        "anew, events never looked at": median_ms(lambda: fresh(tail), planned),
        "anew, events known": median_ms(tuple, lambda _: planned(tail)),
        "anew under its epoch": median_ms(tuple, lambda _: planned(tail, state)),
        "grown by nothing": median_ms(tuple, lambda _: planned(tail, state, before)),
        "grown by one event": median_ms(tuple, lambda _: planned(one_more, state, before)),
    }


def main() -> None:
    """Measure and print."""
    measured = {size: cases(size) for size in SIZES}
    heads = [f"{size:,} events, {stubs:,} stubs" for size, (stubs, _) in measured.items()]
    print(f"| planning, ms | {' | '.join(heads)} |\n|---{'|---' * len(heads)}|")
    for name in measured[SIZES[0]][1]:
        cells = [f"{ms[name]:.2f} ({ms[name] / next(iter(ms.values())):.2f})" for _, ms in measured.values()]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
