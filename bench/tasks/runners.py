"""Benchmarks' own programs, run for one task with the address that the agent's calls are sent to."""

import asyncio
import json
import os
import re
import subprocess
from asyncio.subprocess import STDOUT
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from bench.tasks.local import LocalTask

VENVS: Final = Path(__file__).parent / ".venv"
NO_CRASH: Final = (
    "Submitted",
    "LimitsExceeded",
    "TimeExceeded",
    "RepeatedFormatError",
    "ContextWindowExceededError",
    "ContextLengthExceededError",
    "OutputLengthExceededError",
    "AgentTimeoutError",
)
"""Reasons for the end of an agent that are its own, not the machine's or the provider's."""
MINUTES_MAX: Final = 180
OFFLINE: Final = {
    "ANTHROPIC_API_KEY": "none",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
}
"""Variables for an agent without a key and without the internet."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a task: the agent's own reason (`NO_CRASH`, else it crashed), and whether the task is solved."""

    reason: str
    solved: bool = False

    @property
    def crashed(self) -> bool:
        """Whether this says nothing about the agent."""
        return self.reason not in NO_CRASH


class Runner(Protocol):
    """A benchmark."""

    @property
    def setting(self) -> Mapping[str, str]:
        """The benchmark's name, and what else its results depend on."""

    async def run(self, task: str, address: str, folder: Path) -> Ended:
        """Let the agent work on a task in an empty folder, and judge the result."""


Agent = Callable[[str, str, Path], Awaitable[tuple[str, str]]]
"""Works on a task (its name, an address, a folder), and returns its reason for the end and a patch."""


@dataclass(frozen=True, slots=True)
class MiniSweAgent:
    """mini-swe-agent with its published configuration for SWE-bench.

    Its model's name has the provider's prefix, as `anthropic/…`. `more` returns further options for a task's folder.
    """

    model: str
    subset: str = "verified"
    environment: str = "docker"
    more: Callable[[Path], Sequence[str]] = lambda folder: ()
    variables: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, task: str, address: str, folder: Path) -> tuple[str, str]:
        """Return the agent's reason and its patch."""
        url = address + ("/v1" if self.model.startswith("openai/") else "")
        options = [
            "--subset",
            self.subset,
            "--split",
            "test",
            "--filter",
            f"{re.escape(task)}$",
            "-o",
            str(folder),
            "-w",
            "1",
        ]
        options += ["-m", self.model, "--environment-class", self.environment, "-c", "swebench.yaml"]
        options += ["-c", f"model.model_kwargs.api_base={url}", "-c", "model.cost_tracking=ignore_errors"]
        await execute(
            [program("swe-bench", "mini-extra"), "swebench", *options, *self.more(folder)], folder, self.variables
        )
        found = _json(folder, f"{task}/*.traj.json")
        if found is None:
            return "NoTrajectory", ""
        info = found["info"]
        return info.get("exit_status") or "NoExitStatus", info.get("submission") or ""


class SweBench:
    """SWE-bench Verified: mini-swe-agent, judged by `swebench`. Both need Docker."""

    def __init__(self, model: str) -> None:
        self._agent = MiniSweAgent(model)
        self.setting = {"benchmark": "swe-bench", **versions("swe-bench", "mini-swe-agent", "swebench")}

    async def run(self, task: str, address: str, folder: Path) -> Ended:
        """See Runner."""
        reason, patch = await self._agent(task, address, folder)
        if not patch:
            return Ended(reason)
        predictions = folder / "preds.json"
        options = ["-p", str(predictions), "-i", task, "-j", "1", "--run-id", "judged"]
        await execute([program("swe-bench", "swebench"), "eval", "verified", *options], folder)
        found = _json(folder, f"logs/run_evaluation/judged/*/{task}/report.json")
        return Ended("NotJudged") if found is None else Ended(reason, found[task]["resolved"])


class TerminalBench:
    """Terminal-Bench by Harbor, with its own agent Terminus 2, which must not summarize. It needs Docker."""

    def __init__(self, model: str, dataset: str) -> None:
        self._model, self._dataset = model, dataset
        self.setting = {"benchmark": dataset, **versions("terminal-bench", "harbor")}

    async def run(self, task: str, address: str, folder: Path) -> Ended:
        """See Runner."""
        url = address + ("/v1" if self._model.startswith("openai/") else "")
        options = ["-d", self._dataset, "-i", task, "-a", "terminus-2", "-m", self._model, "--base-url", url]
        options += ["--ak", "enable_summarize=false", "-o", str(folder), "--job-name", "job", "-n", "1", "-y", "-q"]
        await execute([program("terminal-bench", "harbor"), "run", *options], folder)
        found = _json(folder, "job/*/result.json")
        return Ended("NoResult") if found is None else trial(found)


def trial(result: Mapping[str, object]) -> Ended:
    """Return the end of a trial of Harbor."""
    exception, verifier = result.get("exception_info"), result.get("verifier_result")
    rewards = verifier.get("rewards") if isinstance(verifier, dict) else None
    reason = str(exception["exception_type"]) if isinstance(exception, dict) else "Submitted"
    if not rewards:
        return Ended(reason if exception else "NotJudged")
    return Ended(reason, all(reward >= 1 for reward in rewards.values()))


class LocalBench:
    """A few small repositories, each with a test that fails; agent and judge run on this machine, without Docker."""

    def __init__(self, tasks: Sequence[LocalTask], agent: Agent) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._agent = agent
        self.setting: Mapping[str, str] = {"benchmark": "local"}

    async def run(self, task: str, address: str, folder: Path) -> Ended:
        """See Runner."""
        one = self._tasks[task]
        one.create(folder / "repository")
        reason, patch = await self._agent(task, address, folder)
        solved = bool(patch) and await asyncio.to_thread(one.judge, patch, folder / "judged")
        return Ended(reason, solved)


def local_agent(model: str, tasks: Sequence[LocalTask], folder: Path) -> MiniSweAgent:
    """Return mini-swe-agent for tasks on this machine; a data set of them is made in the folder.

    Its library reads every file below the folder, so its cache must be elsewhere.
    """
    folder.mkdir(exist_ok=True, parents=True)
    rows = ({"instance_id": one.name, "problem_statement": one.statement} for one in tasks)
    (folder / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def more(place: Path) -> Sequence[str]:
        return "-c", f"environment.cwd={place / 'repository'}", "-c", "environment.env.BASH_ENV=/dev/null"

    return MiniSweAgent(model, str(folder), "local", more, {**OFFLINE, "HF_HOME": f"{folder}-cache"})


async def execute(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> int:
    """Run a program with its output in a file of the folder; return its status, 124 if it took MINUTES_MAX."""
    environment = {**os.environ, "MSWEA_SILENT_STARTUP": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **(variables or {})}
    with (folder / "output.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=STDOUT
        )
    try:
        async with asyncio.timeout(MINUTES_MAX * 60):
            return await process.wait()
    except TimeoutError:
        return 124
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _json(folder: Path, pattern: str) -> dict[str, Any] | None:
    """Return the content of the first file that matches."""
    found = next(folder.glob(pattern), None)
    return None if found is None else dict(json.loads(found.read_text(encoding="utf-8")))


def program(environment: str, name: str) -> str:
    """Return the path of a program of an environment. Raises FileNotFoundError if it is not there."""
    path = VENVS / environment / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not installed: run `make bench NAME=tasks`, and see docs/tasks.md")
    return str(path)


def versions(environment: str, *packages: str) -> dict[str, str]:
    """Return the versions of an environment's packages."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [program(environment, "python"), "-c", code, *packages]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(packages, found, strict=True))
