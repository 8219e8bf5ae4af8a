"""A provider that reports no cache is never treated as having a cold one: a context that fits easily is left whole."""

from typing import Any

import asyncpg
import httpx
import pytest

from app.store.dsn import for_asyncpg
from tests.conftest import serving
from tests.support.backdating import moved_back
from tests.support.gateways import GatewayReader, settings
from tests.support.provider import Provider, ProviderReply
from tests.support.requesting import Loopback

FILES = 12
LINES = 540
"""The lines of a file, about 3,300 tokens."""
PATHS = {"anthropic": "/gateway/s/s/anthropic/v1/messages", "openai": "/gateway/s/s/openai/v1/chat/completions"}
MODELS = {"anthropic": "claude-sonnet-5", "openai": "gpt-5-mini"}


def file(number: int) -> str:
    return "\n".join(f"f{number}.{line}: the value is {line * 7919 % 10007}" for line in range(LINES))


def result(form: str, number: int, file: str) -> Any:
    if form == "openai":
        return {"role": "tool", "tool_call_id": f"call_{number}", "content": file}
    part = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": file}
    return {"role": "user", "content": [part]}


async def read_files(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, form: str, model: str
) -> tuple[list[Any], httpx.Response]:
    """Have an agent read the files; return its messages and the last response."""
    messages: list[Any] = [{"role": "user", "content": "Read the files."}]
    for number in range(FILES):
        provider.script.append(ProviderReply("", [(f"call_{number}", "search", {"query": f"value {number}"})]))
        body = {"model": model, "max_tokens": 9, "messages": messages}
        answer = await http.post(PATHS[form], json=body)
        assert answer.headers["x-palimpsest-mode"] == "context"
        await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
        said = answer.json()
        reply = said["choices"][0]["message"] if form == "openai" else {"role": "assistant", "content": said["content"]}
        messages += [{k: v for k, v in reply.items() if v is not None}, result(form, number, file(number))]
    return messages, answer


def count_files_shown(provider: Provider) -> int:
    """Return the number of files in the last request."""
    text = provider.requests[-1].raw.decode()
    return sum(f"f{number}.{LINES // 2}: the value" in text for number in range(FILES))


@pytest.mark.wing("audit")
@pytest.mark.wing("gateway")
@pytest.mark.parametrize(
    ("form", "model", "cache", "kept"),
    [
        ("anthropic", "claude-sonnet-5", None, FILES),
        ("anthropic", "a-local-model", (0, 0), FILES),
        ("openai", "gpt-5-mini", None, FILES),  # the fake provider's chat completions report no cache
        ("anthropic", "claude-sonnet-5", (0, 0), 2),
        ("anthropic", "claude-sonnet-5", (900, 10), 2),
        ("anthropic", "a-local-model", (900, 10), 2),
    ],
)
async def test_after_an_hour_only_a_reported_cache_is_cold(
    database_url: str,
    provider: Provider,
    behind: GatewayReader,
    form: str,
    model: str,
    cache: tuple[int, int] | None,
    kept: int,
) -> None:
    provider.cache = cache
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, transport=Loopback(), timeout=30) as http,
    ):
        messages, answer = await read_files(http, provider, behind, form, model)
        assert 35_000 < int(answer.headers["x-palimpsest-tokens-wanted"]) < 60_000
    connection = await asyncpg.connect(for_asyncpg(database_url))
    await connection.execute("SET session_replication_role = replica")  # disables the triggers that forbid the change
    hour = "interval '1 hour'"
    await connection.execute(f"UPDATE model_calls SET {moved_back('created_at', hour)}")
    await connection.close()
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, transport=Loopback(), timeout=30) as http,
    ):
        answer = await http.post(PATHS[form], json={"model": model, "max_tokens": 9, "messages": messages})
    assert answer.headers["x-palimpsest-mode"] == "context"
    assert count_files_shown(provider) == kept


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        ({}, FILES),
        ({"cache_read_tokens": 0, "cache_write_tokens": 0}, 2),
        ({"cache_read_tokens": 0}, 2),
        ({"cache_read_tokens": 5_000, "cache_write_tokens": 5_000}, 2),
    ],
)
@pytest.mark.parametrize("later", [{"now": "2100-01-01T00:00:00Z"}, {"system": "Another prompt."}], ids=str)
async def test_a_cache_exists_if_outcomes_report_its_fields(
    client: httpx.AsyncClient, usage: dict[str, int], kept: int, later: dict[str, Any]
) -> None:
    messages: list[Any] = [{"role": "user", "content": "Read the files."}]
    asked: dict[str, Any] = {"format": "anthropic", "model": "claude-sonnet-5", "system": "You read."}
    for number in range(FILES):
        made = (await client.post("/v1/sessions/s/context", json=asked | {"messages": messages})).json()
        tokens = made["tokens"]["estimate"] - sum(usage.values())
        outcome = {"usage": {"input_tokens": max(tokens, 1), **usage}}
        path = f"/v1/sessions/{made['line']}/calls/{made['call_id']}/outcome"
        assert (await client.post(path, json=outcome)).status_code == 200
        call = {"type": "tool_use", "id": f"call_{number}", "name": "search", "input": {"query": f"value {number}"}}
        messages += [{"role": "assistant", "content": [call]}, result("anthropic", number, file(number))]
    made = (await client.post("/v1/sessions/s/context", json=asked | {"messages": messages} | later)).json()
    text = str(made["request"])
    assert sum(f"f{number}.{LINES // 2}: the value" in text for number in range(FILES)) == kept


@pytest.mark.wing("gateway")
@pytest.mark.wing("ledger")
@pytest.mark.wing("audit")
async def test_a_local_server_without_a_cache_is_planned_for_as_its_row_in_the_table_says(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    row = {"qwen": {"ttl_seconds": 0, "read_price": 1, "write_price": 1}}  # as printed in docs/gateway.md
    expected: list[Any] = []
    for table in ({}, row):
        async with (
            serving(settings(provider, gateway_local_url=f"{provider.url}/v1", cache_table=table), database_url) as url,
            httpx.AsyncClient(base_url=url, transport=Loopback(), timeout=30) as http,
        ):
            path = f"/gateway/s/{len(table)}/local/v1/chat/completions"
            messages: list[Any] = [{"role": "user", "content": "Read the files."}]
            for number in range(3):
                answer = await http.post(path, json={"model": "qwen3-8b", "messages": messages})
                assert answer.headers["x-palimpsest-mode"] == "context"
                line = answer.headers["x-palimpsest-line"]
                await behind.reported(http, answer.headers["x-palimpsest-call"], line)
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": file(number)}]
            expected.append((await http.get(f"/v1/sessions/{line}/ledger")).json()["totals"]["expected"])
    assert [one["read_tokens"] > 0 for one in expected] == [True, False]
    assert expected[1]["billed"] == expected[1]["tokens"] > expected[0]["billed"]
