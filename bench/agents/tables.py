"""Results as Markdown tables."""

import statistics
from collections.abc import Callable, Iterator, Sequence

from bench.agents.driver import Slice
from bench.agents.replay import AgentResults


def median(slices: Sequence[Slice], of: Callable[[Slice], float | None]) -> float | None:
    """Return the median over the rounds that have the figure."""
    found = [value for value in map(of, slices) if value is not None]
    return statistics.median(found) if found else None


def _figure(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)


def _cpu(role: str) -> Callable[[Slice], float | None]:
    """Return a function for the CPU ms a call of all processes of a role."""

    def used(one: Slice) -> float | None:
        found = [seconds for name, seconds in one.cpu.items() if name.split()[0] == role]
        return sum(found) / one.calls * 1e3 if found else None

    return used


COLUMNS: dict[str, tuple[Callable[[Slice], float | None], str]] = {
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
RATIOS = list(COLUMNS)[:6]


def lived_table(found: Sequence[AgentResults]) -> str:
    """Return the medians of the rounds, and of each round's ratio to the floor in the same round."""
    lines = [f"| agents | side | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for one in found:
        cells = [_figure(median(one.slices, of), form) for of, form in COLUMNS.values()]
        lines.append(f"| {one.agents} | {one.side} | {' | '.join(cells)} |")
        lines += _ratios(one, next(other for other in found if other.agents == one.agents))
    return "\n".join(lines)


def _ratios(one: AgentResults, base: AgentResults) -> Iterator[str]:
    if one.side == base.side:
        return
    cells = []
    for name in COLUMNS:
        of = COLUMNS[name][0]
        pairs = [(of(a), of(b)) for a, b in zip(one.slices, base.slices, strict=True)]
        shares = [a / b for a, b in pairs if a is not None and b]
        cells.append(f"{statistics.median(shares):.2f} ×" if name in RATIOS and shares else "")
    yield f"| {one.agents} | {one.side} / {base.side} | {' | '.join(cells)} |"


def worker_table(found: Sequence[AgentResults]) -> str:
    """Return the worker's CPU, and the contexts that opened an epoch against the others."""
    lines = [
        "| agents | side | million tokens appended | worker CPU s for each | calls that opened an epoch | their p50 |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        if one.worker_tokens:
            millions, opened = one.worker_tokens / 1e6, sum(each.openings for each in one.slices)
            worker = one.worker_seconds / millions if one.worker_seconds else None  # part of the API's under `serve`
            share = opened / sum(each.calls for each in one.slices)
            lines.append(
                f"| {one.agents} | {one.side} | {millions:.2f} | {_figure(worker)} | {share:.1%}"
                f" | {_figure(median(one.slices, lambda each: each.opening))} |"
            )
    return "\n".join(lines)
