"""Estimates of 270 contexts with every kind of content, checked by an independent count: none is too low."""

import json
import random
import string
from statistics import median
from typing import Any

import httpx
import pytest
import tiktoken

from app.runtime.settings import Settings
from app.store.engine import Database
from app.tokenizers import load
from app.vocabulary import FILES
from tests.conftest import serving
from tests.support import recount
from tests.support.kinds import FACTORS, text

FORMATS = ("openai", "openai-responses", "anthropic")
OPENAI = {"gpt-4o": "o200k_base", "gpt-4": "cl100k_base", "gpt-5": "o200k_base"}
CLAUDE = {"claude-sonnet-4-5": 0, "claude-opus-4-8": 1}
MESSAGE_TOKENS = 3
"""Tokens per message and for the reply's priming, from OpenAI's cookbook."""
WINDOW = 9_000
MEDIAN_OPENAI_MAX = 1.10
MEDIAN_CLAUDE_MAX = 1.25


@pytest.fixture(scope="module")
def encodings() -> dict[str, tiktoken.Encoding]:
    """The tokenizers without Palimpsest's wrappers."""
    load(Settings().tiktoken_cache_dir)
    return {name: tiktoken.get_encoding(name) for name in FILES}


@pytest.mark.slow
async def test_i2_i13_no_context_is_larger_than_its_estimate(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding]
) -> None:
    over: list[Any] = []
    ratios: dict[str, list[float]] = {"openai": [], "claude": []}
    for kind in FACTORS:
        await _begin(client, kind)
        for model in (*OPENAI, *CLAUDE):
            encoding = encodings[OPENAI.get(model, "o200k_base")]
            factor = FACTORS[kind][CLAUDE[model]] if model in CLAUDE else 1.0
            for form in FORMATS:
                params: dict[str, Any] = {
                    "format": form,
                    "model": model,
                    "max_tokens": WINDOW,
                    "view": f"{model}-{form}",
                }
                answer = (await client.get(f"/v1/sessions/{kind}/context", params=params)).json()
                texts = [one for one, _ in recount.texts_of(answer["request"])]
                count = sum(map(len, encoding.encode_ordinary_batch(texts))) * factor
                messages = answer["request"].get("messages") or answer["request"]["input"]
                count += (len(messages) + 1) * MESSAGE_TOKENS
                estimate, limit = answer["tokens"]["estimate"], answer["tokens"]["target"]
                ratios["claude" if model in CLAUDE else "openai"].append(estimate / count)
                if not count <= estimate <= limit or count < WINDOW / 3:
                    over.append((kind, model, form, round(count), estimate, limit))
    assert not over
    assert len(ratios["openai"]) + len(ratios["claude"]) == 270
    assert median(ratios["openai"]) <= MEDIAN_OPENAI_MAX
    assert median(ratios["claude"]) <= MEDIAN_CLAUDE_MAX


EMOJI = "".join(chr(code) for code in (*range(0x1F300, 0x1F650), *range(0x1F900, 0x1FA00)))
BOTH = ("o200k_base", "cl100k_base")
TOKENIZERS_BY_MODEL = {model: (name,) for model, name in OPENAI.items()} | {"claude-sonnet-4-5": ("o200k_base",)}
UNKNOWN = {"gemini-2.5-pro": BOTH, "some-model": BOTH, "": BOTH}
"""Models without a tokenizer, and no model: the estimate must reach the count of both tokenizers."""


NOISE = {
    "emoji": EMOJI,
    "ideographs": "".join(map(chr, range(0x4E00, 0x9FFF))),
    "amharic": "ሶፍትዌር ማበልጸግ ሁልጊዜ በቀላል ጥያቄ ይጀምራል",
    "digits": string.digits,
    "capitals": string.ascii_uppercase,
    "signs": string.punctuation,
    "blanks": " \t\n\r",
}
"""Alphabets of random texts that have many more tokens than their size suggests."""


