"""Sessions: logging what an agent does, and getting contexts for its model calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from palimpsest._flows import arun, run
from palimpsest._method import Asynchronous, Blocking, session_listing, session_operation
from palimpsest._speaking import CallOptions, SessionState
from palimpsest._transport import AsyncTransport, Transport
from palimpsest.call import AsyncCall, AsyncTurn, Call, Turn
from palimpsest.explain import Explanation
from palimpsest.operations import contexts, events, records, sessions
from palimpsest.operations.names import Content, Message
from palimpsest.streams import StreamEvent, StreamKind, awatch, watch
from palimpsest.types import AppendedOut, RewindOut

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SessionOperations:
    """Every operation of the API on one session, named as in the API's document."""

    id: str

    put_session = session_operation(sessions.put_session)
    get_session = session_operation(sessions.get_session)
    delete_session = session_operation(sessions.delete_session)
    list_epochs = session_listing(sessions.list_epochs)
    list_turns = session_listing(sessions.list_turns)
    list_lines = session_listing(sessions.list_lines)

    append_events = session_operation(events.append_events)
    append_messages = session_operation(events.append_messages)
    list_events = session_listing(events.list_events)
    get_event = session_operation(events.get_event)
    redact_event = session_operation(events.redact_event)
    patch_visibility = session_operation(events.patch_visibility)
    recall = session_operation(events.recall)
    get_layers = session_operation(events.get_layers)
    put_layer = session_operation(events.put_layer)
    delete_layer = session_operation(events.delete_layer)
    end_turn = session_operation(events.end_turn)

    get_context = session_operation(contexts.get_context)
    post_context = session_operation(contexts.post_context)
    preview_context = session_operation(contexts.preview_context)
    report_outcome = session_operation(contexts.report_outcome)
    warm_context = session_operation(contexts.warm_context)
    report_warming = session_operation(contexts.report_warming)

    list_calls = session_listing(records.list_calls)
    get_call = session_operation(records.get_call)
    get_call_context = session_operation(records.get_call_context)
    list_call_blocks = session_listing(records.list_call_blocks)
    get_call_block = session_operation(records.get_call_block)
    diff_calls = session_operation(records.diff_calls)
    get_next_evictions = session_operation(records.get_next_evictions)
    get_event_history = session_listing(records.get_event_history)
    get_ledger = session_operation(records.get_ledger)
    get_coverage = session_operation(records.get_coverage)
    list_summaries = session_listing(records.list_summaries)
    get_summary = session_operation(records.get_summary)
    compact = session_operation(records.compact)
    list_compactions = session_listing(records.list_compactions)
    get_compaction = session_operation(records.get_compaction)
    retry_compaction = session_operation(records.retry_compaction)


class Session(SessionOperations, Blocking):
    """A session of a blocking client. Nothing is sent before its first use."""

    def __init__(self, transport: Transport, speaker: SessionState) -> None:
        self._transport, self._speaker = transport, speaker
        self.id = speaker.id

    def system(self, prompt: Content) -> AppendedOut:
        """Set the system prompt. Setting the current one appends nothing, so a program may do it at each start."""
        return run(self._speaker.system(prompt), self._transport)

    def tools(self, tools: Iterable[Message]) -> AppendedOut:
        """Set the agent's tools, defined as the provider's SDK accepts them. Setting the current ones appends nothing.

        The recall tool is added, unless the session has `recall=False`, and answered by `send`.
        """
        return run(self._speaker.tools(tools), self._transport)

    def user(self, content: Content) -> AppendedOut:
        """Append a message of the user: text, or parts as the provider's SDK accepts them."""
        return run(self._speaker.user(content), self._transport)

    def log(self, *messages: Message) -> AppendedOut:
        """Append messages in the session's format: mappings, or objects of the provider's SDK."""
        return run(self._speaker.log(messages), self._transport)

    def results(self, results: Iterable[Any] | Mapping[str, Any]) -> AppendedOut:
        """Append the results of the last reply's tool calls: one for each, in their order.

        A result is text, a list of parts, an exception (logged as a failure), or anything that can be encoded as JSON.
        Results in another order must name their calls: `{call.id: result}`, pairs `(call, result)`, or the provider's
        messages.
        """
        return run(self._speaker.results(results), self._transport)

    def call(self, **options: Unpack[CallOptions]) -> Call:
        """Start the next model call, in a `with` block. Options that are not given are those of the session."""
        return Call(self._speaker.call(options), self._transport)

    def turn(self, user: Content | None = None, **options: Unpack[CallOptions]) -> Turn:
        """Start a turn, in a `with` block: a message of the user, and model calls until one needs no tools.

        Each model call takes one request: the one that gets its context also logs what happened since the call before.
        Options are those of `call`, for all calls of the turn.
        """
        return Turn(self._speaker.call(options, user=user, in_turn=True), self._transport)

    def explain(self, seq: int, *, view: str | None = None) -> Explanation:
        """Explain how every call showed an event, and why that changed. Print the result, or read its `changes`."""
        return run(self._speaker.explain(seq, view), self._transport)

    def fork(self, id: str, *, at: int | None = None, metadata: Mapping[str, Any] | None = None) -> Session:
        """Create a session that shares the log up to `at` (default: all of it). Nothing is copied."""
        return Session(self._transport, run(self._speaker.fork(id, at, metadata), self._transport))

    def rewind(self, to: int) -> RewindOut:
        """Rewind: from now on the session's id means a new line that ends at `to`. Nothing is destroyed."""
        return run(self._speaker.rewind(to), self._transport)

    def stream(
        self,
        *,
        after: int | None = None,
        types: Iterable[StreamKind] | None = None,
        last_id: str | None = None,
    ) -> Iterator[StreamEvent]:
        """Iterate endlessly over the session's events and changes after the seq `after`, or after a stream's `last_id`.

        After a broken connection, the stream is resumed.
        """
        return watch(self._transport, self.id, after, types, last_id)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"


