"""A server proxied by Caddy with the committed deploy/proxy/Caddyfile, over TLS: `make test-more NAME=proxy`."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.runtime.settings import Settings
from tests.conftest import serving
from tests.support.gateways import settings
from tests.support.provider import ProviderReply, serving_provider
from tests.support.sse import streaming, take

CADDYFILE = Path(__file__).parents[2] / "deploy" / "proxy" / "Caddyfile"
ABSENT = [name for name in ("caddy", "openssl") if shutil.which(name) is None]
EVENT = {"type": "user.message", "content": "hello"}
MB = 1_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ABSENT), reason=f"on Debian and Ubuntu: apt-get install {' '.join(ABSENT)}"),
]


@dataclass(frozen=True)
class Proxy:
    """The URL of a proxied server, and a context that trusts the proxy's certificate."""

    url: str
    trust: ssl.SSLContext

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, verify=self.trust)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for localhost; return the files of it and its key."""
    files = folder / "cert.pem", folder / "key.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*request, *names, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@asynccontextmanager
async def run_proxy(told: Settings, database_url: str, folder: Path) -> AsyncIterator[Proxy]:
    """Run a server and its proxy while the block lasts."""
    cert, key = certificate(folder)
    async with serving(told, database_url) as server:
        port = free_port()  # chosen once the server has its own
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PALIMPSEST_SITE": f"https://localhost:{port}",
            "PALIMPSEST_SITE_TLS": f"tls {cert} {key}",
            "PALIMPSEST_UPSTREAM": f"127.0.0.1 {urlsplit(server).port}",
            "PALIMPSEST_PROXY_OPTIONS": "default_bind 127.0.0.1\nauto_https disable_redirects",
        }
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(CADDYFILE)]
        log = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environment, cwd=folder, stderr=log)
        assert process.stderr is not None
        said = []
        while b"serving initial configuration" not in (line := await process.stderr.readline()):
            said.append(line)
            assert line, b"".join(said).decode()
        draining = asyncio.create_task(process.stderr.read())
        try:
            yield Proxy(f"https://localhost:{port}", ssl.create_default_context(cafile=str(cert)))
        finally:
            process.terminate()
            await asyncio.gather(process.wait(), draining)


@pytest.fixture
async def proxy(database_url: str, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with run_proxy(Settings(), database_url, tmp_path) as found:
        yield found


async def test_a_context_comes_through(proxy: Proxy) -> None:
    async with proxy.client() as http:
        assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
        answer = await http.get("/v1/sessions/s/context")
        assert (answer.status_code, "hello" in answer.text) == (200, True)
        assert "Caddy" in answer.headers["server"]
        assert (await http.get("/metrics")).status_code == 404


@pytest.mark.wing("stream")
async def test_an_event_of_a_stream_arrives_while_the_stream_goes_on(proxy: Proxy) -> None:
    async with proxy.client() as http:
        for number in (1, 2):
            assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
            if number == 1:
                stream = streaming(proxy.url, "/v1/sessions/s/stream", verify=proxy.trust, types="appended")
                events = await stream.__aenter__()
            assert [one.data["seq"] for one in await take(events, 1)] == [number]
        await stream.__aexit__(None, None, None)


@pytest.mark.wing("gateway")
async def test_a_reply_through_the_gateway_arrives_as_it_is_written(database_url: str, tmp_path: Path) -> None:
    async with (
        serving_provider() as provider,
        run_proxy(settings(provider), database_url, tmp_path) as proxy,
        proxy.client() as http,
    ):
        hold = asyncio.Event()
        provider.script.append(ProviderReply("Hello there.", cut=2, hold=hold))
        async with http.stream("POST", "/gateway/anthropic/v1/messages", **ask()) as answer:
            pieces = answer.aiter_text()
            assert "message_start" in await anext(pieces)
            assert not hold.is_set()
            hold.set()  # the provider breaks off after this
            assert "message_stop" not in "".join([piece async for piece in pieces])


def ask() -> dict[str, Any]:
    message = {"role": "user", "content": "Hi."}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "stream": True, "messages": [message]}
    return {"json": body, "headers": {"x-api-key": "k", "anthropic-version": "2023-06-01"}}


async def test_twenty_megabytes_are_appended_and_read_again_by_a_slow_client(proxy: Proxy) -> None:
    async with proxy.client() as http:
        events = [{**EVENT, "content": "x" * MB} for _ in range(20)]
        answer = await http.post("/v1/sessions/s/events", json={"events": events})
        assert answer.status_code == 201, answer.text
        async with http.stream("GET", "/v1/sessions/s/events", params={"limit": 20}) as reading:
            pieces = reading.aiter_bytes()
            size = len(await anext(pieces))
            assert (await http.get("/readyz")).status_code == 200  # while the rest is still unread
            size += sum([len(piece) async for piece in pieces])
        assert size > 20 * MB


async def test_a_slow_client_does_not_delay_others(proxy: Proxy) -> None:
    rest = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"events": [{"type": "user.message", '
        await rest.wait()
        yield b'"content": "slow"}]}'

    async with proxy.client() as http, proxy.client() as other:
        headers = {"content-type": "application/json"}
        sending = asyncio.create_task(http.post("/v1/sessions/s/events", content=body(), headers=headers))
        assert (await other.post("/v1/sessions/t/events", json={"events": [EVENT]})).status_code == 201
        assert not sending.done()
        rest.set()
        assert (await sending).status_code == 201
