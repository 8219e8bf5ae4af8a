"""The wire protocol: retries under one key, timeouts, options, raw responses, pages, and streams that break."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from palimpsest import (
    AsyncPalimpsest,
    ConflictError,
    ConnectionFailed,
    ConnectionTimedOut,
    HeadConflictError,
    NotFoundError,
    Palimpsest,
    PalimpsestError,
    RateLimitError,
    ReplyNotLogged,
    ServerError,
    StatusError,
    UnavailableError,
    UnreadableAnswer,
)
from palimpsest._retry import LONGEST_SECONDS, wait
from palimpsest._transport import Options
from palimpsest.errors import from_response
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.main import create_app
from app.runtime.serve import wire_limits
from app.runtime.settings import Settings
from tests.support.loopback import listening
from tests.support.pooler import pooled


class Cut:
    """A network that may lose the server's responses, or cut them off after some of their parts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        self.parts: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append((scope["method"], scope["path"], headers))
        lost, left = self.lose(scope["method"], scope["path"]), self.parts

        async def cut(message: Message) -> None:
            nonlocal left
            if lost:
                return
            if message["type"] == "http.response.body" and left is not None and scope["path"].endswith("/stream"):
                if left == 0:
                    raise ConnectionAbortedError("the answer is cut off, as the test wants it")
                left -= 1
            await send(message)

        await self._app(scope, receive, cut)
        if lost:
            raise ConnectionAbortedError("the answer is lost, as the test wants it")


@asynccontextmanager
async def serve_with_cut(database_url: str) -> Any:
    settings = Settings()
    app = create_app(pooled(settings, database_url), database_url)
    cut = Cut(app)
    async with listening(cut, wire_limits(settings)) as url:
        try:
            yield cut, url
        finally:
            app.state.stopping.set()


