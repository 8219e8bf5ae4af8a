"""Types that editors and mypy infer for the client: checked by `make check`, never run."""

import httpx2
from palimpsest import (
    AsyncPage,
    AsyncPalimpsest,
    AsyncReply,
    AsyncTurn,
    Page,
    Palimpsest,
    Reply,
    StreamEvent,
    ToolCall,
    Turn,
)
from palimpsest.types import AppendedOut, CallItem, ContextOut, EventOut, SessionOut, SummaryWhole
from typing_extensions import assert_type  # noqa: UP035 - checked as Python 3.10 sees it


def blocking(client: Palimpsest) -> None:
    """Methods of a blocking client."""
    memory = client.session("s", model="gpt-4o")
    assert_type(memory.get_session(), SessionOut)
    assert_type(memory.get_session().head, int)
    assert_type(memory.get_context(format="openai", max_tokens=8_000), ContextOut)
    assert_type(memory.list_events(limit=3), Page[EventOut])
    assert_type([event.seq for event in memory.list_events()], list[int])
    assert_type(client.audit_calls(overflow=True).items, list[CallItem])
    assert_type(memory.get_summary("id"), SummaryWhole)
    assert_type(memory.get_session.raw().parse(), SessionOut)
    assert_type(client.list_policies.raw(), httpx2.Response)
    assert_type(memory.user("Hello."), AppendedOut)
    with memory.call(max_tokens=4_000) as call, client.metrics.streamed() as response:
        assert_type(response, httpx2.Response)
        assert_type(call.send(print, stream=True), Reply)
        assert_type(call.left_out.tokens, int)
        assert_type(call.send(print).tool_calls, list[ToolCall])
    with memory.turn("Hello.", max_tokens=4_000) as turn:
        assert_type(turn, Turn)
        assert_type(turn.send(print).content, str)
        turn.results(["text"])
    for happened in memory.stream():
        assert_type(happened, StreamEvent)


def wrong(client: Palimpsest) -> None:
    """Errors that are found before running."""
    memory = client.session("s", format="chat")  # type: ignore[arg-type]
    memory.get_context(max_token=8_000)  # type: ignore[call-arg]
    memory.turn(max_token=8_000)  # type: ignore[call-arg]
    memory.get_event()  # type: ignore[call-arg]
    memory.get_event("first")  # type: ignore[arg-type]
    memory.append_events(events=[{"type": "user.massage", "content": "Hello."}])  # type: ignore[typeddict-item]
    client.get_session("s")  # type: ignore[attr-defined]


async def asynchronous(client: AsyncPalimpsest) -> None:
    """The methods of an asynchronous client."""
    memory = client.session("s", model="gpt-4o")
    assert_type(await memory.get_session(), SessionOut)
    assert_type(await memory.list_events(limit=3), AsyncPage[EventOut])
    assert_type([event.seq async for event in memory.list_events()], list[int])
    assert_type((await memory.get_session.raw()).parse(), SessionOut)
    async with memory.call() as call:
        assert_type(await call.send(print), AsyncReply)
    async with memory.turn("Hello.") as turn:
        assert_type(turn, AsyncTurn)
    async for happened in memory.stream(types=["epoch"]):
        assert_type(happened, StreamEvent)
