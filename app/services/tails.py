"""What was last read of each view, kept in memory: events never change, so the next call reads only the new ones."""

from collections import OrderedDict
from typing import Final
from uuid import UUID

from app.store.views import Loaded

TOKENS_MAX: Final = 4_000_000
"""All views together; about four bytes of text a token, and as much again as Python objects."""


class Tails:
    """The least recently used views give way. Nothing here is ever trusted: the read checks that it still applies."""

    def __init__(self, tokens_max: int = TOKENS_MAX) -> None:
        self._tokens_max = tokens_max
        self._tokens = 0
        self._held: OrderedDict[tuple[UUID, str], tuple[Loaded, int]] = OrderedDict()

    def get(self, session_id: UUID, view: str) -> Loaded | None:
        """What was read last."""
        found = self._held.get((session_id, view))
        return None if found is None else found[0]

    def put(self, view: str, loaded: Loaded) -> None:
        """Keep it in place of what was kept before."""
        key = (loaded.session_id, view)
        _, before = self._held.pop(key, (None, 0))
        tokens = sum(event.tokens for event in loaded.events)
        self._tokens += tokens - before
        self._held[key] = (loaded, tokens)
        while self._tokens > self._tokens_max:
            _, (_, freed) = self._held.popitem(last=False)
            self._tokens -= freed
