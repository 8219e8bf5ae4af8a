"""Layers: an agent's sources and announcement, shown after the conversation and replaced as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.core.log.appends import parse_event
from app.core.log.events import LAYERS, Draft, EventType, Json, Part, canonical_json
from app.core.render.formats.parts import is_blank, text_part
from app.core.tokens.counter import Counter

Content = str | Sequence[Part]


@dataclass(frozen=True)
class Layer:
    """One version of a layer. `turn` is the explicitly started turn with which it ends; None if it stays."""

    kind: str
    version: int
    content: Content
    turn: int | None = None
    _counts: dict[Counter, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def shown(self) -> Content:
        """The content in tags, as a model reads it."""
        return enclose(self.kind, self.content)

    def tokens(self, counter: Counter) -> int:
        """Return the layer's tokens in a request by `counter`; cached, since a version never changes."""
        if counter not in self._counts:
            self._counts[counter] = counter.event(Draft(EventType.ANNOUNCE, content=self.shown))
        return self._counts[counter]

    @property
    def size(self) -> int:
        """The approximate number of characters to count."""
        return len(self.content) if isinstance(self.content, str) else len(canonical_json(self.content))

    def counted(self, counter: Counter) -> bool:
        """Return whether `counter` has already counted the layer."""
        return counter in self._counts


def parse_content(raw: Json) -> Content:
    """Parse the content of a layer or an injection: text or an event's parts; "" if it is blank.

    Raises InvalidEvent, with index 0, for content that an event may not hold either.
    """
    content = parse_event({"type": EventType.ANNOUNCE, "content": raw}).content
    return "" if content is None or is_blank(content) else content


def enclose(tag: str, content: Content, **attributes: str) -> Content:
    """Return content between tags with attributes, which tell a model its kind; parts remain parts."""
    written = "".join(f' {name}="{value}"' for name, value in attributes.items())
    if isinstance(content, str):
        return f"<{tag}{written}>\n{content}\n</{tag}>"
    return [text_part(f"<{tag}{written}>"), *content, text_part(f"</{tag}>")]


def visible_layers(layers: Sequence[Layer], turn: int) -> tuple[Layer, ...]:
    """Return the layers that a context of turn `turn` shows, in the order of LAYERS."""
    known = {layer.kind: layer for layer in layers if layer.turn in (None, turn)}
    return tuple(known[kind] for kind in LAYERS if kind in known)
