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
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import uvloop

from app.core.policy.presets import DOCUMENTS
from app.store import embedded
from bench.agents import tables
from bench.agents.driver import target_of
from bench.agents.lag import Prober
from bench.agents.lived import lived
from bench.agents.sides import Ask, Side, a_floor, cores, ours, postmaster
from bench.agents.traffic import WRITERS, Life, load
from bench.quality.servers import temporary_folder

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
AGENTS: Final = (1, 4, 16, 64)
SCENES: Final = ("lived",)


@dataclass(slots=True)
class Setting:
    """What all scenes are played on: the floor first among the sides."""

    sides: list[Side]
    lives: list[Life]
    prober: Prober
    others: dict[str, int]


@asynccontextmanager
async def a_setting(given: argparse.Namespace) -> AsyncIterator[Setting]:
    """Everything started; and stopped at the end."""
    ask = Ask(given.format, given.window, given.policy)
    lives = load(given.data, given.format, given.files)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        stack.callback(postgres.stop)
        floor = await a_floor(postgres, ask)
        stack.callback(floor.stop)
        sides: list[Side] = [floor]
        for name, checkout in {"ours": None, **({"other": given.other} if given.other else {})}.items():
            one = await ours(postgres, folder, ask, name, checkout=checkout)
            stack.push_async_callback(one.stack.stop)
            sides.append(one)
        floor.ask = replace(ask, floor_tokens=given.floor_tokens or await target_of(sides[1], lives[0]))
        prober = Prober()
        stack.callback(prober.stop)
        yield Setting(sides, lives, prober, {"postgres": postmaster(postgres)})


async def play(given: argparse.Namespace) -> dict[str, Any]:
    """Play the scenes that were asked for, print a table after each; everything that was seen."""
    seen: dict[str, Any] = {}
    async with a_setting(given) as setting:
        if "lived" in given.scenes:
            found = []
            for agents in given.agents:
                found += await lived(
                    setting.sides, setting.lives, agents, given.rounds, setting.prober, setting.others, given.calls
                )
            print(f"{tables.lived_table(found)}\n\n{tables.worker_table(found)}\n", flush=True)
            seen["lived"] = [asdict(one) for one in found]
    return seen


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
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--agents", type=int, nargs="+", default=AGENTS, help="how many live at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, help="of all agents in a round; by their number unless given")
    parser.add_argument("--format", choices=WRITERS, default="anthropic")
    parser.add_argument("--window", type=int, default=60_000)
    parser.add_argument("--policy", choices=DOCUMENTS, default="default")
    parser.add_argument("--floor-tokens", type=int, help="what the floor fills; unless given, the target of ours")
    parser.add_argument("--other", type=Path, help="another checkout of this code, as a third side")
    parser.add_argument("--json", type=Path, help="a file for everything that was seen")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
