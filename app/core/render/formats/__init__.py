"""Provider formats: one module each, holding both directions, so that a lossless pair stands side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.render.formats import anthropic, blocks, openai_chat, openai_responses
from app.core.render.formats.layout import Breakpoint, Layout, Written


class Write(Protocol):
    """From a layout to a request."""

    def __call__(self, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Written:
        """The request, and the breakpoints it really carries."""


@dataclass(frozen=True, slots=True)
class Format:
    """`read` turns a provider's own messages into neutral events, `write` a layout into a request."""

    name: str
    read: Callable[[Sequence[Any]], list[dict[str, Json]]]
    write: Write


def _no_messages(_: Sequence[Any]) -> list[dict[str, Json]]:
    raise InvalidRequest("blocks is no provider's format: post events instead", field="format")


FORMATS: Final[Mapping[str, Format]] = {
    form.name: form
    for form in (
        Format(openai_chat.NAME, openai_chat.read, openai_chat.write),
        Format(openai_responses.NAME, openai_responses.read, openai_responses.write),
        Format("anthropic", anthropic.read, anthropic.write),
        Format("blocks", _no_messages, blocks.write),
    )
}
