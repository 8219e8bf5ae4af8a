"""Sessions over HTTP."""

import httpx


async def test_a_session_is_created_once_and_then_changed(client: httpx.AsyncClient) -> None:
    first = await client.put("/v1/sessions/s1", json={"model": "gpt-4o", "metadata": {"a": 1}})
    again = await client.put("/v1/sessions/s1", json={"metadata": {"a": 2}})
    assert (first.status_code, again.status_code) == (201, 200)
    body = (await client.get("/v1/sessions/s1")).json()
    assert body == again.json()
    assert body["id"] == "s1"
    assert (body["head"], body["epoch"], body["turns"]) == (0, 0, 0)
    assert body["policy"] == {"name": "default", "version": 1}
    assert (body["model"], body["metadata"]) == ("gpt-4o", {"a": 2})
    assert body["tokens"] == {"log": 0, "context": 0}


async def test_sessions_are_listed_newest_first_in_pages(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await client.put(f"/v1/sessions/s{number}", json={})
    seen, cursor = [], None
    while True:
        page = (await client.get("/v1/sessions", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["s4", "s3", "s2", "s1", "s0"]


async def test_an_unknown_session_is_a_problem(client: httpx.AsyncClient) -> None:
    for path in (
        "/v1/sessions/none",
        "/v1/sessions/none/events",
        "/v1/sessions/none/context",
        "/v1/sessions/none/epochs",
    ):
        answer = await client.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/not-found"


async def test_a_deleted_session_leaves_nothing(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": [{"type": "user.message", "content": "hi"}]})
    await client.get("/v1/sessions/s/context")
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    assert (await client.get("/v1/sessions/s")).status_code == 404
    again = await client.post("/v1/sessions/s/events", json={"events": [{"type": "user.message", "content": "anew"}]})
    assert again.json()["head"] == 1


async def test_invalid_session_requests_change_nothing(client: httpx.AsyncClient) -> None:
    cases = [
        ("/v1/sessions/a b", {}, "/problems/invalid-request"),
        ("/v1/sessions/s", {"colour": "red"}, "/problems/invalid-request"),
        ("/v1/sessions/s", {"policy": {"retention": {"keep_lost": 3}}}, "/problems/invalid-policy"),
        ("/v1/sessions/s", {"policy": "none-such"}, "/problems/not-found"),
        ("/v1/sessions/s", {"policy": {"window_tokens": 100, "reserve_tokens": 100}}, "/problems/invalid-policy"),
        ("/v1/sessions/s", {"metadata": {"a": "\x00"}}, "/problems/invalid-request"),
    ]
    for path, body, kind in cases:
        answer = await client.put(path, json=body)
        assert (answer.json()["type"], answer.headers["content-type"]) == (kind, "application/problem+json"), body
    assert (await client.get("/v1/sessions")).json()["items"] == []
