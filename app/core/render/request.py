"""From a layout to the bytes of a request: the one way there is, for a call that is made and for one rendered again."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.events import REPLACEMENT, Json, canonical_json
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Layout, Written
from app.core.render.layers import Content, Layer, enclosed

_ESCAPES: Final = re.compile(r"\\(?:ud[89a-f][0-9a-f]{2}|.)")


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to the provider: `text` is its canonical JSON, `sha256` of that.

    `prefix_sha256` is of the request without cache markers and without its ephemeral tail.
    """

    text: str
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]


def write(form: str, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Request:
    """The request in one provider's format, with the breakpoints that it really carries."""
    written = FORMATS[form].write(layout, breakpoints)
    text = _sendable(written.request)
    sha256 = hashlib.sha256(text.encode()).digest()
    return Request(text, sha256, _prefix_sha256(form, layout, written, sha256), written.breakpoints)


def _prefix_sha256(form: str, layout: Layout, written: Written, sha256: bytes) -> bytes:
    stable = tuple(block for block in layout.blocks if not block.ephemeral)
    if not written.breakpoints and len(stable) == len(layout.blocks):
        return sha256
    request = FORMATS[form].write(replace(layout, blocks=stable)).request
    return hashlib.sha256(_sendable(request).encode()).digest()


def _sendable(request: Json) -> str:
    """Its canonical JSON; a lone surrogate, which no provider reads, is replaced."""
    text = canonical_json(request)
    if "\\ud" not in text:
        return text
    return _ESCAPES.sub(lambda found: REPLACEMENT if found[0].startswith("\\ud") else found[0], text)


def injected(name: str, content: Content) -> Content:
    """How content that a hook injects is shown."""
    return enclosed("injected", content, name=name)


def told(notice: str | None, injections: Iterable[tuple[str, Content]], layers: Iterable[Layer] = ()) -> list[Content]:
    """What stands behind the conversation for a while: the layers, and in one call only our own notice and what was
    injected, by name."""
    own: list[Content] = [] if notice is None else [notice]
    return [layer.shown for layer in layers] + own + [injected(name, content) for name, content in injections]
