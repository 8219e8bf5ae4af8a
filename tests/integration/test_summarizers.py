"""Both SDKs against both providers on loopback: their responses, and the classification of every failure."""

import asyncio
import base64
import json
import traceback
from collections.abc import AsyncIterator

import pytest

from app.core.compaction.gate import complaints
from app.core.compaction.prompt import STRUCTURED, TURN_START, Completion, Prompt, history_prompt
from app.providers import ProviderError, Summarizer, load_prompts
from app.wings.summarizers.anthropic import Anthropic
from app.wings.summarizers.client import ANSWER_BYTES_MAX
from app.wings.summarizers.openai import OpenAI
from tests.support import summarizers as stand_in
from tests.support.bombs import Memory, bomb
from tests.support.summarizers import Summarizers, summarizers

ASK = history_prompt(
    load_prompts(),
    "[User]: Fix the build. Never touch app/main.py.",
    "",
    640,
    constraints=["Never touch app/main.py."],
)
KEY = "sk-summaries-0123456789abcdef"
LONG = 30.0
SHORT = 0.05


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[Summarizers]:
    async with summarizers() as servers:
        yield servers


@pytest.fixture
def servers(running: Summarizers) -> Summarizers:
    running.reset()
    return running


@pytest.fixture(params=["anthropic", "openai"])
async def model(request: pytest.FixtureRequest, servers: Summarizers) -> AsyncIterator[Summarizer]:
    made: Summarizer
    if request.param == "anthropic":
        made = Anthropic(model="stand-in-1", api_key=KEY, base_url=servers.anthropic_url)
    else:
        made = OpenAI(model="stand-in-1", api_key=KEY, base_url=servers.openai_url)
    yield made
    await made.aclose()


async def failure_of(model: Summarizer, *, within: float = LONG) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await model.summarize(ASK, timeout=within)
    return caught.value


def faults(answer: Completion) -> tuple[str, ...]:
    return complaints(
        answer,
        source_tokens=10_000,
        tokens=len(answer.text) // 4,
        max_tokens=640,
        sections=STRUCTURED.sections,
        constraints=["Never touch app/main.py."],
    )


async def test_a_summary_has_its_usage_and_passes_the_gate(servers: Summarizers, model: Summarizer) -> None:
    answer = await model.summarize(ASK, timeout=LONG)
    assert answer.model == "stand-in-1"
    assert answer.input_tokens and answer.output_tokens
    assert not faults(answer)
    [asked] = servers.requests
    assert (asked.system, asked.prompt) == (ASK.system, ASK.prompt)
    assert (asked.max_tokens, asked.temperature) == (640, 0.2)
    assert "tools" not in asked.body
    assert KEY in asked.headers.get("x-api-key", "") + asked.headers.get("authorization", "")


async def test_usage_that_a_provider_does_not_name_is_not_known(servers: Summarizers, model: Summarizer) -> None:
    parts = {"content": [{"type": "text", "text": "x"}], "choices": [{"message": {"content": "x"}}]}
    usage = {"output_tokens": 3, "completion_tokens": 3}
    servers.queue(stand_in.body(json.dumps({"type": "message", "model": "m", **parts, "usage": usage})))
    answer = await model.summarize(ASK, timeout=LONG)
    assert (answer.text, answer.input_tokens, answer.output_tokens) == ("x", None, 3)


async def test_a_request_may_name_another_model(servers: Summarizers, model: Summarizer) -> None:
    answer = await model.summarize(Prompt("s", "p", 10, 0.0, model="stand-in-2"), timeout=LONG)
    assert answer.model == servers.requests[0].model == "stand-in-2"


async def test_the_stand_in_writes_a_valid_prefix_too(model: Summarizer) -> None:
    answer = await model.summarize(
        history_prompt(load_prompts(), "[User]: go", "", 400, style=TURN_START), timeout=LONG
    )
    assert answer.text.startswith("## Original Request")


async def test_a_slow_answer_is_awaited(servers: Summarizers, model: Summarizer) -> None:
    release = asyncio.Event()
    servers.queue(stand_in.slow(release))
    waiting = asyncio.create_task(model.summarize(ASK, timeout=LONG))
    await servers.wait_for_requests(1)
    assert not waiting.done()
    release.set()
    assert not faults(await waiting)


async def test_no_answer_in_time_is_a_timeout(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(servers.never())
    error = await failure_of(model, within=SHORT)
    assert (error.kind, error.retryable) == ("timeout", True)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (429, "rate_limited", True),
        (500, "server", True),
        (502, "server", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
        (401, "auth", False),
        (403, "auth", False),
        (400, "invalid", False),
        (404, "invalid", False),
        (413, "context_too_long", False),
    ],
)
async def test_a_status_is_a_kind_of_failure_and_is_not_retried_here(
    servers: Summarizers, model: Summarizer, code: int, kind: str, retryable: bool
) -> None:
    servers.queue(stand_in.status(code, message=f"no, not with {KEY}" if code in (401, 403) else "no"))
    error = await failure_of(model)
    assert (error.kind, error.retryable, error.retry_after) == (kind, retryable, None)
    assert str(code) in error.detail
    assert KEY not in error.detail
    assert len(servers.requests) == 1


