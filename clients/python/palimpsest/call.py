"""One model call: get a context that fits, send it to the provider, and log the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from palimpsest._flows import Flow, arun, run
from palimpsest._sending import CallState, arguments, failed, finish, leave_turn, send
from palimpsest._speaking import next_round
from palimpsest._transport import AsyncTransport, Transport
from palimpsest.explain import LeftOut
from palimpsest.reply import AsyncReply, Reply
from palimpsest.types import ContextOut, TokensOut

if TYPE_CHECKING:
    from typing_extensions import Self


class AnyCall:
    """A call in progress. After a retry or a recall, its properties are those of the newest context."""

    def __init__(self) -> None:
        self._state: CallState | None = None

    @property
    def _now(self) -> CallState:
        if self._state is None:
            raise RuntimeError("enter the call first: `with memory.call() as call: …`")
        return self._state

    @property
    def context(self) -> ContextOut:
        """The complete context, as the server returned it."""
        return self._now.context

    @property
    def id(self) -> str:
        """The id of the recorded call."""
        return self.context.call_id

    @property
    def request(self) -> dict[str, Any]:
        """The request to the provider: keyword arguments with messages, system prompt and tools."""
        return self.context.request

    @property
    def tokens(self) -> TokensOut:
        """The token budget and its use."""
        return self.context.tokens

    @property
    def left_out(self) -> LeftOut:
        """The events that the model does not see verbatim, with the rule and the reason for each."""
        return LeftOut(self.context.evictions)

    def arguments(self, **extra: Any) -> dict[str, Any]:
        """Return the provider's keyword arguments as `send` would pass them, to call the provider yourself."""
        return arguments(self.context, extra)


class Call(AnyCall):
    """A call of a blocking session. Its context is made when the block is entered."""

    def __init__(self, begin: Flow[CallState], transport: Transport) -> None:
        super().__init__()
        self._begin, self._transport = begin, transport
        self._reply: Reply | None = None

    def __enter__(self) -> Self:
        self._state = run(self._begin, self._transport)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._reply is not None:
            self._reply.close()

    def send(self, function: Callable[..., Any], **arguments: Any) -> Reply:
        """Call the provider's function with the context and these arguments, log the answer, and report the usage.

        `function` is a method of an SDK, such as `OpenAI().chat.completions.create`, or a function with the same
        arguments and results. With `stream=True`, iterate over the reply. If the context was too long, the call is
        retried once with a smaller one. Calls of the recall tool are answered here, and the model is called again.
        Errors of the provider are reported and raised unchanged.
        """
        self._reply = Reply(send(self._now, function, arguments), self._transport)
        return self._reply

    def log(self, response: Any) -> Reply:
        """Log an answer that was obtained without `send`, and report its usage."""
        return Reply(finish(self._now, response), self._transport)

    def failed(self, error: Exception) -> bool:
        """Report the provider's error. If the context was too long, get a smaller one and return True: call again."""
        again = run(failed(self._now, error), self._transport)
        if again is not None:
            self._now.context = self._transport.ask(again)
        return again is not None


class Turn(Call):
    """A turn of a blocking session: model calls, each with the results of the tools that the one before called.

    An answer with tool calls is logged by `results`, or at the end of the block, or before anything else is appended
    by the session's `user`, `log` or `results`. Every other answer is logged when `send` returns.
    """

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        run(leave_turn(self._now, failing=kind is not None), self._transport)

    def results(self, results: Iterable[Any] | Mapping[str, Any]) -> None:
        """Log the answer and the results of its tool calls, report its usage, and get the next context.

        All of it is one request. Results are given as to `Session.results`; then `send` again.
        """
        run(next_round(self._now, results), self._transport)


class AsyncCall(AnyCall):
    """A call of an asynchronous session. Its context is made when the block is entered."""

    def __init__(self, begin: Flow[CallState], transport: AsyncTransport) -> None:
        super().__init__()
        self._begin, self._transport = begin, transport
        self._reply: AsyncReply | None = None

    async def __aenter__(self) -> Self:
        self._state = await arun(self._begin, self._transport)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._reply is not None:
            await self._reply.close()

    async def send(self, function: Callable[..., Any], **arguments: Any) -> AsyncReply:
        """Do what `Call.send` does, with an asynchronous function, such as `AsyncOpenAI().chat.completions.create`."""
        self._reply = AsyncReply(send(self._now, function, arguments), self._transport)
        return await self._reply.begin()

    async def log(self, response: Any) -> AsyncReply:
        """Log an answer that was obtained without `send`, and report its usage."""
        return await AsyncReply(finish(self._now, response), self._transport).begin()

    async def failed(self, error: Exception) -> bool:
        """Report the provider's error. If the context was too long, get a smaller one and return True: call again."""
        again = await arun(failed(self._now, error), self._transport)
        if again is not None:
            self._now.context = await self._transport.ask(again)
        return again is not None


class AsyncTurn(AsyncCall):
    """A turn of an asynchronous session; see `Turn`."""

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await super().__aexit__(kind)
        await arun(leave_turn(self._now, failing=kind is not None), self._transport)

    async def results(self, results: Iterable[Any] | Mapping[str, Any]) -> None:
        """Log the answer and its results, report its usage, and get the next context; see `Turn.results`."""
        await arun(next_round(self._now, results), self._transport)
