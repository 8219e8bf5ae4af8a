"""A process that is asked to stop does not wait for its streams."""

import httpx
import pytest

from tests.acceptance.conftest import Commands
from tests.support.sse import streaming, take

pytestmark = pytest.mark.wing("stream")


async def test_a_signal_ends_streams_and_the_process(commands: Commands, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    url = await api.url()
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        event = {"type": "user.message", "content": "hello"}
        (await http.post("/v1/sessions/s/events", json={"events": [event]})).raise_for_status()
    async with streaming(url, "/v1/sessions/s/stream") as events:
        await take(events, 1)
        api.process.terminate()
        with pytest.raises(StopAsyncIteration):
            await take(events, 1)
        status, errors = await api.wait()
    assert (status, errors) == (0, [])
