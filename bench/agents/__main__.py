"""`make bench NAME=agents RECORDINGS=folder`: agents that replay recorded coding sessions, against a minimal server.

At every call an agent appends what happened since its last call and requests a context for its window; it makes the
next call as soon as it has the response. API and worker are separate processes, on the same embedded Postgres as the
minimal server (the floor, `bench/speed/floor.py`), which stores each message, returns the newest that fit and commits
one row a call. The
sides take turns in every round; figures are medians over the rounds, ratios are medians of each round's ratio.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import uvloop

from app.core.policy.policy import DOCUMENTS
from bench.agents import long_logs, memory, restarts, steps, summaries, tables
from bench.agents.replay import AgentResults, run_agents
from bench.agents.rows import Row, rows_table
from bench.agents.setting import Setting, a_setting
from bench.agents.sides import ContextParameters, Ours, Side, WholeListClient, cores
from bench.agents.traffic import WRITERS, load

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
AGENTS: Final = (1, 4, 16, 64)
SCENES: Final = {
    "lived": "agents that replay recorded sessions",
    "steps": "an outcome, an append and a context in three requests or one, against the floor's last two",
    "restart": "first contexts after a restart of the API",
    "imported": "sessions posted in bulk, then contexts from a new process",
    "epoch": "a context that opens an epoch over a thousand events",
    "memory": "the API's memory over many sessions",
    "summaries": "summaries the worker writes, and their lag",
    "together": "`serve` against API and worker apart",
    "reconcile": "agents that send their whole conversation with every call, against an append and a context",
    "processes": "several API processes, each request to any of them, against one",
    "busy": "a context after many events while the worker summarizes them, against one after few",
    "long": "a context after very many events (slow)",
}
LIVED: Final = ("lived", "steps", "together", "reconcile", "processes")
TOGETHER: Final = 16
RECONCILING: Final = 4
PROCESSES: Final = (1, 2, 4)
DEFAULT: Final = tuple(name for name in SCENES if name not in ("busy", "long", "processes"))


async def play(given: argparse.Namespace) -> dict[str, Any]:
    """Play the requested scenes, print a table after each, and return all results by scene."""
    seen: dict[str, Any] = {}
    ask = ContextParameters(given.format, given.window, given.policy)
    recordings = load(given.data, given.files)
    async with a_setting(recordings, ask, floor_tokens=given.floor_tokens, other=given.other) as setting:
        for scene in given.scenes:
            print(f"### {scene}: {SCENES[scene]}\n", flush=True)
            if scene in LIVED:
                agents = await _agents(scene, setting, given)
                shown = tables.steps_table if scene == "steps" else tables.lived_table
                print(f"{shown(agents)}\n\n{tables.worker_table(agents)}\n", flush=True)
                seen[scene] = [asdict(one) for one in agents]
            else:
                rows = await _rows(scene, setting, given)
                print(f"{rows_table(rows, [side.name for side in setting.sides])}\n", flush=True)
                seen[scene] = [asdict(one) for one in rows]
    return seen


async def _agents(scene: str, setting: Setting, given: argparse.Namespace) -> list[AgentResults]:
    sides: Sequence[Side] = setting.sides
    numbers: Sequence[int] = given.agents
    match scene:
        case "steps":
            ours = [await setting.start_client(steps.CLIENTS[requests], requests) for requests in given.step]
            others = [one for one in setting.sides[2:] if isinstance(one, Ours)]
            ours += [steps.CLIENTS[given.step[0]](one.name, one.url, one.stack, one.ask) for one in others]
            sides = [setting.floor, *ours]
        case "together":
            sides, numbers = [*sides[:2], await setting.start_side("serve", together=True)], (TOGETHER,)
        case "reconcile":
            sides, numbers = [*sides[:2], await setting.start_client(WholeListClient, "whole")], (RECONCILING,)
        case "processes":
            sides = [await setting.start_side(f"processes_{number}", processes=number) for number in given.processes]
    found: list[AgentResults] = []
    for agents in numbers:
        commits = scene == "steps" and agents == 1
        found += await run_agents(setting, sides, agents, given.rounds, given.calls, commits=commits)
    return found


async def _rows(scene: str, setting: Setting, given: argparse.Namespace) -> list[Row]:
    match scene:
        case "restart":
            return await restarts.measure_restart(setting, given.rounds)
        case "imported":
            return await restarts.measure_import(setting, given.imports, given.imported_events)
        case "epoch":
            return await long_logs.measure_epoch(setting, given.rounds)
        case "summaries":
            return await summaries.measure_summaries(setting)
        case "busy":
            return await long_logs.measure_busy(setting, given.rounds, given.busy_events)
        case "long":
            return await long_logs.measure_context(setting, given.long_events)
        case _:
            return await memory.measure_memory(setting, given.sessions, given.requests)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print its tables, and write the JSON file if one was requested."""
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle like Ctrl-C, so that the servers are stopped
    print(f"{cores()} cores; {given.format}, a window of {given.window:,} tokens, policy {given.policy}\n", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(play(given))
    if given.json is not None:
        given.json.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.agents", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--files", nargs="+", default=(), help="names of its files, by default the coding sessions")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=DEFAULT)
    parser.add_argument("--agents", type=int, nargs="+", default=AGENTS, help="number of concurrent agents")
    parser.add_argument(
        "--step", nargs="+", choices=steps.CLIENTS, default=tuple(steps.CLIENTS), help="requests of a step; a side each"
    )
    parser.add_argument(
        "--processes", type=int, nargs="+", default=PROCESSES, help="API processes of each side of that scene"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, help="calls of all agents in a round, by default by the number of agents")
    parser.add_argument("--format", choices=WRITERS, default="anthropic")
    parser.add_argument("--window", type=int, default=60_000)
    parser.add_argument("--policy", choices=DOCUMENTS, default="default")
    parser.add_argument("--floor-tokens", type=int, help="tokens that the floor fills, by default the target of ours")
    parser.add_argument("--other", type=Path, help="another checkout of this code, as a third side")
    parser.add_argument("--imports", type=int, default=1, help="rounds of imported sessions")
    parser.add_argument("--imported-events", type=int, default=5_000, help="events of an imported session")
    parser.add_argument("--long-events", type=int, default=1_000_000, help="events at the beginning of a long log")
    parser.add_argument("--busy-events", type=int, default=100_000, help="events that the worker is at work on")
    parser.add_argument("--sessions", type=int, default=200, help="sessions of the memory scene")
    parser.add_argument("--requests", type=int, default=2_000, help="requests of the memory scene")
    parser.add_argument("--json", type=Path, help="a file for all results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
