"""Provider formats: one module each, which both reads and writes it, so that both directions are lossless."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.render.formats import anthropic, gemini, layout, openai_chat, openai_responses
from app.core.render.formats.layout import Layout, Writer
from app.core.render.formats.tools import NativeFormat
from app.core.tokens.models import ANTHROPIC, UNKNOWN_CACHE, CacheProfile

FormatName = Literal[NativeFormat, "blocks"]


def _no_messages(_: Sequence[Any]) -> list[list[dict[str, Json]]]:
    raise InvalidRequest("blocks is no provider's format: post events instead", field="format")


@dataclass(frozen=True, slots=True)
class Format:
    """A format. `writer` begins a request with a layout's prefix; `reader` returns the neutral events of each message.

    One that is not `native` is no provider's: it has no messages to read, and takes every layout as it is.
    """

    name: FormatName
    writer: Callable[[Layout], Writer]
    reader: Callable[[Sequence[Any]], list[list[dict[str, Json]]]] = _no_messages
    sdk_only: frozenset[str] = frozenset()
    """Fields that the SDK's responses have and requests may not have."""
    keeps_nulls: bool = False
    """Whether fields that are null are sent back unchanged."""
    calls_last: bool = False
    """Whether a message holds its text before its calls (`fit.split_rounds`)."""
    independent_messages: bool = False
    """Whether messages are read independently, except that system messages before all others are prompts."""
    marked: bool = False
    """Whether cache breakpoints are written into the request."""
    excludes_cached_tokens: bool = False
    """Whether reported input tokens do not include cache reads and writes."""
    cache: CacheProfile = UNKNOWN_CACHE
    """The profile assumed for the cache of an unknown model."""
    native: bool = True

    def read(self, messages: Sequence[Any]) -> list[dict[str, Json]]:
        """Read a provider's own messages into neutral events. Raises InvalidMessage."""
        return list(chain.from_iterable(self.reader(messages)))


FORMATS: Final[Mapping[str, Format]] = {
    form.name: form
    for form in (
        Format(
            openai_chat.NAME,
            openai_chat.ChatWriter,
            openai_chat.read,
            sdk_only=frozenset({"parsed", "parsed_arguments", "annotations", "index"}),
            keeps_nulls=True,
            calls_last=True,
            independent_messages=True,
        ),
        Format(
            openai_responses.NAME,
            openai_responses.ResponsesWriter,
            openai_responses.read,
            sdk_only=frozenset({"parsed", "parsed_arguments", "async_", "created_by"}),
        ),
        Format(
            anthropic.NAME,
            anthropic.AnthropicWriter,
            anthropic.read,
            independent_messages=True,
            sdk_only=frozenset({"parsed_output", "from_"}),
            marked=True,
            excludes_cached_tokens=True,
            cache=ANTHROPIC,
        ),
        Format(
            gemini.NAME,
            gemini.GeminiWriter,
            gemini.read,
            sdk_only=frozenset({"audioTranscription", "audio_transcription"}),
        ),
        Format(layout.NAME, layout.BlocksWriter, native=False),
    )
}
