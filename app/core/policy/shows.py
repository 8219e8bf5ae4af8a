"""Whose events, and events of which types, a view shows."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from app.core.log.events import BOOKKEEPING, PREFIX, TOOL_USE, EventType

KINDS: Final = tuple(kind.value for kind in EventType if kind not in BOOKKEEPING and kind not in PREFIX)
"""The types that a view may show or leave out. What its head is made of is always shown."""


@dataclass(frozen=True, slots=True)
class ViewFilter:
    """What a view shows: events of these `authors` and of these `types`; None: of all.

    A `!` before each says what it does not show instead.
    """

    authors: frozenset[str] | None = None
    types: frozenset[str] | None = None

    def leaves_out(self, kind: EventType, author: str | None) -> bool:
        """Whether an event is not shown. One without an author is everybody's; the head of a context always is."""
        return (author is not None and _left_out(self.authors, author)) or self.leaves_out_type(kind)

    def leaves_out_type(self, kind: EventType) -> bool:
        """Whether events of a type are not shown. Calls and results go together, so that pairs stay whole."""
        kinds = TOOL_USE if kind in TOOL_USE else () if kind in PREFIX else (kind,)
        return any(_left_out(self.types, one) for one in kinds)


EVERYTHING: Final = ViewFilter()


def mixes(names: Collection[str]) -> bool:
    """Whether a list names both what is shown and what is not."""
    return _excludes(names) and not all(name.startswith("!") for name in names)


def _left_out(names: Collection[str] | None, name: str) -> bool:
    if names is None:
        return False
    return f"!{name}" in names if _excludes(names) else name not in names


def _excludes(names: Collection[str]) -> bool:
    return any(name.startswith("!") for name in names)
