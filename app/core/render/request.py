"""From a layout to the bytes of a request, for new calls and for those rendered again alike."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.events import REPLACEMENT, Json, canonical_json
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Layout, Written
from app.core.render.layers import Content, Layer, enclose

_ESCAPES: Final = re.compile(r"\\(?:ud[89a-f][0-9a-f]{2}|.)")


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to the provider: `text` is its canonical JSON, `sha256` the hash of that.

    `prefix_sha256` is the hash of the request without cache markers and without its ephemeral tail.
    """

    text: str
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]


def write(form: str, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Request:
    """Write the layout in the format `form`, with those of the breakpoints that the format can carry."""
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
    """The request's canonical JSON; lone surrogates, which no provider accepts, are replaced."""
    text = canonical_json(request)
    if "\\ud" not in text:
        return text
    return _ESCAPES.sub(lambda found: REPLACEMENT if found[0].startswith("\\ud") else found[0], text)


def enclose_injection(name: str, content: Content) -> Content:
    """An injection's content in the tags that show its name."""
    return enclose("injected", content, name=name)


def ephemeral_content(
    notice: str | None, injections: Iterable[tuple[str, Content]], layers: Iterable[Layer] = ()
) -> list[Content]:
    """The content behind the conversation: the layers, then for this call only the notice and the (name, content) of
    each injection."""
    own: list[Content] = [] if notice is None else [notice]
    return [layer.shown for layer in layers] + own + [enclose_injection(name, content) for name, content in injections]
