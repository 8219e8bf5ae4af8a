"""The tests' own transport of HTTP."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.loopback import listening
from tests.support.requesting import Loopback


@pytest.mark.parametrize(("idle_seconds", "connections"), [(60.0, 1), (0.0, 3)])
async def test_a_connection_is_used_again_until_it_was_idle_for_too_long(idle_seconds: float, connections: int) -> None:
    clients = []

    async def answer(request: Request) -> Response:
        clients.append(request.client)
        return Response("done")

    application = Starlette(routes=[Route("/", answer)])
    async with listening(application) as url, httpx.AsyncClient(transport=Loopback(idle_seconds)) as http:
        for _ in range(3):
            assert (await http.get(url)).text == "done"
    assert len(clients) == 3
    assert len(set(clients)) == connections
