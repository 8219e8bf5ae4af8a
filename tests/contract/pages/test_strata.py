"""The pages of a session's calls: their sizes over time, and the list of them."""

from html import unescape
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from app.store.ids import SessionRef, session_ref
from app.tenants import DEFAULT_TENANT
from app.wings.pages.store import epoch_starts, read_columns

pytestmark = pytest.mark.wing("audit")

REF = session_ref(DEFAULT_TENANT, "s")
POLICY = {"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}}


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any) -> Any:
    """Send JSON; return that of the response."""
    answer = await client.request(method, f"/v1/sessions/s{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


@pytest.fixture
async def calls(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Make a session of five calls, of which the third is refused as too long and the last is reported."""
    await send(client, "PUT", "", {"policy": POLICY})
    made = []
    for number in range(1, 6):
        use = {"type": "tool.call", "call_id": f"c{number}", "tool": "list", "arguments": {"path": f"/f{number}"}}
        result = {"type": "tool.result", "call_id": f"c{number}", "content": f"{number}: " + "names of files " * 60}
        asked = {"type": "user.message", "content": f"list folder {number}"}
        await send(client, "POST", "/events", {"events": [asked, use, result]})
        made.append(await send(client, "POST", "/context", {}))
    error = {"message": "prompt is too long: 200001 tokens > 200000 maximum", "code": "context_length_exceeded"}
    await send(client, "POST", f"/calls/{made[2]['call_id']}/outcome", {"error": error})
    usage = {"input_tokens": 1234, "cache_read_tokens": 777, "output_tokens": 55}
    await send(client, "POST", f"/calls/{made[4]['call_id']}/outcome", {"usage": usage})
    return made


async def test_columns_have_the_figures_of_the_calls(
    client: httpx.AsyncClient, calls: list[dict[str, Any]], database: Database
) -> None:
    columns = await read_columns(database, REF, "main")
    assert [(one.number, one.first, one.last) for one in columns] == [(n, n, n) for n in range(1, 6)]
    for column, call in zip(columns, calls, strict=True):
        assert str(column.call_id) == call["call_id"]
        tokens = call["tokens"]
        assert (column.estimate, column.target) == (tokens["estimate"], tokens["target"])
        assert dict(column.by_source) == tokens["by_source"]
    assert [one.refused for one in columns] == [0, 0, 1, 0, 0] and columns[4].input_tokens == 1234


async def test_many_calls_share_columns_that_show_the_largest(
    client: httpx.AsyncClient, calls: list[dict[str, Any]], database: Database
) -> None:
    columns = await read_columns(database, REF, "main", most=2)
    assert [(one.first, one.last) for one in columns] == [(1, 3), (4, 5)]
    sizes = [call["tokens"]["estimate"] for call in calls]
    assert [one.estimate for one in columns] == [max(sizes[:3]), max(sizes[3:])]
    assert [one.refused for one in columns] == [1, 0]


async def test_another_tenants_session_of_the_same_name_has_no_columns(
    client: httpx.AsyncClient, calls: list[dict[str, Any]], database: Database
) -> None:
    theirs = SessionRef(REF.session_id, session_ref(REF.session_id, "s").session_id)
    assert await read_columns(database, theirs, "main") == []
    assert await epoch_starts(database, theirs, "main") == []


async def test_the_page_shows_calls_epochs_and_their_differences(
    client: httpx.AsyncClient, calls: list[dict[str, Any]]
) -> None:
    page = unescape((await client.get("/ui/sessions/s/strata")).text)
    assert "the window over 5 calls" in page and "1 refused as too long" in page
    assert f"/calls/{calls[3]['call_id']}/diff/{calls[4]['call_id']}" in page
    assert page.count('class="slot"') == 5


async def test_the_list_numbers_calls_and_shows_what_was_reported(
    client: httpx.AsyncClient, calls: list[dict[str, Any]]
) -> None:
    page = unescape((await client.get("/ui/sessions/s/calls")).text)
    rows = [row.split("</tr>")[0] for row in page.split("<tr data-row")[1:]]
    assert [call["call_id"] in row for call, row in zip(reversed(calls), rows, strict=True)] == [True] * 5
    assert ">5</a>" in rows[0] and all(figure in rows[0] for figure in ("1,234", "777", "55", "reported"))
    assert "too long" in rows[2] and "not reported" in rows[3]


async def test_a_number_leads_to_its_call(client: httpx.AsyncClient, calls: list[dict[str, Any]]) -> None:
    led = await client.get("/ui/sessions/s/calls?number=2")
    assert (led.status_code, led.headers["location"]) == (303, f"/ui/sessions/s/calls/{calls[1]['call_id']}")
    assert (await client.get("/ui/sessions/s/calls?number=6")).status_code == 404


@pytest.mark.parametrize("page", ["strata", "calls"])
async def test_sessions_without_a_call_and_unknown_ones(client: httpx.AsyncClient, page: str) -> None:
    await send(client, "PUT", "", {})
    empty = await client.get(f"/ui/sessions/s/{page}")
    assert empty.status_code == 200 and "No context was requested in view main yet" in empty.text
    assert (await client.get(f"/ui/sessions/none/{page}")).status_code == 404
