"""Scenes of long logs: an epoch opened over a thousand events, and a context after a million events."""

import json
import statistics
import time
from itertools import accumulate
from typing import Any, Final

from bench.agents.driver import STRIDE_CALLS, Agent, Times
from bench.agents.rows import Row
from bench.agents.setting import Setting
from bench.agents.sides import Side
from bench.agents.traffic import a_life
from bench.http import Http

WIDE_WINDOW: Final = 500_000
"""A window in which about a thousand events of a coding session stay verbatim, in tokens."""
WIDE_CHARS: Final = 6_000_000
OPENINGS: Final = 3
MANY_EVENTS: Final = 1_000
FEW_CALLS: Final = 2
"""Calls posted together, so that epochs open sooner."""
WIDE_CALLS: Final = 120
SHORT_EVENTS: Final = 1_000
TEXT: Final = "The quick brown fox reads another line of the log."
LONG_CALLS: Final = 60


async def measure_epoch(setting: Setting, calls: int = WIDE_CALLS) -> list[Row]:
    """Extend a session of more than a thousand events until epochs have been opened over them."""
    rows = {name: Row(name, ".0f") for name in ("ordinary context, p50", "a context that opened an epoch, p50")}
    longest, shown = Row("... the longest", ".0f"), Row("KB of an ordinary context", ".0f")
    life = a_life(setting.recordings, 0, setting.ask.form, chars=WIDE_CHARS)
    full = next(n for n, events in enumerate(accumulate(step.events for step in life.steps)) if events >= MANY_EVENTS)
    for side in setting.sides:
        before = side.ask
        side.ask = before.in_window(WIDE_WINDOW)
        agent = Agent(side, await Http.connect(side.port), setting.new_name("wide"), [life])
        await side.open(agent.http, agent.session, life)
        while agent.step < full:
            await agent.advance(STRIDE_CALLS, Times())
        await side.idle()
        times = Times()
        for _ in range(calls):
            await agent.advance(FEW_CALLS, times)
            if len(times.openings) >= OPENINGS or agent.step >= len(life.steps):
                break
        side.ask = before
        agent.http.close()
        ordinary = [one for one in times.contexts if one not in times.openings]
        rows["ordinary context, p50"].add(side, statistics.median(ordinary) * 1e3)
        shown.add(side, times.context_bytes / len(times.contexts) / 1024)
        if times.openings:
            rows["a context that opened an epoch, p50"].add(side, statistics.median(times.openings) * 1e3)
            longest.add(side, max(times.openings) * 1e3)
        setting.say(f"opened, {side.name}: {len(times.openings)} of {len(times.contexts)} contexts opened an epoch")
    return [*rows.values(), longest, shown]


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


async def _after_events(setting: Setting, side: Side, events: int) -> Agent:
    """Return an agent whose log begins with `events` short events."""
    agent = Agent(side, await Http.connect(side.port), setting.new_name("long"), setting.lives)
    short = tuple(_message(setting.ask.form, number) for number in range(1_000))
    begun = time.monotonic()
    await side.open(agent.http, agent.session, setting.lives[0])
    for number in range(events // len(short)):
        await side.append(agent.http, agent.session, short)
        if number % 100 == 99:
            setting.say(f"{side.name}: {number + 1},000 events, {time.monotonic() - begun:.0f} s")
    while agent.step < len(setting.lives[0].steps) // 2:
        await agent.advance(STRIDE_CALLS, Times())
    return agent


def _message(form: str, number: int) -> str:
    role = "assistant" if number % 2 else "user"
    content: Any = f"{number}. {TEXT}"
    if form == "openai-responses":
        kind = "output_text" if number % 2 else "input_text"
        content = [{"type": kind, "text": content}]
    return json.dumps({"role": role, "content": content})
