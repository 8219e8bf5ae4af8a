"""Summaries that real agents compacted with, against ours of the same messages in the same number of tokens."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bench.believed.shares import cell
from bench.retention import truth
from bench.retention.__main__ import count, summarize
from bench.retention.points import Point, points
from bench.retention.statements import StatementCounts

DEVELOPED: Final = frozenset(
    {
        *("08940314", "c35cf82b", "f022dad1", "43b2bd6e", "9d7a9d52", "545b45d4", "4b3ddf27", "379ab089", "b82405ba"),
        *("deeac353", "fdd24234", "15b634ab"),
    }
)
"""Beginnings of the ids of sessions with compactions that the summaries were developed on."""
NAME_CHARS: Final = 8

Share: TypeAlias = tuple[bool, ...]
"""One value for each thing looked for: whether the summary holds it."""


@dataclass(frozen=True, slots=True)
class Held:
    """One summary's content: its tokens, and the things that it holds of those looked for."""

    tokens: int
    values: Share
    unseen: Share
    messages: Share
    files: Share
    names: Share
    answers: Share
    words: float
    """Share of the content words of the assistant's newest three texts that it holds, on average."""
    stated: tuple[int, int, int]
    """Stated outcomes that the log confirms, that it refutes, and that it does not decide."""


@dataclass(frozen=True, slots=True)
class Row:
    """One compaction: the session, the number of messages before it, the agent's own summary, and ours."""

    session: str
    at: int
    own: Held
    ours: Held

    @property
    def developed(self) -> bool:
        """Whether our summaries were developed on this session."""
        return self.session[:NAME_CHARS] in DEVELOPED


MEASURES: Final[dict[str, Callable[[Held], Share]]] = {
    "values needed later": lambda held: held.values,
    "of them not shown again": lambda held: held.unseen,
    "user messages, whole": lambda held: held.messages,
    "modified files, full path": lambda held: held.files,
    "by name": lambda held: held.names,
    "short answers with their question": lambda held: held.answers,
}


def rows(value: dict[str, Any]) -> Iterator[Row]:
    """Yield the compactions of a neutral session; one without a summary of the agent's own is left out."""
    for point in points(value, 1) if value["meta"].get("compactions") else ():
        if point.summary:
            size = count(point.summary)
            yield Row(value["id"], point.at, held(point, point.summary), held(point, summarize(point, size)))


def held(point: Point, text: str) -> Held:
    """Return the content of a summary."""
    statements, verdicts = StatementCounts(), Counter[tuple[str, str]]()
    statements.add(text, point.events)
    truth.tally(truth.verdicts(text, point.events), verdicts)
    needs = {need.value: need for need in reversed(point.needs)}
    right, wrong, open_ = (
        sum(times for (_, verdict), times in verdicts.items() if verdict == wanted)
        for wanted in (truth.TRUE, truth.FALSE, truth.UNKNOWN)
    )
    return Held(
        tokens=count(text),
        values=tuple(value in text for value in needs),
        unseen=tuple(value in text for value, need in needs.items() if not need.again),
        messages=tuple(statements.messages),
        files=tuple(path in text for path in point.modified),
        names=tuple(path.rsplit("/", 1)[-1] in text for path in point.modified),
        answers=tuple(statements.answers),
        words=sum(statements.words) / max(1, len(statements.words)),
        stated=(right, wrong, open_),
    )


def sums(found: Sequence[Row]) -> str:
    """Return Markdown: by measure, the shares of both sides, and the rows in which each holds more."""
    lines = [
        "| | the agent's own | ours | own more, in rows | ours more | equal |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name, of in MEASURES.items():
        both = [(sum(of(row.own)), sum(of(row.ours))) for row in found]
        counts = (sum(a > b for a, b in both), sum(a < b for a, b in both), sum(a == b for a, b in both))
        own = [one for row in found for one in of(row.own)]
        ours = [one for row in found for one in of(row.ours)]
        lines.append(f"| {name} | {_cell(own)} | {_cell(ours)} | {' | '.join(map(str, counts))} |")
    for name, side in (("The agent's own", [row.own for row in found]), ("Ours", [row.ours for row in found])):
        right, wrong, open_ = (sum(one.stated[n] for one in side) for n in range(3))
        tokens = sum(one.tokens for one in side) / max(1, len(side))
        words = sum(one.words for one in side) / max(1, len(side))
        lines.append(
            f"\n{name}: {tokens:,.0f} tokens on average, with {words:.0%} of the content words of the assistant's"
            f" newest three texts; {right} stated outcomes confirmed, {wrong} refuted,"
            f" {open_} not decided by the log."
        )
    return "\n".join(lines)


def table(found: Iterable[Row]) -> str:
    """Return Markdown: one line for each compaction, in each cell the agent's own, ours, and the number there are."""
    lines = [
        f"| session | message | tokens, own / ours | {' | '.join(MEASURES)} | stated by ours: true / false / open |",
        f"|---|---:|---:|{'---:|' * len(MEASURES)}---:|",
    ]
    for row in found:
        cells = [_both(of(row.own), of(row.ours)) for of in MEASURES.values()]
        stated = " / ".join(map(str, row.ours.stated))
        lines.append(
            f"| {row.session[:NAME_CHARS]} | {row.at} | {row.own.tokens:,} / {row.ours.tokens:,} |"
            f" {' | '.join(cells)} | {stated} |"
        )
    return "\n".join(lines)


def _both(own: Share, ours: Share) -> str:
    if len(own) == len(ours):
        return f"{sum(own)} / {sum(ours)} of {len(own)}"
    return f"{sum(own)} of {len(own)} / {sum(ours)} of {len(ours)}"


def _cell(found: Sequence[bool]) -> str:
    return f"{cell(found)}, of {len(found):,}" if found else ""