@asynccontextmanager
async def serve_responses(*answers: Callable[[], Response]) -> Any:
    """Serve the responses in order; return the headers of the requests."""
    left, seen = list(answers), list[dict[str, str]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
            answer = left.pop(0) if len(left) > 1 else left[0]
            await answer()(scope, receive, send)

    async with listening(app) as url:
        yield url, seen


def busy_response(after: str = "0") -> Response:
    return JSONResponse({"type": "/problems/overloaded", "title": "Busy", "status": 503}, 503, {"Retry-After": after})


def healthy_response() -> Response:
    return JSONResponse({"status": "ok"})


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_logged_twice(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url) as client:
        memory = client.session("s")
        lost = iter([True, True])
        cut.lose = lambda method, path: method == "POST" and next(lost, False)
        appended = await memory.user("Hello.")
        events = [one async for one in memory.list_events()]
    keys = [headers["idempotency-key"] for method, _, headers in cut.seen if method == "POST"]
    assert len(keys) == 3 and len(set(keys)) == 1
    assert appended.head == 1
    assert [event.content for event in events] == ["Hello."]


@pytest.mark.parametrize("content", ["<html>Please log in.</html>", "{}", "[]", "null", '{"items": 1}', "\\xff"])
async def test_an_answer_that_is_not_the_servers_is_an_error_of_this_package(content: str) -> None:
    async with serve_responses(lambda: Response(content)) as (url, _), AsyncPalimpsest(base_url=url) as client:
        with pytest.raises(UnreadableAnswer):
            await client.session("s").get_session()
        with pytest.raises(UnreadableAnswer):
            await client.list_sessions()


async def test_a_released_client_closes_its_connections(recwarn: pytest.WarningsRecorder) -> None:
    """They stay open until the last of its sessions is released; nothing has to be closed explicitly."""

    def use(url: str) -> None:
        memory = Palimpsest(base_url=url).session("s")
        gc.collect()
        for _ in range(2):
            assert memory.get_session()

    async with serve_responses(lambda: JSONResponse({"id": "s"})) as (url, _):
        warnings.simplefilter("always", ResourceWarning)
        await asyncio.to_thread(use, url)
        gc.collect()
    assert not [str(one.message) for one in recwarn if one.category is ResourceWarning]


async def test_an_answer_of_409_is_never_asked_for_again(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url) as client:
        memory = client.session("s")
        await memory.user("Hello.")
        with pytest.raises(HeadConflictError) as raised:
            await memory.append_events(events=[{"type": "user.message", "content": "And?"}], expected_head=0)
        with pytest.raises(NotFoundError):
            await client.session("nothing").get_session()
    assert isinstance(raised.value, ConflictError)
    assert (raised.value.slug, raised.value.head, raised.value.status) == ("head-conflict", 1, 409)
    assert len(cut.seen) == 3


async def test_a_busy_server_is_asked_again_when_it_says() -> None:
    async with (
        serve_responses(busy_response, busy_response, healthy_response) as (url, seen),
        AsyncPalimpsest(base_url=url) as client,
    ):
        assert await client.healthz() == {"status": "ok"}
    assert len(seen) == 3


async def test_it_gives_up_after_its_retries_and_when_it_would_wait_too_long() -> None:
    async with serve_responses(busy_response) as (url, seen), AsyncPalimpsest(base_url=url, max_retries=1) as client:
        with pytest.raises(UnavailableError, match="Busy"):
            await client.healthz()
        assert len(seen) == 2
    async with serve_responses(lambda: busy_response("3600")) as (url, seen), AsyncPalimpsest(base_url=url) as client:
        with pytest.raises(UnavailableError):
            await client.healthz()
        assert len(seen) == 1


def failure(status: int, headers: dict[str, str] | None = None, **problem: Any) -> StatusError:
    return from_response(
        httpx2.Response(status, headers=headers, json=problem, request=httpx2.Request("GET", "http://x"))
    )


def test_pauses_grow_are_spread_and_end() -> None:
    lost = ConnectionFailed("lost")
    for attempt in range(8):
        pauses = {wait(lost, attempt, 9) for _ in range(50)}
        longest = min(0.5 * 2**attempt, LONGEST_SECONDS)
        assert len(pauses) > 10
        assert all(pause is not None and 0.75 * longest <= pause <= longest for pause in pauses)
    assert wait(lost, 2, 2) is None
    assert wait(PalimpsestError("other"), 0, 2) is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_answers_are_final(status: int) -> None:
    assert wait(failure(status), 0, 2) is None


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_failures_that_may_pass_are_tried_again(status: int) -> None:
    assert wait(failure(status), 0, 2) is not None
    assert wait(failure(status, {"Retry-After": "7"}), 0, 2) == 7
    assert wait(failure(status, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), 0, 2) == 0
    assert wait(failure(status, {"Retry-After": "soon"}), 0, 2) is not None


def test_what_can_never_be_reproduced_is_not_tried_again() -> None:
    assert wait(failure(500, type="/problems/not-reproducible"), 0, 2) is None


def test_a_proxys_page_is_an_error_too() -> None:
    request = httpx2.Request("GET", "http://x")
    error = from_response(httpx2.Response(502, text="<h1>Bad gateway</h1>", request=request))
    assert isinstance(error, ServerError)
    assert (error.slug, error.detail) == (None, "<h1>Bad gateway</h1>")
    assert isinstance(from_response(httpx2.Response(429, text="slow down", request=request)), RateLimitError)


def test_a_key_that_is_shown_once_is_not_made_twice() -> None:
    asked = list[str]()

    def lost(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        raise httpx2.ReadError("lost")

    drop = httpx2.MockTransport(lost)
    with Palimpsest(base_url="http://x", http_client=httpx2.Client(transport=drop)) as client:
        began = len(asked)
        with pytest.raises(ConnectionFailed):
            client.create_key(name="n", scopes=["read"])
        assert len(asked) == began + 1


async def test_a_server_that_does_not_respond_times_out() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with AsyncPalimpsest(base_url=url, max_retries=0) as client:
        with pytest.raises(ConnectionTimedOut, match="did not respond in time"):
            await client.with_options(timeout=0.05).healthz()
    server.close()
    await server.wait_closed()


async def test_options_and_environment(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_URL", f"{server}/")
    monkeypatch.setenv("PALIMPSEST_API_KEY", "a secret")
    async with AsyncPalimpsest(headers={"X-One": "1"}) as client:
        other = client.with_options(headers={"X-Two": "2"}, timeout=3, max_retries=0)
        assert (await other.healthz())["status"] == "ok"
        options: Options = other._transport.options
        sent = options.request(client.healthz._build())
        assert {"X-One", "X-Two", "Authorization"} <= set(sent["headers"])
        assert (sent["timeout"], sent["url"]) == (3, f"{server}/healthz")
        assert "a secret" not in repr(options)
        assert client._transport.options.max_retries == 2
        assert other._transport.http is client._transport.http


@pytest.mark.wing("telemetry")
async def test_raw_and_streamed_answers(server: str) -> None:
    def blocking() -> tuple[int, str, str]:
        with Palimpsest(base_url=server) as client:
            memory = client.session("s")
            raw = memory.put_session.raw(model="gpt-4o")
            with client.metrics.streamed() as response:
                first = next(response.iter_lines())
            assert raw.headers["content-type"] == "application/json"
            return raw.status_code, raw.parse().id, first

    assert await asyncio.to_thread(blocking) == (
        201,
        "s",
        "# HELP python_gc_objects_collected_total Objects collected during gc",
    )

    async with AsyncPalimpsest(base_url=server) as client:
        raw = await client.session("s").get_session.raw()
        assert (raw.status_code, raw.parse().model) == (200, "gpt-4o")
        async with client.metrics.streamed() as response:
            assert response.headers["content-type"].startswith("text/plain")
        with pytest.raises(NotFoundError):
            async with client.session("nothing").get_session.streamed():
                pass


async def test_pages_follow_one_another(server: str) -> None:
    def blocking() -> None:
        with Palimpsest(base_url=server) as client:
            memory = client.session("s")
            memory.append_events(events=[{"type": "user.message", "content": str(n)} for n in range(7)])
            page = memory.list_events(limit=3)
            assert [event.seq for event in page.items] == [1, 2, 3]
            assert [event.seq for event in page] == [1, 2, 3, 4, 5, 6, 7]
            following = page.next_page()
            assert following is not None and [event.seq for event in following.items] == [4, 5, 6]
            assert "items" in memory.list_events.raw(limit=1).json()

    await asyncio.to_thread(blocking)
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s")
        assert [event.seq async for event in memory.list_events(limit=2)] == [1, 2, 3, 4, 5, 6, 7]
        page = await memory.list_events(limit=5)
        assert len(page.items) == 5
        last = await page.next_page()
        assert last is not None and len(last.items) == 2


@pytest.mark.wing("stream")
async def test_a_stream_goes_on_where_it_broke(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url) as client:
        memory = client.session("s", model="gpt-4o")
        for n in range(6):
            await memory.user(f"Message {n}.")
        async with memory.call():
            pass
        cut.parts = 4  # the line with the retry time, and three messages
        seen = []
        async for one in memory.stream(types=["appended", "epoch"]):
            seen.append(one)
            if one.kind == "epoch":
                break
    assert [one.data.seq for one in seen if one.kind == "appended"] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].data.cause == "start"
    streams = [headers for _, path, headers in cut.seen if path.endswith("/stream")]
    assert [headers.get("last-event-id") for headers in streams] == [None, seen[2].id, seen[5].id]


@pytest.mark.wing("stream")
async def test_a_stream_of_a_missing_session_is_an_error(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        with pytest.raises(NotFoundError):
            async for _ in client.session("nothing").stream():
                pass


async def test_an_answer_that_cannot_be_logged_is_not_lost(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url, max_retries=0) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.user("Hello.")
        answer = {"choices": [{"message": {"role": "assistant", "content": "Dear!"}, "finish_reason": "stop"}]}
        async with memory.call() as call:
            cut.lose = lambda method, path: path.endswith("/messages")
            with pytest.raises(ReplyNotLogged) as raised:
                await call.send(lambda **_: answer)
    assert raised.value.reply.content == "Dear!"
    assert isinstance(raised.value.__cause__, ServerError)


async def test_usage_that_cannot_be_reported_raises_no_error(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url, max_retries=0) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.user("Hello.")
        answer = {"choices": [{"message": {"role": "assistant", "content": "Dear!"}, "finish_reason": "stop"}]}
        cut.lose = lambda method, path: path.endswith("/outcome")
        async with memory.call() as call:
            assert (await call.send(lambda **_: answer)).content == "Dear!"
    assert "was not reported" in caplog.text
