"""The life of an event in a view's calls, and the signs that an event which was left out was still needed.

A life is divided where the way the calls show the event changed. The agent still needed an event if it recalled the
original, or made the tool call again.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from app.core.log.event import content_text

_BEFORE_MATCH: Final = 60
_EXCERPT_CHARS: Final = 240


@dataclass(frozen=True, slots=True)
class StateRun:
    """Consecutive calls of a view, by number, whose epochs decided the same about an event.

    The calls of a run show it alike, for one reason. `before` is the call before the first one.
    """

    call_id: UUID
    before: UUID | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LifeRun:
    """Calls first..last of a view, by number, that show an event alike; `item` of its history is the first call's.

    `before` is the id of the call before the first one.
    """

    first: int
    last: int
    item: Mapping[str, Any]
    before: UUID | None = None


def life_of(runs: Sequence[tuple[StateRun, Mapping[str, Any] | None]]) -> list[LifeRun]:
    """Return runs with the items of their first calls; neighbours that show the event alike become one."""
    done: list[LifeRun] = []
    for run, item in runs:
        if item is None:  # the call was deleted after the run was read
            continue
        if done and _shown(done[-1].item) == _shown(item):
            done[-1] = replace(done[-1], last=run.last)
        else:
            done.append(LifeRun(run.first, run.last, item, run.before))
    return done


def _shown(item: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(item[name] for name in ("disposition", "summary", "reducer", "reason"))


def run_at(life: Sequence[LifeRun], number: int) -> LifeRun | None:
    """Return the run with this call; None if it is in none."""
    return next((run for run in life if run.first <= number <= run.last), None)


def holders(lines: Sequence[Mapping[str, Any]], line: str, seq: int) -> list[str]:
    """Return the other lines of a session that have the event `seq` of this line in their logs."""
    known = {one["id"]: one for one in lines}

    def owner(id: str) -> str:
        while id in known and known[id]["parent"] is not None and seq <= known[id]["at"]:
            id = known[id]["parent"]
        return id

    return [id for id, one in known.items() if id != line and seq <= one["head"] and owner(id) == owner(line)]


def event_text(event: Mapping[str, Any]) -> str:
    """Return the text of an event: its content, and a call's arguments."""
    given = event.get("arguments")
    if isinstance(given, str):
        with suppress(ValueError):
            given = json.loads(given)
    if isinstance(given, dict):
        given = "\n".join(f"{name}: {_as_text(value)}" for name, value in given.items())
    content = event.get("content")
    if isinstance(content, list) and event["type"] == "tools":
        content = _as_text(content)
    return "\n".join(part for part in (content_text(content), "" if given is None else _as_text(given)) if part)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pattern(find: str) -> re.Pattern[str] | None:
    """Return the pattern of a text in upper or lower case, whatever white space is between its words."""
    words = find.split()
    return re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE) if words else None


def pieces(text: str, found: re.Pattern[str] | None) -> list[tuple[str, bool]]:
    """Return an excerpt around the first match, in pieces, each with whether it matches."""
    match = found.search(text) if found else None
    start = max(0, match.start() - _BEFORE_MATCH) if match else 0
    shown = text[start : start + _EXCERPT_CHARS]
    done = [("…", False)] if start else []
    end = 0
    for hit in found.finditer(shown) if found else ():
        done += [(shown[end : hit.start()], False), (hit.group(), True)]
        end = hit.end()
    return [*done, (shown[end:] + ("…" if start + _EXCERPT_CHARS < len(text) else ""), False)]


@dataclass(frozen=True, slots=True)
class Need:
    """An event that was needed again by the time of event `at`, which recalled it or called its tool once more."""

    seq: int
    at: int
    tool: str


@dataclass(frozen=True, slots=True)
class Damage(Need):
    """An event that was needed again after it had been left out, and the decision that left it out."""

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