@pytest.mark.parametrize("code", [200, 400, 429, 500])
@pytest.mark.parametrize("quoted", [KEY, base64.b64encode(KEY.encode()).decode(), KEY.replace("-", "%2D")])
async def test_a_key_that_the_provider_repeats_is_in_no_error(
    servers: Summarizers, model: Summarizer, code: int, quoted: str
) -> None:
    if code == 200:
        servers.queue(stand_in.body(f'{{"error": {{"message": "not with {quoted}"}}}}'))
    else:
        servers.queue(stand_in.status(code, message=f"not with {quoted}"))
    error = await failure_of(model)
    assert "[key]" in error.detail or code == 200  # the text of that response is cut off
    assert quoted[:12] not in f"{error}{error.detail}{''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_an_answer_without_end_is_a_failure_and_is_not_held(
    servers: Summarizers, model: Summarizer, encoding: str
) -> None:
    raw = bomb() if encoding == "gzip" else b'{"content": "' + b"x" * 2 * ANSWER_BYTES_MAX
    servers.queue(stand_in.body(raw, encoding=encoding))
    memory = Memory()
    error = await failure_of(model)
    assert (error.kind, error.retryable) == ("connection", True)
    assert "too large" in error.detail
    assert memory.growth() < 250_000_000


async def test_an_answer_of_very_many_values_is_a_failure(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.body('{"content": [' + "[]," * 200_000 + "[]]}"))
    assert "too large" in (await failure_of(model)).detail


async def test_a_compressed_answer_is_read(servers: Summarizers, model: Summarizer) -> None:
    servers.compress = True
    try:
        assert not faults(await model.summarize(ASK, timeout=LONG))
    finally:
        servers.compress = False


async def test_a_rate_limit_says_how_long_to_wait(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.status(429, retry_after=7))
    error = await failure_of(model)
    assert (error.kind, error.retry_after) == ("rate_limited", 7.0)


async def test_a_quota_that_is_used_up_is_no_rate_limit(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.status(429, message="You exceeded your current quota, please check your plan"))
    error = await failure_of(model)
    assert (error.kind, error.retryable) == ("spent", False)


async def test_a_prompt_that_is_too_long_is_refused_until_it_is_shorter(
    servers: Summarizers, model: Summarizer
) -> None:
    servers.queue(stand_in.context_too_long(len(ASK.prompt)))
    for _ in range(2):
        error = await failure_of(model)
        assert (error.kind, error.retryable, error.room) == ("context_too_long", False, len(ASK.prompt))
    halved = Prompt(ASK.system, ASK.prompt[: len(ASK.prompt) // 2], 640, 0.2)
    assert (await model.summarize(halved, timeout=LONG)).text
    assert not faults(await model.summarize(ASK, timeout=LONG))


async def test_an_answer_cut_off_says_so(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.cut_off())
    answer = await model.summarize(ASK, timeout=LONG)
    assert answer.cut_off
    assert any("cut off" in fault for fault in faults(answer))


async def test_a_refusal_says_so(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.refusal())
    answer = await model.summarize(ASK, timeout=LONG)
    assert answer.declined
    assert len(faults(answer)) == 1


@pytest.mark.parametrize("behaviour", [stand_in.empty(), stand_in.error_text()], ids=["empty", "error text"])
async def test_an_invalid_summary_is_stopped_by_the_gate(
    servers: Summarizers, model: Summarizer, behaviour: stand_in.Behaviour
) -> None:
    servers.queue(behaviour)
    answer = await model.summarize(ASK, timeout=LONG)
    assert not answer.declined
    assert len(faults(answer)) == 1


async def test_wrapping_is_taken_off(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(stand_in.ok("<think>hm\n</think>\n```markdown\n## Goal\nx\n```"))
    assert (await model.summarize(ASK, timeout=LONG)).text == "## Goal\nx"


@pytest.mark.parametrize(
    "behaviour",
    [
        stand_in.body("<html>Welcome to the proxy</html>", content_type="text/html"),
        stand_in.body("{"),
        stand_in.body("{}"),
        stand_in.body("[]"),
        stand_in.body("null"),
        stand_in.body('{"content": ["x"], "choices": ["x"]}'),
        stand_in.body('{"choices": []}'),
        stand_in.body('{"error": {"code": 502, "message": "upstream"}}'),
    ],
)
async def test_an_answer_in_no_protocol_is_the_servers_fault(
    servers: Summarizers, model: Summarizer, behaviour: stand_in.Behaviour
) -> None:
    servers.queue(behaviour)
    assert (await failure_of(model)).kind == "server"


async def test_a_missing_server_is_a_failed_connection() -> None:
    for model in (
        Anthropic(model="m", api_key="k", base_url="http://127.0.0.1:9"),
        OpenAI(model="m", api_key="k", base_url="http://127.0.0.1:9/v1"),
    ):
        error = await failure_of(model)
        assert (error.kind, error.retryable) == ("connection", True)
        await model.aclose()


async def test_a_parameter_that_a_model_does_not_take_is_left_out_from_then_on(
    servers: Summarizers, model: Summarizer
) -> None:
    servers.default = stand_in.rejecting("temperature")
    assert not faults(await model.summarize(ASK, timeout=LONG))
    assert not faults(await model.summarize(ASK, timeout=LONG))
    assert [asked.temperature for asked in servers.requests] == [0.2, None, None]


async def test_the_limit_goes_by_the_name_that_the_server_knows(servers: Summarizers) -> None:
    model = OpenAI(model="stand-in-1", api_key="k", base_url=servers.openai_url)
    servers.default = stand_in.rejecting("max_tokens")
    await model.summarize(ASK, timeout=LONG)
    assert [("max_tokens" in asked.body, asked.max_tokens) for asked in servers.requests] == [(True, 640), (False, 640)]
    await model.aclose()


async def test_a_request_that_its_caller_gives_up_is_given_up(servers: Summarizers, model: Summarizer) -> None:
    servers.queue(servers.never())
    waiting = asyncio.create_task(model.summarize(ASK, timeout=LONG))
    await servers.wait_for_requests(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not faults(await model.summarize(ASK, timeout=LONG))
