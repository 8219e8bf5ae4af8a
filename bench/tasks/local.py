"""Small repositories with a failing test, for runs without a model, without Docker and without money."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUBMIT: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
GIT: Final = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True)
class LocalTask:
    """A repository of one module and one test, and the commands by which a scripted model works on it.

    `{value}` in the last command is the number after `limit` in the tool results that the model was sent. It submits a
    wrong number if none of them has it. `{python}` is the interpreter.
    """

    name: str
    issue: str
    module: str
    test: str
    commands: Sequence[str]
    notes: str = ""
    refused: bool = False
    """Whether the provider refuses the key."""

    @property
    def statement(self) -> str:
        """The text that the agent is given."""
        return f"[{self.name}] {self.issue}"

    def create(self, folder: Path) -> None:
        """Create the repository, with everything committed."""
        folder.mkdir(parents=True)
        for name, text in {"module.py": self.module, "test_module.py": self.test, "NOTES": self.notes}.items():
            (folder / name).write_text(text, encoding="utf-8")
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "begin"]):
            subprocess.run([*GIT, *command], cwd=folder, check=True, capture_output=True)

    def judge(self, patch: str, folder: Path) -> bool:
        """Return whether the test passes with a patch, in a repository of its own."""
        self.create(folder)
        applied = subprocess.run([*GIT, "apply"], cwd=folder, input=patch, text=True, capture_output=True, check=False)
        tested = [sys.executable, "-m", "unittest", "-q", "test_module"]
        return (
            applied.returncode == 0
            and subprocess.run(tested, cwd=folder, capture_output=True, check=False).returncode == 0
        )

    def steps(self) -> list[str]:
        """Return all commands, the submission included."""
        return [*self.commands, "git diff -- module.py > patch.txt; cat patch.txt", f"echo {SUBMIT} && cat patch.txt"]


def _test(expression: str, value: str) -> str:
    return (
        "import unittest\n\nimport module\n\n\nclass Test(unittest.TestCase):\n    def test(self):\n"
        f"        self.assertEqual({expression}, {value})\n"
    )


def _replace(old: str, new: str) -> str:
    return f"sed -i 's/{old}/{new}/' module.py"


_READ: Final = "cat module.py test_module.py"
_LOG: Final = "seq {0} {1} | sed 's/$/ is a line of a log that holds nothing of use/' | tail -c 9000"


def _long(name: str, logs: int, limit: int) -> LocalTask:
    """Return a task whose solution needs a number that is read first, before many long results."""
    return LocalTask(
        name,
        "The limit of module.py must be the one that NOTES states. Read the logs before you change anything.",
        "LIMIT = 0\n",
        _test("module.LIMIT", str(limit)),
        [
            "cat NOTES",
            *(_LOG.format(n, n + 999) for n in range(1000, 1000 * (logs + 1), 1000)),
            _replace("LIMIT = 0", "LIMIT = {value}"),
        ],
        f"The limit = {limit} was agreed on.\n",
    )


TASKS: Final = (
    LocalTask(
        "local__sum-1",
        "total() returns the difference of its arguments.",
        "def total(a, b):\n    return a - b\n",
        _test("module.total(2, 3)", "5"),
        [_READ, _replace("a - b", "a + b")],
    ),
    LocalTask(
        "local__order-2",
        "newest() returns the oldest entry.",
        "def newest(entries):\n    return sorted(entries)[0]\n",
        _test("module.newest([1, 3, 2])", "3"),
        [_READ, _replace(r"\[0\]", "[-1]")],
    ),
    LocalTask(
        "local__wrong-3",
        "half() rounds up.",
        "def half(number):\n    return -(-number // 2)\n",
        _test("module.half(3)", "1"),
        [_READ, _replace("number", "number + 1")],
    ),
    _long("local__limit-4", 3, 731),
    _long("local__limit-5", 9, 482),
    _long("local__limit-6", 14, 965),
    LocalTask(
        "local__refused-7",
        "The provider does not accept the key of this task.",
        "VALUE = 1\n",
        _test("module.VALUE", "2"),
        [_READ, _replace("1", "2")],
        refused=True,
    ),
)


def next_command(task: LocalTask, results: Sequence[str]) -> str:
    """Return the scripted model's next command, from the tool results that it was sent.

    Each command prints its number at the end; the newest result says which one is next.
    """
    done = [int(number) for number in re.findall(r"\[step (\d+)\]", results[-1])] if results else []
    number = done[-1] + 1 if done else 0
    found = re.search(r"limit = (\d+)", "\n".join(results))
    command = task.steps()[number].replace("{value}", found[1] if found else "1")
    return command if command.startswith("echo") else f"{command}; echo '[step {number}]'"
