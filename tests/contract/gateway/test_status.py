"""The state of the gateway over the API: its upstreams, and the newest requests of the caller's tenant."""

import httpx
import pytest

from app.runtime.settings import Settings
from tests.conftest import serving
from tests.support.provider import Provider
from tests.support.requesting import Loopback

pytestmark = pytest.mark.wing("gateway")
HEADERS = {"x-claude-code-session-id": "mine"}
BODY = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}


@pytest.mark.wing("audit")
async def test_the_newest_requests_come_first_with_their_reasons(http: httpx.AsyncClient, provider: Provider) -> None:
    first = (await http.get("/v1/gateway")).json()
    assert first["calls"] == [] and first["upstreams"]["anthropic"] == provider.url
    await http.post("/gateway/anthropic/v1/messages", json=BODY, headers=HEADERS)
    await http.post("/gateway/anthropic/v1/messages", json={**BODY, "messages": []}, headers=HEADERS)
    await http.get("/gateway/anthropic/v1/models")
    calls = (await http.get("/v1/gateway")).json()["calls"]
    assert [(call["mode"], call["reason"], call["session"]) for call in calls] == [
        ("passthrough", None, None),
        ("bypass", "no-messages", "mine"),
        ("context", None, "mine"),
    ]
    record = await http.get(f"/v1/sessions/{calls[2]['line']}/calls/{calls[2]['call_id']}")
    assert record.json()["tokens"]["estimate"] == calls[2]["tokens_sent"]
    assert (await http.get("/v1/gateway", params={"limit": 1})).json()["calls"] == calls[:1]
    assert (await http.get("/v1/gateway", params={"limit": 201})).status_code == 422


async def test_a_server_without_upstreams_says_so(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/gateway")).json()["upstreams"] == {}


async def test_a_key_with_a_prefix_sees_the_requests_of_its_own_sessions(database_url: str, provider: Provider) -> None:
    own = Settings(gateway_anthropic_url=provider.url, api_key="a-key-of-the-settings")
    async with serving(own, database_url) as url, httpx.AsyncClient(base_url=url, transport=Loopback()) as http:
        keys = ["a-key-of-the-settings"]
        asked = {"name": "limited", "scopes": ["ingest", "read"], "session_prefix": "a-"}
        made = await http.post("/v1/keys", json=asked, headers={"authorization": f"Bearer {keys[0]}"})
        keys.append(made.json()["secret"])
        for key in keys:
            await http.post("/gateway/anthropic/v1/messages", json=BODY, headers={**HEADERS, "x-palimpsest-key": key})
            await http.get("/gateway/anthropic/v1/models", headers={"x-palimpsest-key": key})
        seen = []
        for key in keys:
            answer = await http.get("/v1/gateway", headers={"authorization": f"Bearer {key}"})
            seen.append([call["session"] for call in answer.json()["calls"]])
        assert (await http.get("/v1/gateway")).status_code == 401
    assert seen == [[None, "a-mine", None, "mine"], ["a-mine"]]
