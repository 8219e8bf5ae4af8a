"""The list of steps that an agent keeps with a tool such as a to-do list: each step's text and state."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from app.core.digest.sentences import shorten
from app.core.log.events import Json

STEPS_MAX: Final = 50
STEP_CHARS_MAX: Final = 200
PENDING, RUNNING, DONE = "pending", "in_progress", "completed"

_LISTS: Final = ("todos", "plan", "tasks")
"""Arguments that hold the whole list."""
_TEXTS: Final = ("content", "step", "title", "text", "description")
_STATES: Final = {
    **dict.fromkeys(("pending", "not_started", "todo", "open"), PENDING),
    **dict.fromkeys(("in_progress", "running", "active"), RUNNING),
    **dict.fromkeys(("completed", "done", "finished"), DONE),
}


class PlanStep(NamedTuple):
    """One step on one line; `state` is `pending`, `in_progress` or `completed`."""

    text: str
    state: str


def plan_of(arguments: Mapping[str, Json]) -> tuple[PlanStep, ...]:
    """Return the list of steps that a call writes, at most STEPS_MAX of them; empty if it writes none.

    A list counts only if each of its items has a text and a known state.
    """
    for name in _LISTS:
        items = arguments.get(name)
        if isinstance(items, list) and items:
            steps = tuple(_steps(items))
            if len(steps) == len(items):
                return steps[:STEPS_MAX]
    return ()


def _steps(items: list[Json]) -> Iterator[PlanStep]:
    for item in items:
        if not isinstance(item, Mapping):
            return
        state = _STATES.get(str(item.get("status")))
        text = next((item[name] for name in _TEXTS if isinstance(item.get(name), str) and item[name].strip()), None)
        if state is None or text is None:
            return
        yield PlanStep(shorten(" ".join(text.split()), STEP_CHARS_MAX), state)
