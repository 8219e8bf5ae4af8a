"""The share of later needs that a request shows, and what the server reports about the rest."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bench.edits import unnumbered
from bench.quality.recorded import Moment

Share: TypeAlias = tuple[int, int]
"""A count and the total it is a part of."""
NONE: Final[Share] = (0, 0)


@dataclass(frozen=True, slots=True)
class Kept:
    """Measurements of one context. A share is a pair: how many the context shows, and how many there are."""

    values: Share
    """Uses of values in the arguments of later calls."""
    distinct: Share
    """These values, each once."""
    unseen: Share
    """Uses of values that had not been shown again since the point."""
    files: Share
    """Modified files, by full path."""
    names: Share
    """Modified files, by name."""
    constraints: Share
    """The system prompt and the users' rules."""
    answers: Share = NONE
    """Short answers of users whose question is shown too, of those that are shown."""
    used: float = 0.0
    """The estimate as a share of the target."""
    lost: int = 0
    """Number of dropped events that a live summary covers."""
    dropped: int = 0
    """Number of dropped events."""
    covered: Share = NONE
    """Events that live summaries cover, of all."""
    summaries: int = 0
    cause: str = ""
    refused: str = ""
    edits: Share = NONE
    """Texts that edits after the point replace."""


def kept_needs(moment: Moment, system: str, text: str) -> Kept:
    """Count a moment's needs, and how many of them the text shows."""
    point = moment.point
    flat, lines = " ".join(text.split()), unnumbered(text)
    return Kept(
        values=_share(need.value in text for need in point.needs),
        distinct=_share(value in text for value in {need.value for need in point.needs}),
        unseen=_share(need.value in text for need in point.needs if not need.again),
        files=_share(path in text for path in point.modified),
        names=_share(path.rsplit("/", 1)[-1] in text for path in point.modified),
        constraints=_share(" ".join(rule.split()) in flat for rule in (system, *moment.constraints)),
        edits=_share(edit in lines for edit in point.edits),
    )


def text_of(request: Any) -> str:
    """Return all text of a request: its strings, and those within arguments given as JSON text."""
    return "\n".join(_strings(request))


def count_dropped(evictions: Iterable[Mapping[str, Any]], summaries: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many of the events reported as dropped a summary covers, and how many were dropped."""
    dropped = {
        seq for run in evictions if run["disposition"] == "dropped" for seq in range(run["from_seq"], run["to_seq"] + 1)
    }
    return len(dropped & covered(summaries)), len(dropped)


def covered(summaries: Iterable[Mapping[str, Any]]) -> set[int]:
    """Return the seqs that summaries cover."""
    return {seq for one in summaries for seq in range(one["from_seq"], one["to_seq"] + 1)}


def total(shares: Sequence[Share]) -> Share:
    """Return the sum of the shares."""
    return sum(found for found, _ in shares), sum(of for _, of in shares)


def _share(found: Iterable[bool]) -> Share:
    every = list(found)
    return sum(every), len(every)


def _strings(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if name == "arguments":
            try:
                inner = json.loads(value)
            except ValueError:
                return
            yield from _strings(inner)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, key)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)
