"""Results as Markdown tables."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Line:
    """A side's seconds of one call, and the number of messages of its contexts, by the events in the session."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    messages: dict[int, list[int]] = field(default_factory=dict)

    def add(self, size: int, seconds: float, messages: int | None = None) -> None:
        """Add a call."""
        self.seconds.setdefault(size, []).append(seconds)
        if messages is not None:
            self.messages.setdefault(size, []).append(messages)

    def p50(self, size: int) -> float:
        """Return the median in ms."""
        return statistics.median(self.seconds[size]) * 1e3


Lines = Mapping[str, Line]


def times_table(times: Mapping[str, Lines], sizes: Sequence[int], count: int) -> str:
    """Return a table of median and longest in ms; the number of calls is in brackets where it is not `count`.

    The last row has the ratio of the first side's median of the last call to the fastest other side's.
    """
    head = f"| call | side | {' | '.join(f'{size:,}' for size in sizes)} |\n|---|---|{'---:|' * len(sizes)}"
    rows = [row for call, lines in times.items() for row in _rows(call, lines, sizes, count)]
    call, lines = list(times.items())[-1]
    first, *others = lines.values()
    ratios = [_ratio(first, [line for line in others if size in line.seconds], size) for size in sizes]
    return "\n".join(
        [head, *rows, f"| {call} | {next(iter(lines))}, against the fastest other | {' | '.join(ratios)} |"]
    )


def _ratio(line: Line, others: Sequence[Line], size: int) -> str:
    if not others or size not in line.seconds:
        return ""
    return f"{line.p50(size) / min(other.p50(size) for other in others):.2f} ×"


def _rows(call: str, lines: Lines, sizes: Sequence[int], count: int) -> Iterator[str]:
    for side, line in lines.items():
        cells = [_cell(line.seconds.get(size), count) for size in sizes]
        yield f"| {call} | {side} | {' | '.join(cells)} |"


def _cell(seconds: Sequence[float] | None, count: int) -> str:
    if not seconds:
        return "not filled in time"
    made = "" if len(seconds) == count else f" ({len(seconds)})"
    return f"{_ms(statistics.median(seconds))} / {_ms(max(seconds))}{made}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def messages_table(contexts: Lines) -> str:
    """Return a table of the median number of messages in a context."""
    sizes = next(iter(contexts.values())).messages
    lines = [
        f"| messages in a context | {' | '.join(f'{size:,}' for size in sizes)} |",
        f"|---|{'---:|' * len(sizes)}",
    ]
    for side, line in contexts.items():
        if line.messages:
            cells = [f"{statistics.median(line.messages[size]):.0f}" if size in line.messages else "" for size in sizes]
            lines.append(f"| {side} | {' | '.join(cells)} |")
    return "\n".join(lines)
