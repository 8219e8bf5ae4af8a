"""Replies of a model, with the same interface in every format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from palimpsest._flows import Abandoned, Emit, Flow, aabandon, abandon, arun_to_chunk, run_to_chunk
from palimpsest._transport import AsyncTransport, Transport
from palimpsest.errors import PalimpsestError
from palimpsest.types import UsageIn


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the model made."""

    id: str
    name: str
    text: str
    """The arguments as the model wrote them, usually JSON."""
    free_text: bool = False
    """Whether the tool accepts free text instead of JSON."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The parsed arguments. Raises ValueError if they are not a JSON object; `results` accepts that error."""
        if self.free_text:
            return {"input": self.text}
        try:
            parsed = json.loads(self.text or "{}")
        except ValueError as error:
            raise ValueError(f"the arguments of {self.name} are not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise ValueError(f"the arguments of {self.name} are not a JSON object")
        return parsed


@dataclass(frozen=True)
class ParsedAnswer:
    """A parsed answer of a provider."""

    messages: list[dict[str, Any]]
    """The messages to log, in the provider's own format."""
    content: str
    tool_calls: list[ToolCall]
    usage: UsageIn | None
    stop_reason: str | None
    failure: Mapping[str, Any] | None = None
    """The error that a provider sent instead of an answer, with status 200."""


@dataclass(frozen=True)
class LoggedAnswer:
    """A complete answer of the model."""

    content: str
    tool_calls: list[ToolCall]
    raw: Any
    usage: UsageIn | None
    stop_reason: str | None
    call_id: str
    messages: list[dict[str, Any]]


class AnyReply:
    """A logged answer of a model."""

    _logged: LoggedAnswer | None

    def _complete(self) -> LoggedAnswer:
        raise NotImplementedError

    def __repr__(self) -> str:
        if self._logged is None:
            return f"{type(self).__name__}(not read to its end)"
        return f"{type(self).__name__}(content={self.content!r}, tool_calls={self.tool_calls!r})"

    @property
    def content(self) -> str:
        """The text of the answer, without reasoning."""
        return self._complete().content

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls to run. Calls of the recall tool were answered by `send`."""
        return self._complete().tool_calls

    @property
    def raw(self) -> Any:
        """The answer as the SDK returned it; for a stream, the assembled answer as a dict."""
        return self._complete().raw

    @property
    def usage(self) -> UsageIn | None:
        """The tokens used, as the provider counted them."""
        return self._complete().usage

    @property
    def stop_reason(self) -> str | None:
        """The reason why the model stopped, in the provider's words."""
        return self._complete().stop_reason

    @property
    def call_id(self) -> str:
        """The id of the recorded call that it answers."""
        return self._complete().call_id

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The answer in its provider's format, as it was logged."""
        return self._complete().messages


class Reply(AnyReply):
    """A logged answer of a model. Iterate over a streamed one to get the SDK's chunks.

    Reading `content`, `tool_calls` or another property of a streamed reply first reads it to its end.
    """

    def __init__(self, flow: Flow[LoggedAnswer], transport: Transport) -> None:
        self._flow, self._transport = flow, transport
        self._was_yielded = False
        self._next, self._logged = run_to_chunk(flow, transport)

    def __iter__(self) -> Iterator[Any]:
        while self._next is not None:
            if not self._was_yielded:
                self._was_yielded = True
                yield self._next.chunk
            if self._next is not None:
                self._advance()

    def _advance(self) -> None:
        try:
            self._next, self._logged = run_to_chunk(self._flow, self._transport, goes_on=True)
        except Exception:
            self._next = None
            raise
        self._was_yielded = False

    def _complete(self) -> LoggedAnswer:
        for _ in self:
            pass
        if self._logged is None:
            raise PalimpsestError("the reply was not read to its end, so only its text was logged, as partial")
        return self._logged

    def close(self) -> None:
        """Stop a streamed reply. If it is incomplete, the text received so far is logged as partial."""
        if self._next is not None:
            self._next = None
            with suppress(Abandoned):
                self._logged = abandon(self._flow, self._transport)


class AsyncReply(AnyReply):
    """A logged answer of a model. Iterate over a streamed one (`async for`) to get the SDK's chunks.

    A streamed reply must be read to its end before its `content`, `tool_calls` or other properties.
    """

    def __init__(self, flow: Flow[LoggedAnswer], transport: AsyncTransport) -> None:
        self._flow, self._transport = flow, transport
        self._was_yielded = False
        self._next: Emit | None = None
        self._logged: LoggedAnswer | None = None

    async def begin(self) -> AsyncReply:
        """Wait for the first chunk, or for the complete reply if it is not streamed."""
        self._next, self._logged = await arun_to_chunk(self._flow, self._transport)
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._next is not None:
            if not self._was_yielded:
                self._was_yielded = True
                yield self._next.chunk
            if self._next is not None:
                await self._advance()

    async def _advance(self) -> None:
        try:
            self._next, self._logged = await arun_to_chunk(self._flow, self._transport, goes_on=True)
        except Exception:
            self._next = None
            raise
        self._was_yielded = False

    def _complete(self) -> LoggedAnswer:
        if self._logged is None:
            raise PalimpsestError("read the reply to its end first: `async for chunk in reply: …`")
        return self._logged

    async def close(self) -> None:
        """Stop a streamed reply. If it is incomplete, the text received so far is logged as partial."""
        if self._next is not None:
            self._next = None
            with suppress(Abandoned):
                self._logged = await aabandon(self._flow, self._transport)
