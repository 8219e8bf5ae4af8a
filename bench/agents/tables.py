"""Results as Markdown tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from bench.agents.driver import Slice
from bench.agents.replay import AgentResults, Background
from bench.agents.setting import OTHER

T = TypeVar("T")


def median(rounds: Sequence[T], of: Callable[[T], float | None]) -> float | None:
    """Return the median over the rounds that have the figure."""
    found = [value for value in map(of, rounds) if value is not None]
    return statistics.median(found) if found else None


def _figure(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)


def _cpu(role: str) -> Callable[[Slice], float | None]:
    """Return a function for the CPU ms a call of all processes of a role."""

    def used(one: Slice) -> float | None:
        found = [seconds for name, seconds in one.cpu.items() if name.split()[0] == role]
        return sum(found) / one.calls * 1e3 if found else None

    return used


Columns = Mapping[str, tuple[Callable[[Slice], float | None], str]]

CALL_COLUMNS: Final[Columns] = {
    "contexts/s": (lambda one: one.per_second, ".0f"),
    "context p50": (lambda one: one.context[0], ".1f"),
    "p99": (lambda one: one.context[1], ".0f"),
    "longest": (lambda one: one.context[2], ".0f"),
    "append p50": (lambda one: one.append[0], ".1f"),
    "append p99": (lambda one: one.append[1], ".0f"),
    "loop lag p99": (lambda one: one.lag, ".1f"),
    "API CPU a call": (_cpu("api"), ".2f"),
    "Postgres CPU a call": (_cpu("postgres"), ".2f"),
    "worker CPU a call": (_cpu("worker"), ".2f"),
    "client CPU a call": (lambda one: one.client_cpu / one.calls * 1e3, ".2f"),
    "cores in use": (lambda one: (sum(one.cpu.values()) + one.client_cpu) / one.seconds, ".2f"),
    "KB a context": (lambda one: one.context_kb, ".0f"),
}
CALL_RATIOS: Final = tuple(CALL_COLUMNS)[:6]
STEP_COLUMNS: Final[Columns] = {
    "steps/s": (lambda one: one.per_second, ".0f"),
    "step p50": (lambda one: one.step[0], ".1f"),
    "p99": (lambda one: one.step[1], ".0f"),
    "longest": (lambda one: one.step[2], ".0f"),
    "API CPU a step": (_cpu("api"), ".2f"),
    "Postgres CPU a step": (_cpu("postgres"), ".2f"),
    "worker CPU a step": (_cpu("worker"), ".2f"),
    "client CPU a step": (lambda one: one.client_cpu / one.calls * 1e3, ".2f"),
    "commits a step": (lambda one: one.commits, ".2f"),
    "KB a context": (lambda one: one.context_kb, ".0f"),
}
STEP_RATIOS: Final = tuple(STEP_COLUMNS)[:6]


def lived_table(found: Sequence[AgentResults]) -> str:
    """Return a table of calls: medians of the rounds, and of each round's ratio to the first side."""
    return _table(found, CALL_COLUMNS, CALL_RATIOS)


def steps_table(found: Sequence[AgentResults]) -> str:
    """Return a table of whole steps: medians, and median ratios to the first side."""
    return _table(found, STEP_COLUMNS, STEP_RATIOS)


def _table(found: Sequence[AgentResults], columns: Columns, ratios: Sequence[str]) -> str:
    lines = [f"| agents | side | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for one in found:
        cells = [_figure(median(one.slices, of), form) for of, form in columns.values()]
        lines.append(f"| {one.agents} | {one.side} | {' | '.join(cells)} |")
        base = next(other for other in found if other.agents == one.agents)
        if one.side != base.side:
            shares = [
                _ratio(one.slices, base.slices, of) if name in ratios else "" for name, (of, _) in columns.items()
            ]
            lines.append(f"| {one.agents} | {one.side} / {base.side} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _ratio(some: Sequence[T], base: Sequence[T], of: Callable[[T], float | None]) -> str:
    pairs = [(of(a), of(b)) for a, b in zip(some, base, strict=True)]
    shares = [a / b for a, b in pairs if a is not None and b]
    return f"{statistics.median(shares):.2f} ×" if shares else ""


def _per_million(used: Callable[[Background], float]) -> Callable[[Background], float | None]:
    return lambda one: used(one) / one.tokens * 1e6 if one.worker is not None and one.tokens else None


WORK: Final = {
    "worker": _per_million(lambda one: one.worker or 0),
    "Postgres": _per_million(lambda one: one.postgres),
    "both": _per_million(lambda one: (one.worker or 0) + one.postgres),
}


def worker_table(found: Sequence[AgentResults]) -> str:
    """Return the CPU for a million tokens appended, with ratios to another checkout, and the calls that open epochs."""
    heads = [f"{name}: CPU s for a million" for name in WORK]
    lines = [
        f"| agents | side | million tokens appended | {' | '.join(heads)} | calls that opened an epoch | their p50 |",
        "|---" * (5 + len(WORK)) + "|",
    ]
    for one in found:
        if tokens := sum(each.tokens for each in one.background):
            cells = [_figure(median(one.background, of)) for of in WORK.values()]
            share = sum(each.openings for each in one.slices) / sum(each.calls for each in one.slices)
            cells += [f"{share:.1%}", _figure(median(one.slices, lambda each: each.opening))]
            lines.append(f"| {one.agents} | {one.side} | {tokens / 1e6:.2f} | {' | '.join(cells)} |")
        for base in found:
            if base.side == OTHER and base.agents == one.agents and one.background and one.side != OTHER:
                cells = [_ratio(one.background, base.background, of) for of in WORK.values()]
                if any(cells):
                    lines.append(f"| {one.agents} | {one.side} / {OTHER} |  | {' | '.join(cells)} |  |  |")
    return "\n".join(lines)
