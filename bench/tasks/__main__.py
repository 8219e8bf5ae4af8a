"""`make bench NAME=tasks`: SWE-bench Verified and Terminal-Bench with different managers of the agent's context.

`ARGS=--dry-run` runs small tasks against a stand-in of a provider. docs/tasks.md has the protocol and the commands.
"""

import argparse
import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from app.version import VERSION
from bench.quality.servers import a_stack
from bench.tasks import stand_in
from bench.tasks.billing import Prices
from bench.tasks.ledger import AGENT, Ledger, SettingError, Verdict
from bench.tasks.local import TASKS
from bench.tasks.meter import Arm, Meter, serving
from bench.tasks.report import report
from bench.tasks.runners import Agent, Ended, LocalBench, Runner, SweBench, TerminalBench, local_agent

ARMS: Final = ("none", "editing", "ours", "rival")
PROVIDERS: Final = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}
DRY_MODEL: Final = "anthropic/claude-sonnet-5"
DRY_PRICES: Final = "fresh=3,read=0.3,write=3.75,hour=6,output=15"
CRASHED_TASKS_MAX: Final = 3
"""Successive tasks that crash in every arm, after which a run stops."""


def editing(window: int | None) -> dict[str, Any]:
    """Return Anthropic's clearing of tool results, from 80% of a window on; with its own defaults without a window."""
    edit: dict[str, Any] = {"type": "clear_tool_uses_20250919"}
    if window is not None:
        edit |= {
            "trigger": {"type": "input_tokens", "value": window * 4 // 5},
            "keep": {"type": "tool_uses", "value": 3},
        }
    return {"edits": [edit]}


@asynccontextmanager
async def ours(meter: Meter, api: str, window: int | None) -> AsyncIterator[Arm]:
    """Start a server of this checkout, with its gateway before the meter, on a temporary database."""
    upstream = meter.upstream("ours") + ("/v1" if api == "openai" else "")
    async with a_stack(**{f"GATEWAY_{api.upper()}_URL": upstream}) as stack:

        async def begin(session: str) -> None:
            body = {} if window is None else {"policy": {"window_tokens": window}}
            (await stack.http.put(f"/v1/sessions/{session}", json=body)).raise_for_status()

        yield Arm("ours", f"http://127.0.0.1:{stack.port}/gateway/{api}", named=True, begin=begin)


async def run(
    ledger: Ledger,
    meter: Meter,
    runner: Runner,
    tasks: Sequence[str],
    work: Path,
    spend_max: float,
    crashes_max: int = 2,
) -> str:
    """Run all tasks in all arms that have no verdict yet, and return the reason for the end.

    The arms of a task follow each other, each of them first in turn.
    """
    arms, crashed_tasks = list(meter.arms.values()), 0
    for number, task in enumerate(tasks):
        turn = number % len(arms)
        verdicts: list[Verdict] = []
        for arm in arms[turn:] + arms[:turn]:
            if ledger.is_done(arm.name, task, crashes_max):
                continue
            if (spent := ledger.spent()) >= spend_max:
                return f"stopped before {task} in {arm.name}: USD {spent:.4f} of {spend_max:.4f} are spent"
            attempt = await meter.begin(arm, task)
            folder = work / f"{arm.name}-{task}-{attempt}"
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted before the first call
            folder.mkdir(parents=True)
            ended = await runner.run(task, meter.address(arm, task), folder)
            verdicts.append(_verdict(ledger, arm.name, task, attempt, ended))
            ledger.add(verdicts[-1])
            print(f"{arm.name:8} {task}: {'solved' if ended.solved else ended.reason}", flush=True)
        crashed_tasks = crashed_tasks + 1 if verdicts and all(one.crashed for one in verdicts) else 0
        if crashed_tasks >= CRASHED_TASKS_MAX:
            return f"stopped: {crashed_tasks} tasks in a row crashed in every arm; see output.log in {work}"
    return "all tasks are done"


def _verdict(ledger: Ledger, arm: str, task: str, attempt: int, ended: Ended) -> Verdict:
    """Return a verdict. An agent that ended with a call that was too long has not crashed, whatever it reports."""
    calls = [one for one in ledger.calls if (one.side, one.arm, one.task, one.attempt) == (AGENT, arm, task, attempt)]
    too_long = bool(calls) and calls[-1].too_long
    return Verdict(arm, task, attempt, ended.solved, ended.reason, crashed=ended.crashed and not too_long)


async def dry_run(path: Path, work: Path, names: Sequence[str], agent: Agent | None = None) -> str:
    """Run the local tasks against a stand-in, and return the report; mini-swe-agent is the default agent."""
    prices, window = Prices.parse(DRY_PRICES), stand_in.WINDOW_TOKENS
    tasks = [one for one in TASKS if one.name in names]
    runner = LocalBench(tasks, agent or local_agent(DRY_MODEL, tasks, work / "dataset"))
    setting = {**runner.setting, "model": DRY_MODEL, "arms": list(ARMS), "window": window, "prices": asdict(prices)}
    ledger = Ledger.resume(path, setting)
    async with AsyncExitStack() as opened:
        provider = await opened.enter_async_context(stand_in.provider())
        meter = await opened.enter_async_context(serving(ledger, provider, 0))
        rival = await opened.enter_async_context(stand_in.rival(meter.upstream("rival")))
        arms = [
            Arm("none", meter.upstream("none")),
            Arm("editing", meter.upstream("editing"), editing(window)),
            await opened.enter_async_context(ours(meter, "anthropic", window)),
            Arm("rival", rival),
        ]
        meter.arms = {arm.name: arm for arm in arms}
        ended = await run(
            ledger, meter, runner, [one.name for one in tasks], work, spend_max=float("inf"), crashes_max=1
        )
    return f"{ended}\n\n{report(ledger)}"


async def real_run(args: argparse.Namespace) -> str:
    """Run a benchmark with the provider of the model, and return the report."""
    api, names = args.model.partition("/")[0], args.arms.split(",")
    if api not in PROVIDERS or not set(names) <= set(ARMS):
        raise SystemExit(f"the model's name begins with one of {', '.join(PROVIDERS)}/; arms are {', '.join(ARMS)}")
    if api != "anthropic" and "editing" in names:
        raise SystemExit("only Anthropic's API edits the context without a change of the agent: leave out editing")
    if ("rival" in names) != (args.rival is not None):
        raise SystemExit("--rival URL and the arm rival belong together")
    tasks = args.tasks.read_text(encoding="utf-8").split()
    runner = SweBench(args.model) if args.benchmark == "swe-bench" else TerminalBench(args.model, args.dataset)
    provider = args.provider or PROVIDERS[api]
    setting = {**runner.setting, "model": args.model, "arms": names, "window": args.window, "provider": provider}
    setting |= {"prices": asdict(Prices.parse(args.prices)), "palimpsest": commit()}
    ledger = Ledger.resume(args.out, setting)
    async with AsyncExitStack() as opened:
        meter = await opened.enter_async_context(serving(ledger, provider, args.port))
        for name in names:
            match name:
                case "ours":
                    meter.arms[name] = await opened.enter_async_context(ours(meter, api, args.window))
                case "editing":
                    meter.arms[name] = Arm(name, meter.upstream(name), editing(args.window))
                case _:
                    meter.arms[name] = Arm(name, args.rival.rstrip("/") if name == "rival" else meter.upstream(name))
        if args.rival:
            print(f"the rival must use {meter.upstream('rival')} as its provider's address", flush=True)
        ended = await run(ledger, meter, runner, tasks, args.work, args.spend_max)
    return f"{ended}\n\n{report(ledger)}"


def commit() -> str:
    """Return the checkout's commit, or the version outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found or VERSION


def main() -> None:
    """Run, or only report, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="small tasks, a stand-in provider, mini-swe-agent")
    parser.add_argument("--report", type=Path, help="print the tables of a file of results, and run nothing")
    parser.add_argument("--benchmark", choices=("swe-bench", "terminal-bench"), default="swe-bench")
    parser.add_argument("--dataset", default="terminal-bench@2.0", help="Harbor's name of it, for terminal-bench")
    parser.add_argument("--tasks", type=Path, help="a file with the names of the tasks")
    parser.add_argument("--model", help="as LiteLLM names it: anthropic/… or openai/…")
    parser.add_argument("--prices", help=f"USD of a million tokens, as {DRY_PRICES}")
    parser.add_argument("--spend-max", type=float, help="USD after which no further task begins")
    parser.add_argument("--arms", default="none,editing,ours", help="of none, editing, ours, rival")
    parser.add_argument("--rival", help="the base URL of another proxy")
    parser.add_argument("--provider", help="the provider's address, without /v1")
    parser.add_argument("--window", type=int, help="tokens of the context in the arms editing and ours")
    parser.add_argument("--port", type=int, default=8790, help="the meter's port on loopback")
    parser.add_argument("--out", type=Path, default=Path("tasks.jsonl"), help="the file of results")
    parser.add_argument("--work", type=Path, help="a folder for trajectories and patches (default: named after --out)")
    args = parser.parse_args()
    try:
        if args.report:
            print(report(Ledger.read(args.report)))
        elif args.dry_run:
            with tempfile.TemporaryDirectory() as folder:
                names = [one.name for one in TASKS]
                print(asyncio.run(dry_run(Path(folder) / "tasks.jsonl", Path(folder), names)))
        else:
            missing = [name for name in ("tasks", "model", "prices", "spend_max") if getattr(args, name) is None]
            if missing:
                parser.error(f"needed: {', '.join('--' + name.replace('_', '-') for name in missing)}; or --dry-run")
            args.work = (args.work or args.out.with_suffix(".work")).resolve()
            print(asyncio.run(real_run(args)))
    except SettingError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
