"""Flows: the logic of sessions, written once for the blocking and the asynchronous client.

A flow is a generator that yields effects (things to do), receives their results, and returns a value. An error of an
effect is raised where it was yielded. `run` and `arun` execute flows, blocking and asynchronously.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from palimpsest._request import Request
from palimpsest._transport import AsyncTransport, Transport, parse_response

T = TypeVar("T")


@dataclass(frozen=True)
class WithStatus:
    """Send a request; the result is a pair of its status and its response."""

    asked: Request[Any]


@dataclass(frozen=True)
class Invoke:
    """Call a function given by the caller, such as a method of a provider's SDK."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pull:
    """Take the next chunk of a stream; END if there is none."""

    chunks: Any


@dataclass(frozen=True)
class Emit:
    """Yield a chunk from the reply's iterator."""

    chunk: Any


class End:
    """The type of END, the result of `Pull` after the last chunk."""


END: Final = End()
Effect = Request[Any] | WithStatus | Invoke | Pull | Emit
Flow = Generator[Effect, Any, T]


class Abandoned(Exception):
    """The caller stopped reading the stream."""

    def __str__(self) -> str:
        return "the stream was not read to its end"


def chunks_of(stream: Any) -> Any:
    """Return the iterator of a stream, asynchronous or not."""
    return aiter(stream) if hasattr(stream, "__aiter__") else iter(stream)


@dataclass(frozen=True)
class Done:
    """The end of a flow."""

    value: Any


def run(flow: Flow[T], transport: Transport) -> T:
    """Execute a flow to its end."""
    return _finish(flow, _advance(lambda: next(flow)), transport)


def run_to_chunk(flow: Flow[T], transport: Transport, *, goes_on: bool = False) -> tuple[Emit | None, T | None]:
    """Execute a flow up to its next chunk, and return the effect that emits it, or the flow's result."""
    step = _advance(lambda: flow.send(None) if goes_on else next(flow))
    while not isinstance(step, (Emit, Done)):
        step = _step(flow, step, transport)
    return (None, step.value) if isinstance(step, Done) else (step, None)


def abandon(flow: Flow[T], transport: Transport) -> T:
    """Raise Abandoned in a flow whose chunks are no longer read, and execute it to its end."""
    return _finish(flow, _advance(lambda: flow.throw(Abandoned())), transport)


def _advance(advance: Callable[[], Effect]) -> Effect | Done:
    try:
        return advance()
    except StopIteration as end:
        return Done(end.value)


def _finish(flow: Flow[T], step: Effect | Done, transport: Transport) -> T:
    while not isinstance(step, Done):
        step = _step(flow, step, transport)
    return cast(T, step.value)


def _step(flow: Flow[Any], effect: Effect, transport: Transport) -> Effect | Done:
    try:
        result = _do(effect, transport)
    except Exception as error:
        failure = error
        return _advance(lambda: flow.throw(failure))
    return _advance(lambda: flow.send(result))


def _do(effect: Effect, transport: Transport) -> Any:
    if isinstance(effect, Request):
        return transport.ask(effect)
    if isinstance(effect, WithStatus):
        response = transport.send(effect.asked)
        return response.status_code, parse_response(effect.asked, response)
    if isinstance(effect, Pull):
        return next(effect.chunks, END)
    if isinstance(effect, Emit):
        return None
    result = effect.function(**effect.arguments)
    if inspect.isawaitable(result) or hasattr(result, "__aiter__"):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("this is an asynchronous function: use AsyncPalimpsest, and `await call.send(…)`")
    return result


async def arun(flow: Flow[T], transport: AsyncTransport) -> T:
    """Execute a flow to its end."""
    return await _afinish(flow, _advance(lambda: next(flow)), transport)


async def arun_to_chunk(
    flow: Flow[T], transport: AsyncTransport, *, goes_on: bool = False
) -> tuple[Emit | None, T | None]:
    """Execute a flow up to its next chunk, and return the effect that emits it, or the flow's result."""
    step = _advance(lambda: flow.send(None) if goes_on else next(flow))
    while not isinstance(step, (Emit, Done)):
        step = await _astep(flow, step, transport)
    return (None, step.value) if isinstance(step, Done) else (step, None)


async def aabandon(flow: Flow[T], transport: AsyncTransport) -> T:
    """Raise Abandoned in a flow whose chunks are no longer read, and execute it to its end."""
    return await _afinish(flow, _advance(lambda: flow.throw(Abandoned())), transport)


async def _afinish(flow: Flow[T], step: Effect | Done, transport: AsyncTransport) -> T:
    while not isinstance(step, Done):
        step = await _astep(flow, step, transport)
    return cast(T, step.value)


async def _astep(flow: Flow[Any], effect: Effect, transport: AsyncTransport) -> Effect | Done:
    try:
        result = await _ado(effect, transport)
    except Exception as error:
        failure = error
        return _advance(lambda: flow.throw(failure))
    return _advance(lambda: flow.send(result))


async def _ado(effect: Effect, transport: AsyncTransport) -> Any:
    if isinstance(effect, Request):
        return await transport.ask(effect)
    if isinstance(effect, WithStatus):
        response = await transport.send(effect.asked)
        return response.status_code, parse_response(effect.asked, response)
    if isinstance(effect, Pull):
        chunks = effect.chunks
        return await anext(chunks, END) if hasattr(chunks, "__anext__") else next(chunks, END)
    if isinstance(effect, Emit):
        return None
    result = effect.function(**effect.arguments)
    return await result if inspect.isawaitable(result) else result
