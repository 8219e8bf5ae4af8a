"""Scenes of long logs: an epoch opened over a thousand events, and contexts after very many."""

import json
import statistics
import time
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Any, Final

from bench.agents.driver import STRIDE_STEPS, Agent, Times
from bench.agents.rows import Row
from bench.agents.setting import Setting
from bench.agents.sides import Side
from bench.agents.traffic import Life, a_life
from bench.http import Http

WIDE_WINDOW: Final = 500_000
"""A window in which about a thousand events of a coding session stay verbatim, in tokens."""
WIDE_CHARS: Final = 6_000_000
OPENINGS: Final = 3
MANY_EVENTS: Final = 1_000
FEW_STEPS: Final = 2
"""Steps posted together, so that epochs open sooner."""
WIDE_CALLS: Final = 120
SHORT_EVENTS: Final = 1_000
TEXT: Final = "The quick brown fox reads another line of the log."
LONG_CALLS: Final = 60
BUSY_TIMES: Final = 6
"""Repetitions of TEXT in a message, which is about 80 tokens then."""
BUSY_CALLS: Final = 20


async def measure_epoch(setting: Setting, rounds: int = 1, calls: int = WIDE_CALLS) -> list[Row]:
    """Extend sessions of more than a thousand events until epochs have been opened over them."""
    ordinary, opening = Row("ordinary context, p50", ".1f"), Row("a context that opened an epoch, p50", ".0f")
    ratio, longest = Row("... against the ordinary one", ".2f"), Row("... the longest", ".0f")
    shown = Row("KB of an ordinary context", ".0f")
    life = a_life(setting.recordings, 0, setting.ask.form, chars=WIDE_CHARS)
    for _ in range(rounds):
        for side in setting.sides:
            times = await _openings(setting, side, life, calls)
            ordinary.add(side, statistics.median(one for one in times.contexts if one not in times.openings) * 1e3)
            shown.add(side, times.context_bytes / len(times.contexts) / 1024)
            if times.openings:
                opening.add(side, statistics.median(times.openings) * 1e3)
                ratio.add(side, opening.values[side.name][-1] / ordinary.values[side.name][-1])
                longest.add(side, max(times.openings) * 1e3)
            setting.say(f"opened, {side.name}: {len(times.openings)} of {len(times.contexts)} contexts opened an epoch")
    return [ordinary, opening, ratio, longest, shown]


async def _openings(setting: Setting, side: Side, life: Life, calls: int) -> Times:
    """Return the times of contexts of a new session, from MANY_EVENTS events on."""
    full = next(n for n, events in enumerate(accumulate(step.events for step in life.steps)) if events >= MANY_EVENTS)
    wide, times = copy(side), Times()
    wide.ask = side.ask.in_window(WIDE_WINDOW)
    agent = Agent(wide, await Http.connect(side.port), setting.new_name("wide"), [life])
    await wide.open(agent.http, agent.session, life)
    while agent.step < full:
        await agent.advance(STRIDE_STEPS, Times())
    await side.idle()
    for _ in range(calls):
        await agent.advance(FEW_STEPS, times)
        if len(times.openings) >= OPENINGS or agent.step >= len(life.steps):
            break
    agent.http.close()
    return times


async def measure_context(setting: Setting, events: int) -> list[Row]:
    """Compare agents in the middle of a life: one after a thousand short events, one after very many."""
    rows = [Row(f"context behind {size:,} short events, p50") for size in (SHORT_EVENTS, events)]
    for side in setting.sides:
        agents = [await _after_events(setting, side, size) for size in (SHORT_EVENTS, events)]
        await side.idle()
        times = [Times(), Times()]
        for _ in range(LONG_CALLS):
            for agent, seen in zip(agents, times, strict=True):
                await agent.make_calls(1, seen)
        for row, seen in zip(rows, times, strict=True):
            row.add(side, statistics.median(seen.contexts) * 1e3)
        setting.say(f"long, {side.name}")
    ratio = Row("the second against the first", ".2f")
    ratio.values = {name: [rows[1].values[name][0] / found[0]] for name, found in rows[0].values.items()}
    return [*rows, ratio]


async def measure_busy(setting: Setting, rounds: int, events: int) -> list[Row]:
    """Compare contexts after very many events, while the worker summarizes them, with contexts after a thousand."""
    few = Row(f"context after {SHORT_EVENTS:,} events, the worker idle, p50")
    meanwhile = Row("... while the worker summarizes the others, p50")
    many, longest = Row(f"context after {events:,} events meanwhile, p50"), Row("... the longest", ".0f")
    ratio = Row("many events against few with the worker idle", ".2f")
    both_busy, left = Row("... busy", ".2f"), Row("jobs waiting or running after it", ".0f")
    for side in setting.sides:
        agent = await _after_events(setting, side, SHORT_EVENTS, TEXT * BUSY_TIMES)
        await side.idle()
        few.add(side, statistics.median(await _contexts([agent])) * 1e3)
        side.suspend_worker()
        other = await _after_events(setting, side, events, TEXT * BUSY_TIMES)
        side.resume_worker()
        for _ in range(rounds):
            times = await _contexts([agent, other])
            meanwhile.add(side, statistics.median(times[::2]) * 1e3)
            many.add(side, statistics.median(times[1::2]) * 1e3)
            longest.add(side, max(times[1::2]) * 1e3)
            ratio.add(side, many.values[side.name][-1] / few.values[side.name][0])
            both_busy.add(side, many.values[side.name][-1] / meanwhile.values[side.name][-1])
            left.add(side, await side.jobs())
            setting.say(f"busy, {side.name}: {left.values[side.name][-1]:.0f} jobs left")
        await side.erase(other.http, other.session)
        await side.idle()
    return [few, meanwhile, many, longest, ratio, both_busy, left]


async def _contexts(agents: Sequence[Agent]) -> list[float]:
    """Return the seconds of contexts that the agents request in turn, each after an append."""
    times = Times()
    for _ in range(BUSY_CALLS):
        for agent in agents:
            await agent.make_calls(1, times)
    return times.contexts


async def _after_events(setting: Setting, side: Side, events: int, text: str = TEXT) -> Agent:
    """Return an agent whose log begins with `events` short events."""
    agent = Agent(side, await Http.connect(side.port), setting.new_name("long"), setting.lives)
    short = tuple(_message(setting.ask.form, number, text) for number in range(1_000))
    begun = time.monotonic()
    await side.open(agent.http, agent.session, setting.lives[0])
    for number in range(events // len(short)):
        await side.append(agent.http, agent.session, short)
        if number % 100 == 99:
            setting.say(f"{side.name}: {number + 1},000 events, {time.monotonic() - begun:.0f} s")
    while agent.step < len(setting.lives[0].steps) // 2:
        await agent.advance(STRIDE_STEPS, Times())
    return agent


def _message(form: str, number: int, text: str) -> str:
    role = "assistant" if number % 2 else "user"
    content: Any = f"{number}. {text}"
    if form == "openai-responses":
        kind = "output_text" if number % 2 else "input_text"
        content = [{"type": kind, "text": content}]
    return json.dumps({"role": role, "content": content})
