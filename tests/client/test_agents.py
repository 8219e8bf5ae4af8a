"""An agent's turn with each SDK, whole and streamed: its events, its reports, and the calls left to the agent."""

import base64
import json
from typing import Any

import pytest

from tests.client.agents import Asynchronous, Blocking
from tests.client.wire import ANTHROPIC_TOO_LONG, SIGNED, TOO_LONG, ScriptedError, ScriptedReply, provider, scripted

pytestmark = [pytest.mark.wing("audit"), pytest.mark.wing("recall")]

Agent = type[Blocking] | type[Asynchronous]
AGENTS = pytest.mark.parametrize("agent", [Blocking, Asynchronous])
FORMATS = pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
STREAMED = pytest.mark.parametrize("stream", [False, True])
AT_ONCE = {"summarize": {"enabled": False}}
"""A policy under which no retry waits for a summary, since there is no worker here."""


def messages(format: str, *texts: str) -> list[dict[str, Any]]:
    """Return a conversation in a format, the user's and the model's texts in turn."""
    if format == "gemini":
        return [{"role": ("user", "model")[n % 2], "parts": [{"text": text}]} for n, text in enumerate(texts)]
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


@AGENTS
@FORMATS
@STREAMED
async def test_a_turn_with_two_calls_at_once(server: str, agent: Agent, format: str, stream: bool) -> None:
    script = scripted(
        ScriptedReply("I look.", [("lookup", {"order": 1}), ("lookup", {"order": 2})]),
        ScriptedReply("Both are sent off."),
    )
    async with provider(script) as models:
        one = agent(server, models.url, format)
        await one.begin()
        told = await one.turn(
            "Where are orders 1 and 2?", lambda call: {"order": call.arguments["order"], "at": "sea"}, stream=stream
        )
        await one.begin()  # a program that restarts with the same prompt and tools
        events, calls = await one.events(), await one.calls()
        await one.close()

    assert told.contents == ["I look.", "Both are sent off."]
    assert (told.chunks > 5) == stream or (format == "gemini" and told.chunks > 3)  # in its streams a call is one chunk
    names = [event.type for event in events]
    assert names == [
        "system.prompt",
        "tools",
        "user.message",
        "assistant.message",
        "tool.call",
        "tool.call",
        "tool.result",
        "tool.result",
        "assistant.message",
    ]
    calls_made, results = events[4:6], events[6:8]
    assert [event.call_id for event in calls_made] == [event.call_id for event in results]
    assert [json.loads(event.content) for event in results] == [{"order": 1, "at": "sea"}, {"order": 2, "at": "sea"}]
    said = events[8].content  # a text, or parts, which may include a thought and a signature
    assert said == "Both are sent off." or "Both are sent off." in [part.get("text") for part in said]

    reported = [call.outcome.usage for call in calls]
    assert len(calls) == 2
    assert all(usage.output_tokens == 7 and usage.cache_read_tokens == 3 for usage in reported)
    assert all(call.outcome.latency_ms is not None and call.outcome.error is None for call in calls)
    sent = models.requests[0]
    assert sent["model"] == calls[0].model
    tools = json.dumps(sent["tools"])
    assert '"lookup"' in tools and '"recall"' in tools
    assert "You look after orders." in json.dumps(sent)
    if format == "gemini":  # a changed signature is refused
        signed = [part for one in models.requests[1]["contents"] for part in one["parts"] if "thoughtSignature" in part]
        assert [part["functionCall"]["args"] for part in signed] == [{"order": 1}]
        assert base64.urlsafe_b64decode(signed[0]["thoughtSignature"]) == SIGNED % (1, 0)


@AGENTS
@FORMATS
@STREAMED
async def test_a_context_that_was_too_long_is_requested_again_once(
    server: str, agent: Agent, format: str, stream: bool
) -> None:
    refusal = ANTHROPIC_TOO_LONG if format == "anthropic" else TOO_LONG
    async with provider(scripted(refusal, ScriptedReply("Done."))) as models:
        one = agent(server, models.url, format, max_tokens=20_000, policy=AT_ONCE)
        await one.begin()
        facts = [f"Fact {n}: " + "the goods were weighed and wrapped. " * 60 for n in range(20)]
        await one.log(*messages(format, *(text for fact in facts for text in (fact, "Noted."))))
        told = await one.turn("Go on.", str, stream=stream)
        calls = await one.calls()
        await one.close()
    assert told.contents == ["Done."]
    assert [call.outcome.overflow for call in calls] == [False, True]
    assert calls[0].retry_of == calls[1].call_id
    assert len(json.dumps(models.requests[1])) < len(json.dumps(models.requests[0]))


