"""Explanations of left-out events: for one call, and for one event over all calls."""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.types import EventOut, EvictionOut, HistoryItem


class LeftOut(list[EvictionOut]):
    """Ranges of events that one context did not show verbatim. Print it for the rules and reasons."""

    @property
    def tokens(self) -> int:
        """The tokens that this saved; replaced system prompts and tool lists do not count."""
        return sum(one.tokens_saved for one in self if one.reducer != "prefix")

    def __str__(self) -> str:
        return "\n".join(map(_left_out, self)) or "nothing was left out"


@dataclass(frozen=True)
class Explanation:
    """The history of one event. Print it for how the calls showed the event, and for the reasons of changes."""

    event: EventOut
    calls: list[HistoryItem]
    """All recorded calls since the event, oldest first."""

    @property
    def changes(self) -> list[HistoryItem]:
        """The first call, and each call that showed the event differently from the one before."""
        shown = [(one.disposition, one.summary, one.reducer, one.reason) for one in self.calls]
        return [one for at, one in enumerate(self.calls) if at == 0 or shown[at] != shown[at - 1]]

    def __str__(self) -> str:
        head = f"event {self.event.seq} ({self.event.type}, {self.event.tokens:,} tokens)"
        if not self.calls:
            return f"{head}: no call was made since"
        return "\n".join([f"{head}, in {len(self.calls)} calls:", *map(_changed, self.changes)])


def _left_out(one: EvictionOut) -> str:
    events = f"event {one.from_seq}" if one.from_seq == one.to_seq else f"events {one.from_seq} to {one.to_seq}"
    return f"{events} {one.disposition} by {one.reducer} ({one.reason}), {one.tokens_saved:,} tokens saved"


def _changed(one: HistoryItem) -> str:
    why = f" by {one.reducer} ({one.reason})" if one.reducer else ""
    return f"  {one.disposition}{why} from call {one.call_id} on, epoch {one.epoch} ({one.cause})"
