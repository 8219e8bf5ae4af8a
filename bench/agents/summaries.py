"""The scene of the worker: summaries written while agents run, and their lag."""

import asyncio
import statistics
import time
from typing import Final

import asyncpg

from bench.agents.driver import Agent, Times, a_fleet
from bench.agents.rows import Row
from bench.agents.setting import Setting
from bench.agents.sides import Floor, Ours, Side, execute
from bench.speed.servers import dsn

AGENTS: Final = 16
CALLS: Final = 30
"""Calls of each agent, first as fast as they are answered, then at a pace."""
PACE_SECONDS: Final = 2.0
"""Interval between two calls of an agent: a pace that the worker should keep up with."""
WATCH: Final = """
CREATE TABLE bench_due (session text, at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON bench_due (session, at);
CREATE FUNCTION bench_due() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO bench_due (session) VALUES (split_part(convert_from(NEW.payload, 'UTF8'), ' ', 1));
    RETURN NULL;
END
$$;
CREATE TRIGGER bench_due AFTER INSERT ON pgqueuer FOR EACH ROW WHEN (NEW.entrypoint = 'compact')
EXECUTE FUNCTION bench_due();
"""
"""Records when each job was queued: an append queues one when a summary is due, unless one is already waiting."""
UNWATCH: Final = "DROP TRIGGER bench_due ON pgqueuer; DROP FUNCTION bench_due(); DROP TABLE bench_due;"
OUR_LAG: Final = """
WITH made AS (
    SELECT session_id::text AS session, depth, created_at AS at,
           lag(created_at) OVER (PARTITION BY session_id, depth ORDER BY created_at) AS earlier
    FROM summaries
)
SELECT depth > 0 AS merged, extract(epoch FROM at - coalesce((
    SELECT max(d.at) FROM bench_due d
    WHERE d.session = made.session AND d.at <= made.at AND d.at > coalesce(made.earlier, '-infinity')
), made.earlier, at))::float8 AS late FROM made WHERE at >= $1
"""
"""Lag of each summary: since the append that queued its job, or since the job's previous summary."""
FLOOR_LAG: Final = (
    "SELECT false AS merged, extract(epoch FROM made - due)::float8 AS late FROM floor_summaries WHERE made >= $1"
)


async def measure_summaries(setting: Setting) -> list[Row]:
    """Run 16 agents as fast as they are answered, then at a pace, while the worker writes summaries."""
    fast, paced = ([_row(name, pace) for name in NAMES] for pace in ("as fast as answered", "a call every 2 s each"))
    async with setting.floor.summarizing():
        for side in setting.sides:
            if isinstance(side, Ours):
                await execute(side.url, WATCH)
            fleet = await a_fleet(side, setting.lives, AGENTS, setting.new_name("behind"))
            for rows, pause in ((fast, 0.0), (paced, PACE_SECONDS)):
                await side.idle()
                await _phase(side, fleet, rows, pause)
                setting.say(f"summaries, {side.name}: every {pause:g} s")
            if isinstance(side, Ours):
                await execute(side.url, UNWATCH)
            for agent in fleet:
                agent.http.close()
    return [*fast, *paced]


NAMES: Final = {
    "summaries of events a minute": ".0f",
    "merged ones a minute": ".0f",
    "their lag in s, p50": ".2f",
    "... p99": ".2f",
    "contexts/s meanwhile": ".0f",
}


def _row(name: str, pace: str) -> Row:
    return Row(f"{name} ({pace})", NAMES[name])


async def _phase(side: Side, fleet: list[Agent], rows: list[Row], pause: float) -> None:
    times = Times()
    raw = await asyncpg.connect(dsn(side.url))
    since = await raw.fetchval("SELECT clock_timestamp()")
    begun = time.perf_counter()
    await asyncio.gather(*[_live(agent, times, pause, number / len(fleet)) for number, agent in enumerate(fleet)])
    lived = time.perf_counter() - begun
    await side.idle()
    minutes = (time.perf_counter() - begun) / 60
    made = await raw.fetch(FLOOR_LAG if isinstance(side, Floor) else OUR_LAG, since)
    await raw.close()
    late = sorted(row["late"] for row in made if not row["merged"])
    merged = sum(row["merged"] for row in made)
    values = [len(late) / minutes, merged / minutes]
    values += [statistics.median(late), late[int(len(late) * 0.99)]] if late else []
    for row, value in zip(rows, values, strict=False):
        row.add(side, value)
    rows[-1].add(side, len(times.contexts) / lived)


async def _live(agent: Agent, times: Times, pause: float, offset: float) -> None:
    await asyncio.sleep(offset * pause)
    for _ in range(CALLS):
        begun = time.perf_counter()
        await agent.make_calls(1, times)
        await asyncio.sleep(max(0.0, pause - (time.perf_counter() - begun)))
