"""Results as lines of JSON that are only ever appended."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.tasks.billing import Prices, Usage

AGENT: Final = "agent"
PROVIDER: Final = "provider"


@dataclass(frozen=True, slots=True)
class Call:
    """A model call, as seen on the agent's side of an arm or on the provider's.

    `attempt` is the number of times that the arm began the task. `usage` is None for errors.
    """

    side: str
    arm: str
    task: str
    attempt: int
    status: int
    seconds: float
    usage: Usage | None = None
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of an attempt: `ended` is the agent's own reason, and a crashed task has no verdict on the agent."""

    arm: str
    task: str
    attempt: int
    solved: bool
    ended: str
    crashed: bool = False


class SettingError(Exception):
    """Raised for a file of results that was made with other settings."""


@dataclass(slots=True)
class Ledger:
    """A file of results, and its content.

    Its first line is the run's setting; a run with another one is refused, so that all results compare.
    """

    path: Path
    setting: Mapping[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """Read a file; a line that an interruption has cut short is left out."""
        ledger = cls(path)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            match row.pop("kind"):
                case "setting":
                    ledger.setting = row
                case "call":
                    usage = row.pop("usage")
                    ledger.calls.append(Call(**row, usage=None if usage is None else Usage(**usage)))
                case "verdict":
                    ledger.verdicts.append(Verdict(**row))
        return ledger

    @classmethod
    def resume(cls, path: Path, setting: Mapping[str, Any]) -> "Ledger":
        """Read a file, or begin it. Raises SettingError if it has another setting."""
        ledger = cls.read(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")  # after a line that was cut short
        if not ledger.setting:
            ledger._write({"kind": "setting", **setting})
            ledger.setting = setting
        other = sorted(name for name in {*setting, *ledger.setting} if setting.get(name) != ledger.setting.get(name))
        if other:
            raise SettingError(f"{path} was made with another setting: {', '.join(other)}; choose another file")
        return ledger

    @property
    def prices(self) -> Prices:
        """The prices of the run."""
        return Prices(**self.setting["prices"])

    def add(self, row: Call | Verdict) -> None:
        """Append a row."""
        kind = "call" if isinstance(row, Call) else "verdict"
        self._write({"kind": kind, **asdict(row)})
        if isinstance(row, Call):
            self.calls.append(row)
        else:
            self.verdicts.append(row)

    def attempt(self, arm: str, task: str) -> int:
        """Return the number of the next attempt."""
        begun = [(one.arm, one.task, one.attempt) for one in self.calls]
        begun += [(one.arm, one.task, one.attempt) for one in self.verdicts]
        return 1 + max((number for *names, number in begun if names == [arm, task]), default=0)

    def is_done(self, arm: str, task: str, crashes_max: int) -> bool:
        """Return whether a task has a verdict in an arm, or crashed `crashes_max` times."""
        found = [one for one in self.verdicts if (one.arm, one.task) == (arm, task)]
        return any(not one.crashed for one in found) or len(found) >= crashes_max

    def spent(self) -> float:
        """Return the price of all calls, those of crashed and interrupted attempts included."""
        return self.prices.of(total(billed(self.calls)))

    def _write(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def billed(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that are paid: the provider's side of each attempt, or the agent's if there is none.

    The provider's side includes calls that an arm makes for itself. A proxy that cannot be given another provider's
    address has no such side.
    """
    seen = {(one.arm, one.task, one.attempt) for one in calls if one.side == PROVIDER}
    return [one for one in calls if one.side == (PROVIDER if (one.arm, one.task, one.attempt) in seen else AGENT)]


def total(calls: Iterable[Call]) -> Usage:
    """Return the sum of the calls' usage."""
    return sum((one.usage for one in calls if one.usage is not None), Usage())
