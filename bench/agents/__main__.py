"""`make bench-agents RECORDINGS=folder`: agents that live through recorded coding sessions, against a floor.

At every call an agent posts what happened since the last one and asks for the context of its window, as fast as it is
answered. API and worker are processes of their own, on the same embedded Postgres as the floor, which stores each
message, returns the newest that fit and commits a row a call (`bench/speed/floor.py`). The sides have their turns one
after the other in every round; figures are medians of the rounds, ratios those of each round's ratio.
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

from app.core.policy.presets import DOCUMENTS
from bench.agents import behind, cold, far, memory, tables
from bench.agents.lived import Lived, lived
from bench.agents.rows import Row, rows_table
from bench.agents.setting import Setting, a_setting
from bench.agents.sides import Ask, Side, cores
from bench.agents.traffic import WRITERS, load

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
AGENTS: Final = (1, 4, 16, 64)
SCENES: Final = {
    "lived": "agents that live through recorded sessions",
    "restart": "first contexts after a restart of the API",
    "imported": "sessions posted in bulk, then asked for in a new process",
    "epoch": "a context that opens an epoch over a thousand events",
    "memory": "the API's memory over many sessions",
    "summaries": "how many the worker writes, and how late",
    "together": "`serve` against API and worker apart",
    "reconcile": "agents that send their whole conversation with every call, against an append and a context",
    "processes": "several API processes, each request to any of them, against one",
    "long": "a context behind very many events (slow)",
}
LIVED: Final = ("lived", "together", "reconcile", "processes")
TOGETHER: Final = 16
RECONCILING: Final = 4
PROCESSES: Final = (1, 2, 4)
DEFAULT: Final = tuple(name for name in SCENES if name not in ("long", "processes"))


async def play(given: argparse.Namespace) -> dict[str, Any]:
    """Play the scenes that were asked for, print a table after each; everything that was seen."""
    seen: dict[str, Any] = {}
    ask = Ask(given.format, given.window, given.policy)
    recordings = load(given.data, given.files)
    async with a_setting(recordings, ask, floor_tokens=given.floor_tokens, other=given.other) as setting:
        for scene in given.scenes:
            print(f"### {scene}: {SCENES[scene]}\n", flush=True)
            if scene in LIVED:
                agents = await _agents(scene, setting, given)
                print(f"{tables.lived_table(agents)}\n\n{tables.worker_table(agents)}\n", flush=True)
                seen[scene] = [asdict(one) for one in agents]
            else:
                rows = await _rows(scene, setting, given)
                print(f"{rows_table(rows, [side.name for side in setting.sides])}\n", flush=True)
                seen[scene] = [asdict(one) for one in rows]
    return seen


async def _agents(scene: str, setting: Setting, given: argparse.Namespace) -> list[Lived]:
    sides: Sequence[Side] = setting.sides
    numbers: Sequence[int] = given.agents
    match scene:
        case "together":
            sides, numbers = [*sides[:2], await setting.one_more("serve", together=True)], (TOGETHER,)
        case "reconcile":
            sides, numbers = [*sides[:2], await setting.whole()], (RECONCILING,)
        case "processes":
            sides = [await setting.one_more(f"processes_{number}", processes=number) for number in given.processes]
    found: list[Lived] = []
    for agents in numbers:
        found += await lived(setting, sides, agents, given.rounds, given.calls)
    return found


async def _rows(scene: str, setting: Setting, given: argparse.Namespace) -> list[Row]:
    match scene:
        case "restart":
            return await cold.restarted(setting, given.rounds)
        case "imported":
            return await cold.imported(setting, given.imports, given.imported_events)
        case "epoch":
            return await far.opened(setting)
        case "summaries":
            return await behind.summarized(setting)
        case "long":
            return await far.long(setting, given.long_events)
        case _:
            return await memory.remembered(setting, given.sessions, given.requests)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, and write what was asked for."""
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C: in good order, servers included
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
    parser.add_argument("--files", nargs="+", default=(), help="names of its files; none: the coding sessions")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=DEFAULT)
    parser.add_argument("--agents", type=int, nargs="+", default=AGENTS, help="how many live at a time")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=PROCESSES, help="of the API, on each side of that scene"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, help="of all agents in a round; by their number unless given")
    parser.add_argument("--format", choices=WRITERS, default="anthropic")
    parser.add_argument("--window", type=int, default=60_000)
    parser.add_argument("--policy", choices=DOCUMENTS, default="default")
    parser.add_argument("--floor-tokens", type=int, help="what the floor fills; unless given, the target of ours")
    parser.add_argument("--other", type=Path, help="another checkout of this code, as a third side")
    parser.add_argument("--imports", type=int, default=1, help="rounds of imported sessions")
    parser.add_argument("--imported-events", type=int, default=5_000, help="events of a session that is imported")
    parser.add_argument("--long-events", type=int, default=1_000_000, help="events that a long log begins with")
    parser.add_argument("--sessions", type=int, default=200, help="whose memory is looked at")
    parser.add_argument("--requests", type=int, default=2_000, help="made of them")
    parser.add_argument("--json", type=Path, help="a file for everything that was seen")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