class AsyncSession(SessionOperations, Asynchronous):
    """A session of an asynchronous client. Nothing is sent before its first use."""

    def __init__(self, transport: AsyncTransport, speaker: SessionState) -> None:
        self._transport, self._speaker = transport, speaker
        self.id = speaker.id

    async def system(self, prompt: Content) -> AppendedOut:
        """Set the system prompt; see `Session.system`."""
        return await arun(self._speaker.system(prompt), self._transport)

    async def tools(self, tools: Iterable[Message]) -> AppendedOut:
        """Set the agent's tools; see `Session.tools`."""
        return await arun(self._speaker.tools(tools), self._transport)

    async def user(self, content: Content) -> AppendedOut:
        """Append a message of the user; see `Session.user`."""
        return await arun(self._speaker.user(content), self._transport)

    async def log(self, *messages: Message) -> AppendedOut:
        """Append messages; see `Session.log`."""
        return await arun(self._speaker.log(messages), self._transport)

    async def results(self, results: Iterable[Any] | Mapping[str, Any]) -> AppendedOut:
        """Append results; see `Session.results`.

        Await your tools first: `await asyncio.gather(*(run(c) for c in reply.tool_calls))`.
        """
        return await arun(self._speaker.results(results), self._transport)

    def call(self, **options: Unpack[CallOptions]) -> AsyncCall:
        """Start the next model call, in an `async with` block; see `Session.call`."""
        return AsyncCall(self._speaker.call(options), self._transport)

    def turn(self, user: Content | None = None, **options: Unpack[CallOptions]) -> AsyncTurn:
        """Start a turn, in an `async with` block; see `Session.turn`."""
        return AsyncTurn(self._speaker.call(options, user=user, in_turn=True), self._transport)

    async def explain(self, seq: int, *, view: str | None = None) -> Explanation:
        """Explain how every call showed an event; see `Session.explain`."""
        return await arun(self._speaker.explain(seq, view), self._transport)

    async def fork(self, id: str, *, at: int | None = None, metadata: Mapping[str, Any] | None = None) -> AsyncSession:
        """Create a session that shares the log; see `Session.fork`."""
        return AsyncSession(self._transport, await arun(self._speaker.fork(id, at, metadata), self._transport))

    async def rewind(self, to: int) -> RewindOut:
        """Rewind the session; see `Session.rewind`."""
        return await arun(self._speaker.rewind(to), self._transport)

    def stream(
        self,
        *,
        after: int | None = None,
        types: Iterable[StreamKind] | None = None,
        last_id: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Iterate over events and changes with `async for`; see `Session.stream`."""
        return awatch(self._transport, self.id, after, types, last_id)

    def __repr__(self) -> str:
        return f"AsyncSession({self.id!r})"