def _text(kind: str, size: int, seed: int) -> str:
    if kind not in NOISE:
        return text(kind, size, seed)
    return "".join(random.Random(seed).choices(NOISE[kind], k=size // 3 if kind == "emoji" else size))


async def _over(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding], policy: Any, kind: str, model: str
) -> list[Any]:
    """Return a context's figures if it exceeds its estimate or shows too little; an empty list otherwise."""
    view = f"{policy if isinstance(policy, str) else 'own'}-{model}"
    params = {"policy": policy, "max_tokens": WINDOW, "view": view, "format": "openai"}
    posted = await client.post(f"/v1/sessions/{kind}/context", json=params | ({"model": model} if model else {}))
    assert posted.status_code == 200, posted.text
    request, tokens = posted.json()["request"], posted.json()["tokens"]
    texts = [one for one, _ in recount.texts_of(request)]
    tokenizers = [encodings[name] for name in (TOKENIZERS_BY_MODEL | UNKNOWN)[model]]
    most = max(sum(map(len, tokenizer.encode_ordinary_batch(texts))) for tokenizer in tokenizers)
    factor = FACTORS[kind][0] if model in CLAUDE and kind in FACTORS else 1.0
    count = most * factor + (len(request["messages"]) + 1) * MESSAGE_TOKENS
    fits = count <= tokens["estimate"] <= tokens["target"] < WINDOW
    return [] if fits and count >= WINDOW / 6 else [(policy, kind, model, round(count), tokens)]


OTHER_PRESETS = ("timeline", "pipeline", "clip", "threshold")
KINDS = ("emoji", "chinese", "base64", "json", "code")


@pytest.mark.parametrize("preset", [*OTHER_PRESETS, "default"])
@pytest.mark.parametrize("model", ["gpt-4o", ""])
async def test_i2_presets_send_no_more_than_their_target_of_emoji(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding], preset: str, model: str
) -> None:
    await _begin(client, "emoji")
    assert await _over(client, encodings, preset, "emoji", model) == []


@pytest.mark.slow
async def test_i2_presets_send_no_more_than_their_target_of_any_kind_of_text(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding]
) -> None:
    over: list[Any] = []
    for kind in KINDS:
        await _begin(client, kind)
        for preset in OTHER_PRESETS:
            for model in (*TOKENIZERS_BY_MODEL, ""):
                over += await _over(client, encodings, preset, kind, model)
        for model in OPENAI:
            over += await _over(client, encodings, "default", kind, model)
    assert over == []


@pytest.mark.parametrize("kind", ["base64", "ideographs", "blanks"])
@pytest.mark.parametrize("policy", ["default", {"estimator": "heuristic"}], ids=["default", "by name"])
async def test_i2_texts_with_more_tokens_than_their_size_suggests_are_within_the_target(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding], policy: Any, kind: str
) -> None:
    await _begin(client, kind)
    assert await _over(client, encodings, policy, kind, "") == []


@pytest.mark.slow
async def test_i2_without_a_tokenizer_no_more_than_the_target_is_sent_of_any_kind_of_text(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding]
) -> None:
    over: list[Any] = []
    for kind in (*FACTORS, *NOISE):
        await _begin(client, kind)
        for model in UNKNOWN:
            over += await _over(client, encodings, "default", kind, model)
    assert over == []


@pytest.mark.wing("audit")
async def test_a_session_with_an_old_estimator_is_sent_within_its_new_estimate(
    client: httpx.AsyncClient, encodings: dict[str, tiktoken.Encoding], database: Database
) -> None:
    """The events keep their old counts, but no context exceeds its estimate."""
    await client.put("/v1/sessions/base64", json={})
    await database.execute("UPDATE sessions SET estimator = 'heuristic'")
    await _begin(client, "base64")
    session = (await client.get("/v1/sessions/base64")).json()
    assert session["estimator"] == "heuristic"
    assert await _over(client, encodings, "default", "base64", "") == []
    call = (await client.get("/v1/sessions/base64/calls")).json()["items"][0]
    again = (await client.get(f"/v1/sessions/base64/calls/{call['call_id']}/context")).json()
    assert again["sha256"] == call["sha256"]


