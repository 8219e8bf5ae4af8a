"""The filter of a view: the authors and the types of the events that it shows."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from app.core.log.events import BOOKKEEPING, PREFIX, TOOL_USE, EventType

KINDS: Final = tuple(kind.value for kind in EventType if kind not in BOOKKEEPING and kind not in PREFIX)
"""The types that a view may leave out. System prompts and tools are always shown."""


@dataclass(frozen=True, slots=True)
class ViewFilter:
    """The `authors` and `types` of the events that a view shows, None for all; names with a `!` are excluded."""

    authors: frozenset[str] | None = None
    types: frozenset[str] | None = None

    def leaves_out(self, kind: EventType, author: str | None) -> bool:
        """Return whether an event is left out by its author or type; one without an author, by its type only."""
        return (author is not None and _left_out(self.authors, author)) or self.leaves_out_type(kind)

    def leaves_out_type(self, kind: EventType) -> bool:
        """Return whether events of a type are left out. Tool calls and results go together, to keep pairs whole."""
        kinds = TOOL_USE if kind in TOOL_USE else () if kind in PREFIX else (kind,)
        return any(_left_out(self.types, name) for name in kinds)


SHOW_ALL: Final = ViewFilter()


def is_mixed(names: Collection[str]) -> bool:
    """Return whether some of the names have a `!` and some do not."""
    return _excludes(names) and not all(name.startswith("!") for name in names)


def _left_out(names: Collection[str] | None, name: str) -> bool:
    if names is None:
        return False
    return f"!{name}" in names if _excludes(names) else name not in names


def _excludes(names: Collection[str]) -> bool:
    return any(name.startswith("!") for name in names)
