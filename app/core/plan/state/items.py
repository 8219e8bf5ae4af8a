"""One visible event of a context: its shown form and its tokens."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from app.core.lexicon.identifiers import identifiers
from app.core.log.event import Block, Event, content_text
from app.core.log.events import EventType, Json, canonical_json
from app.core.plan.state import wording
from app.core.plan.state.frontier import Stub
from app.core.plan.state.wording import Limits


@dataclass(frozen=True, slots=True)
class Item:
    """One visible event and the tokens it takes as shown; `stub` is None if it is shown verbatim."""

    event: Event
    tokens: int
    stub: Stub | None = None
    _found: tuple[str, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def names(self) -> Collection[str]:
        """Return the identifiers visible in the item as shown; those of a stub's text are extracted only once."""
        stub = self.stub
        if stub is None:
            return self.event.names
        if not self.shown:
            return ()
        if not stub.text and self.event.type is not EventType.TOOL_CALL:
            return stub.keeps
        if self._found is None:
            words = stub.text or canonical_json(self.block().arguments)
            object.__setattr__(self, "_found", tuple(identifiers(words)))
        return self._found or ()

    @property
    def shown(self) -> bool:
        """Whether any part of the event is shown."""
        return self.stub is None or self.stub.tokens > 0

    @property
    def reasons(self) -> bool:
        """Whether the item shows a model's reasoning."""
        return self.event.reasons and (self.stub is None or self.stub.chars > 0)

    def without_unshown(self) -> "Item":
        """Return the item without its event's body if a stub shows nothing of it; the same object if unchanged."""
        if self.stub is None or self.stub.chars or self.event.body is None:
            return self
        return replace(self, event=replace(self.event, body=None, chars=0))

    def block(self) -> Block:
        """Return the block that shows the item."""
        event, stub = self.event, self.stub
        if stub is None:
            return event.block
        if stub.text:
            text = stub.text
        elif event.type is EventType.TOOL_CALL:
            return replace(event.block, arguments=_arguments(event, stub))
        elif stub.chars:
            text = wording.shortened(content_text(event.block.content), stub.chars, event.seq, recall=stub.recall)
        else:
            tokens = stub.tokens + stub.saved
            text = wording.stub(event, stub.keeps, tokens, recall=stub.recall, outcome=stub.outcome)
        native = event.block.native if stub.chars else None
        return replace(event.block, content=text, native=native, replaced=True)


def _arguments(event: Event, stub: Stub) -> dict[str, Json]:
    if not stub.limits:
        return wording.shortened_arguments(event.arguments, event.seq, recall=stub.recall)
    limits = Limits(stub.chars, *stub.limits)
    return wording.limited_arguments(event.arguments, limits, event.seq, recall=stub.recall)