@AGENTS
async def test_an_overflow_event_is_retried_invisibly(server: str, agent: Agent) -> None:
    refusal = ScriptedError(
        200, "Your input exceeds the context window of this model.", "context_length_exceeded", in_stream=True
    )
    async with provider(scripted(refusal, ScriptedReply("Done."))) as models:
        one = agent(server, models.url, "openai-responses", max_tokens=20_000, policy=AT_ONCE)
        told = await one.turn("Go on.", str, stream=True)
        calls = await one.calls()
        await one.close()
    assert told.contents == ["Done."]
    assert calls[0].retry_of == calls[1].call_id
    assert calls[1].outcome.overflow


@AGENTS
@FORMATS
async def test_a_second_overflow_is_the_providers_error(server: str, agent: Agent, format: str) -> None:
    refusal = ANTHROPIC_TOO_LONG if format == "anthropic" else TOO_LONG
    async with provider(scripted(refusal)) as models:
        one = agent(server, models.url, format, policy=AT_ONCE)
        with pytest.raises(Exception, match=r"too long|maximum context length") as raised:
            await one.turn("Go on.", str)
        calls = await one.calls()
        await one.close()
    assert type(raised.value).__name__ == ("ClientError" if format == "gemini" else "BadRequestError")
    assert len(models.requests) == len(calls) == 2
    assert all(call.outcome.overflow for call in calls)


@AGENTS
@FORMATS
async def test_the_providers_other_errors_are_reported_and_raised_as_they_are(
    server: str, agent: Agent, format: str
) -> None:
    async with provider(scripted(ScriptedError(529 if format == "anthropic" else 503, "We are busy."))) as models:
        one = agent(server, models.url, format)
        with pytest.raises(Exception, match=r"We are busy\.") as raised:
            await one.turn("Go on.", str)
        (call,) = await one.calls()
        await one.close()
    status = raised.value.code if format == "gemini" else raised.value.status_code  # type: ignore[attr-defined]
    assert call.outcome.error.status == status
    assert "We are busy." in call.outcome.error.message
    assert len(models.requests) == 1


def model_with_recall(body: dict[str, Any]) -> ScriptedReply:
    """Respond by a script: look up an order, recall order 3, or return the recalled value."""
    items = body.get("messages") or body.get("input") or body.get("contents") or []
    if "What is the secret" in json.dumps(items):
        seen = "The secret of order 3 is amber" in json.dumps(items)
        return (
            ScriptedReply("It is amber.") if seen else ScriptedReply(calls=[("recall", {"query": "secret of order 3"})])
        )
    asked = [one for one in items if "Look up order" in json.dumps(one)][-1]
    number = json.dumps(asked).rpartition("Look up order ")[2].partition(".")[0]
    looked = [one for one in items[items.index(asked) :] if "weighed" in json.dumps(one)]
    return ScriptedReply("Noted.") if looked else ScriptedReply(calls=[("lookup", {"order": int(number)})])


def lookup(call: Any) -> str:
    """Return a long record, with the value that is asked for later in its middle, which no stub shows."""
    order = call.arguments["order"]
    lines = [f"Line {n} of order {order}: the goods were weighed, wrapped and put on shelf {n}." for n in range(100)]
    lines.insert(50, f"The secret of order {order} is amber." if order == 3 else "Nothing else is known.")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("agent", "format", "stream"),
    [
        (Blocking, "openai", False),
        (Asynchronous, "openai", True),
        (Asynchronous, "openai-responses", False),
        (Blocking, "anthropic", True),
        (Asynchronous, "gemini", True),
    ],
)
async def test_recalls_are_answered_and_never_seen(server: str, agent: Agent, format: str, stream: bool) -> None:
    async with provider(model_with_recall) as models:
        one = agent(server, models.url, format, max_tokens=8_000)
        await one.begin()
        for order in range(1, 9):
            await one.turn(f"Look up order {order}.", lookup, stream=stream)
        told = await one.turn("What is the secret of order 3?", lookup, stream=stream)
        events = await one.events()
        await one.close()
    assert told.contents == ["It is amber."]
    assert told.left_out[-1] > 0
    assert max(len(json.dumps(body)) for body in models.requests) / 3.5 < 8_000
    (recall,) = [event for event in events if event.tool == "recall"]
    (result,) = [event for event in events if event.call_id == recall.call_id and event.type == "tool.result"]
    assert json.loads(result.content)["items"]


@AGENTS
@FORMATS
async def test_a_broken_stream_keeps_its_text(server: str, agent: Agent, format: str) -> None:
    said = "One two three four five."
    async with provider(
        scripted(ScriptedReply(said, [("lookup", {"order": 1})], breaks_after=3), ScriptedReply("Again."))
    ) as models:
        one = agent(server, models.url, format)
        with pytest.raises(Exception) as raised:
            await one.turn("Go.", str, stream=True)
        told = await one.turn("And now?", str, stream=True)
        events, calls = await one.events(), await one.calls()
        await one.close()
    assert "StopIteration" not in type(raised.value).__name__
    (partial,) = [event for event in events if event.metadata == {"partial": True}]
    assert partial.content == "One two three"
    assert "tool.call" not in [event.type for event in events]
    assert calls[1].outcome.error is not None
    assert told.contents == ["Again."]