async def _begin(client: httpx.AsyncClient, kind: str) -> None:
    """Append to a session more text of one kind than the window holds, in messages, arguments and results."""
    events: list[dict[str, Any]] = [{"type": "system.prompt", "content": "You help."}]
    for number in range(12):
        if number % 4 == 0:
            events.append({"type": "user.message", "content": _text(kind, 600, number)})
        call_id = f"call_{number}"
        # Without a path, which a note on dropped events would name in English.
        arguments: Any = {"label": f"file_{number}", "content": _text(kind, 500, 100 + number)}
        arguments = json.dumps(arguments, ensure_ascii=False) if number % 2 else arguments
        events += [
            {"type": "assistant.message", "content": _text(kind, 300, 200 + number)},
            {"type": "tool.call", "call_id": call_id, "tool": "write", "arguments": arguments},
            {"type": "tool.result", "call_id": call_id, "content": _text(kind, 3_000, 300 + number)},
        ]
    posted = await client.post(f"/v1/sessions/{kind}/events", json={"events": events})
    assert posted.status_code == 201, posted.text


@pytest.mark.wing("audit")
async def test_a_session_keeps_the_estimator_it_was_created_with(client: httpx.AsyncClient, database: Database) -> None:
    """The log keeps the old counts, requests are counted for their model, and recorded calls render again."""
    await client.put("/v1/sessions/old", json={"model": "claude-sonnet-4-5"})
    await database.execute("UPDATE sessions SET estimator = 'heuristic'")
    events = [{"type": "user.message", "content": text("uuids", 3_000, 1)}]
    stored = (await client.post("/v1/sessions/old/events", json={"events": events})).json()["events"][0]["tokens"]
    call = (await client.get("/v1/sessions/old/context", params={"format": "anthropic"})).json()
    assert call["tokens"]["estimator"] == "claude-3:o200k_base"
    assert call["tokens"]["estimate"] > 1.5 * stored
    again = (await client.get(f"/v1/sessions/old/calls/{call['call_id']}/context")).json()
    assert again["sha256"] == call["sha256"]
    assert (await client.get("/v1/sessions/old")).json()["tokens"]["log"] == stored
    new = (await client.put("/v1/sessions/new", json={"model": "claude-opus-5"})).json()
    assert new["estimator"] == "claude-4.7:o200k_base"


async def test_a_report_for_an_older_estimator_does_not_calibrate_the_new_one(
    client: httpx.AsyncClient, database: Database, database_url: str
) -> None:
    """A report calibrates the estimator it was made with and no other."""
    await client.put("/v1/sessions/s", json={"model": "claude-sonnet-4-5"})
    events = [{"type": "user.message", "content": text("prose", 9_000, 1)}]
    await client.post("/v1/sessions/s/events", json={"events": events})
    path, params = "/v1/sessions/s/context", {"format": "anthropic"}
    first = (await client.get(path, params=params)).json()["tokens"]
    call = (await client.get(path, params=params)).json()["call_id"]
    usage = {"usage": {"input_tokens": first["estimate"] // 2}}
    await client.post(f"/v1/sessions/s/calls/{call}/outcome", json=usage)
    halved = (await client.get(path, params=params)).json()["tokens"]
    assert halved["estimate"] <= first["estimate"] * 0.6
    await database.execute(
        "UPDATE views SET learned = replace(learned::text, :old, 'heuristic')::jsonb", old=first["estimator"]
    )
    async with (
        serving(Settings(), database_url) as url,  # a server that was not running then
        httpx.AsyncClient(base_url=url) as newer,
    ):
        after = (await newer.get(path, params=params)).json()["tokens"]
    assert after["estimate"] == first["estimate"]
