"""Signs that a context lost what the agent still needed: originals it recalled, and tool calls that it made again."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Need:
    """An event that was needed again by the time of event `at`, which recalled it or called its tool once more."""

    seq: int
    at: int
    tool: str


@dataclass(frozen=True, slots=True)
class Damage:
    """An event that was needed again after it had been left out, and the decision that left it out."""

    seq: int
    at: int
    tool: str
    epoch: int
    disposition: str
    reducer: str
    reason: str


def repeated_calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, str]]:
    """Yield each tool call that repeats an earlier one: the seq of the latest equal call, its own, and the tool.

    `calls` are events as the API returns them, in the order of the log.
    """
    latest: dict[str, int] = {}
    for call in calls:
        key = json.dumps([call.get("tool"), call.get("arguments")], sort_keys=True)
        if key in latest:
            yield latest[key], call["seq"], call.get("tool") or ""
        latest[key] = call["seq"]


def recalled_seqs(content: object) -> list[int]:
    """Return the seqs of the originals in a result of the recall tool; of those the model saw anyway there is none."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
        items = found["items"] if isinstance(found, dict) else []
        return [item["seq"] for item in items if isinstance(item.get("content"), str) and isinstance(item["seq"], int)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def by_rule(found: Iterable[Damage]) -> list[tuple[str, str, int]]:
    """Count damage by reducer and tool, the most frequent first."""
    counts = Counter((one.reducer, one.tool) for one in found)
    return [(reducer, tool, number) for (reducer, tool), number in counts.most_common()]
