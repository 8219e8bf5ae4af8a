"""Behaviour shared by all adapters, on the real server: plans, outages, overflows, and errors that are raised."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import httpx2
import pytest

from palimpsest import (
    AsyncPalimpsest,
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    Palimpsest,
    _chat_messages,
)
from palimpsest._adapt import Budget, FittedContext, Settings, part_change
from palimpsest._recall_tool import RECALL_DESCRIPTION, RECALL_PARAMETERS
from tests.adapters.support import POLICY, ROOM, ROUNDS, TOO_LONG, Gate, report, size, until, warnings_of


def conversation(rounds: int) -> list[dict[str, Any]]:
    """Return a user message and `rounds` rounds with a tool."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look at all depots."}]
    for n in range(rounds):
        function = {"name": "depot", "arguments": f'{{"number": {n}}}'}
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": report(n)})
    return messages


def replacement(message: dict[str, Any], step: Any) -> dict[str, Any]:
    """Return a copy of a message with a plan's content."""
    if message["role"] == "tool":
        return {**message, "content": part_change(step, message["tool_call_id"])[1]}
    raise AssertionError(f"only results are shortened here: {step}")


def insertion(one: Any) -> dict[str, Any]:
    """Return a message that the plan inserts."""
    return {"role": one["role"], "content": one["text"]}


def test_the_plan_carried_out_is_within_the_budget_and_keeps_the_very_objects(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY})
    messages = conversation(ROUNDS)
    assert size(messages) > 3 * ROOM
    fit = budget.run(budget.fit(sid, messages, model="gpt-4o", system=None))
    assert isinstance(fit, FittedContext)
    sent = fit.apply(messages, replacement, insertion)
    assert size(sent) < ROOM
    assert sent[-1] is messages[-1]
    assert sum(1 for one in sent if any(one is own for own in messages)) >= 4
    assert len(palimpsest.contexts) == 1


def test_shorter_arguments_of_a_call_are_not_its_text_too(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY})
    messages = conversation(ROUNDS)
    for message in messages[1::2]:
        message["tool_calls"][0]["function"]["arguments"] = json.dumps({"remark": "Weigh each crate. " * 90})
    fit = budget.run(budget.fit(sid, messages, model="gpt-4o"))
    assert fit is not None
    sent = fit.apply(messages, _chat_messages.replaced, _chat_messages.inserted)
    calling = [message for message in sent if message.get("tool_calls")]
    own = messages[1]["tool_calls"][0]["function"]["arguments"]
    assert any(message["tool_calls"][0]["function"]["arguments"] != own for message in calling)
    assert all(message["content"] is None for message in calling)


def test_an_observed_call_keeps_all_messages_and_is_not_retried(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY, "observe": True})
    messages = conversation(ROUNDS)
    fit = budget.run(budget.fit(sid, messages, model="gpt-4o"))
    assert fit is not None and any(step["action"] != "keep" for step in fit.plan)
    sent = fit.apply(messages, replacement, insertion)
    assert len(sent) == len(messages) and all(one is own for one, own in zip(sent, messages, strict=True))
    error = ValueError("context_length_exceeded")
    error.status_code = 400  # type: ignore[attr-defined]
    assert budget.run(budget.report_failure(fit, error)) is None
    assert len(palimpsest.contexts) == 1
    (call,) = palimpsest.client().session(sid).list_calls()
    assert call.view == "~observed"
    assert budget.passed_through == {}


def test_a_share_of_the_sessions_is_held_out(palimpsest: Gate, sid: str) -> None:
    settings: Settings = {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY, "holdout": 0.5}
    budget, messages = Budget("openai", settings), conversation(ROUNDS)
    groups: dict[bool, list[int]] = {True: [], False: []}
    for n in range(24):
        fit = budget.run(budget.fit(f"{sid}-{n}", messages, model="gpt-4o"))
        assert fit is not None
        groups[fit.is_observed].append(size(fit.apply(messages, replacement, insertion)))
    assert groups[True] and set(groups[True]) == {size(messages)}
    assert groups[False] and max(groups[False]) < ROOM


def test_a_reply_is_logged_after_its_call_only(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    messages = [{"role": "user", "content": "Hello."}]
    first, second = (budget.run(budget.fit(sid, messages)) for _ in range(2))
    assert first is not None and second is not None
    budget.run(
        budget.report_success(
            first, usage={"input_tokens": 8, "output_tokens": 2}, reply=[{"role": "assistant", "content": "Hi."}]
        )
    )
    budget.run(budget.report_success(second, reply=[{"role": "assistant", "content": "Hello you."}]))
    assert [(one.type, one.content) for one in palimpsest.events(sid)] == [
        ("user.message", "Hello."),
        ("assistant.message", "Hi."),
    ]
    assert palimpsest.outcomes[0]["usage"] == {"input_tokens": 8, "output_tokens": 2}


@pytest.mark.parametrize("mode", ["failing", "silent"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_outage_and_its_end_are_logged_once_each(
    palimpsest: Gate, sid: str, caplog: pytest.LogCaptureFixture, mode: str, asynchronous: bool
) -> None:
    caplog.set_level(logging.INFO, "palimpsest")
    budget = Budget("openai", {"client": palimpsest.client(), "timeout": 0.2 if mode == "silent" else 5.0})

    def fit(*said: str) -> FittedContext | None:
        messages = [{"role": "user", "content": text} for text in said]
        if asynchronous:
            return asyncio.run(budget.arun(budget.fit(sid, messages)))
        return budget.run(budget.fit(sid, messages))

    budget._timeout, before = 5.0, fit("one")
    assert before is not None
    palimpsest.mode = mode
    assert fit("one", "two") is None
    assert fit("one", "two", "three") is None
    budget.run(budget.report_success(before))
    assert [record.message.split(",")[0] for record in caplog.records] == ["the server is unreachable"]
    palimpsest.mode = "open"
    after = fit("one", "two", "three", "four")
    assert after is not None and after.context.head == 4
    assert fit("one", "two", "three", "four", "five") is not None
    assert [record.message.split(" at ")[0] for record in caplog.records[1:]] == ["the server is back"]


def test_messages_of_an_erased_session_are_sent_unchanged_and_logged_once(
    palimpsest: Gate, sid: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = palimpsest.client()
    settings: Settings = {"client": client, "metadata": {"user": sid}}
    budget = Budget("openai", settings)
    messages = [{"role": "user", "content": "Hello."}]
    assert budget.run(budget.fit(sid, messages)) is not None
    erasure = client.create_erasure(metadata={"user": sid})
    until(lambda: client.get_erasure(erasure.id).state == "done", 60)
    assert [budget.run(budget.fit(sid, messages)) for _ in range(3)] == [None] * 3
    assert warnings_of(caplog) == ["refused"]
    with pytest.raises(NotFoundError):
        palimpsest.events(sid)
    restarted = Budget("openai", settings)  # creates the session with its metadata, by which it can be erased
    assert restarted.run(restarted.fit(sid, messages)) is not None


def test_a_missing_server(sid: str, caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget("openai", {"client": Palimpsest(base_url="http://127.0.0.1:9")})
    assert budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}])) is None
    assert len(caplog.records) == 1


def test_an_infeasible_context_is_sent_unchanged_with_a_warning_of_its_parts(
    palimpsest: Gate, sid: str, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": 1_000, "policy": POLICY})
    assert budget.run(budget.fit(sid, [{"role": "user", "content": "word " * 5_000}])) is None
    assert re.search(r"current_turn \d{4}", caplog.text)
    assert "unreachable" not in caplog.text


def test_permanent_errors_are_raised(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "policy": "there is none of this name"})
    with pytest.raises((InvalidRequestError, NotFoundError)):
        budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}]))
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": -1})
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}]))
    budget = Budget("openai", {"client": palimpsest.client(api_key="pal_" + "x" * 43)})
    with pytest.raises(AuthenticationError):
        budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}]))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "nobody", "content": "Hello."}],
        [{"role": "system", "content": "Be brief."}],
        [],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": float("nan")}],
    ],
)
def test_refused_messages_are_sent_unchanged_and_logged_once(
    palimpsest: Gate, sid: str, caplog: pytest.LogCaptureFixture, messages: Any
) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    for _ in range(2):
        assert budget.run(budget.fit(sid, messages)) is None
    assert warnings_of(caplog) == ["refused"]
    assert budget.passed_through[sid] == 2
    assert budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}])) is not None


def test_messages_that_cannot_be_converted_are_sent_unchanged(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    assert budget.run(budget.fit(sid, ({"role": "user", "content": 1 / 0} for _ in range(1)))) is None
    assert budget.passed_through == {sid: 1}


def test_a_key_that_expires_during_a_run_does_not_end_it(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    assert budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}])) is not None
    palimpsest.mode = "locked"
    assert budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}])) is None


@pytest.mark.parametrize("path", ["outcome", "messages", "recall"])
def test_garbage_instead_of_any_answer_breaks_nothing(palimpsest: Gate, sid: str, path: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    fit = budget.run(budget.fit(sid, [{"role": "user", "content": "Hello."}]))
    assert fit is not None
    for mode in ("garbage", "hollow", "broken", "refusing"):
        palimpsest.mode = mode
        if path == "recall":
            assert isinstance(budget.run(budget.recall_result(sid, {"query": "x"})), str)
            assert "object" in budget.run(budget.recall_result(sid, ["x"]))
        elif path == "outcome":
            assert budget.run(budget.report_failure(fit, ValueError(TOO_LONG))) is None
        else:
            budget.run(budget.report_success(fit, reply=[{"role": "assistant", "content": "Hi."}]))


async def test_a_context_that_was_too_long_is_made_tighter_once(palimpsest: Gate, sid: str) -> None:
    client = AsyncPalimpsest(base_url=palimpsest.url)
    budget = Budget("openai", {"client": client, "max_tokens": 20_000, "policy": POLICY})
    messages = conversation(12)
    fit = await budget.arun(budget.fit(sid, messages))
    assert fit is not None
    error = ValueError(TOO_LONG)
    error.status_code = 400  # type: ignore[attr-defined]
    again = await budget.arun(budget.report_failure(fit, error))
    assert again is not None
    assert again.context.tokens.estimate < fit.context.tokens.estimate
    assert size(again.apply(messages, replacement, insertion)) < size(fit.apply(messages, replacement, insertion))
    assert await budget.arun(budget.report_failure(again, error)) is None
    await client.close()


def test_a_loop_that_ends_has_closed_its_connections(
    palimpsest: Gate, sid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[httpx2.AsyncClient] = []

    class Recorded(httpx2.AsyncClient):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

    budget = Budget("openai", {"client": palimpsest.client(), "policy": POLICY})
    monkeypatch.setattr(httpx2, "AsyncClient", Recorded)

    async def fit_twice() -> None:
        flows = (budget.fit(f"{sid}{n}", [{"role": "user", "content": "Hello."}]) for n in range(2))
        assert None not in await asyncio.gather(*map(budget.arun, flows))

    for number in range(1, 4):
        asyncio.run(fit_twice())
        assert [http.is_closed for http in opened] == [True] * number
        assert len(budget._of_loops) == 1


def test_a_call_that_cannot_be_repeated_gets_no_tighter_context(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": 20_000, "policy": POLICY})
    fit = budget.run(budget.fit(sid, conversation(12)))
    assert fit is not None
    assert budget.run(budget.report_failure(fit, ValueError(TOO_LONG), retry=False)) is None
    assert [answer["action"] for _, answer in palimpsest.posted("/outcome")] == ["retry"]
    assert len(palimpsest.contexts) == 1


async def test_any_other_error_is_reported_and_not_tried_again(palimpsest: Gate, sid: str) -> None:
    budget = Budget("openai", {"client": palimpsest.client()})
    fit = await budget.arun(budget.fit(sid, [{"role": "user", "content": "Hello."}]))
    assert fit is not None
    assert await budget.arun(budget.report_failure(fit, RuntimeError("overloaded"))) is None
    assert palimpsest.outcomes[0]["error"] == {"message": "overloaded"}


def test_the_recall_tool_is_the_servers_own(palimpsest: Gate, sid: str) -> None:
    function = palimpsest.client().recall_tool(format="openai")["function"]
    assert (function["description"], function["parameters"]) == (RECALL_DESCRIPTION, RECALL_PARAMETERS)
    budget = Budget("openai", {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY, "recall": True})
    budget.run(budget.fit(sid, conversation(ROUNDS)))
    assert report(1) in _content(budget.run(budget.recall_result(sid, {"seqs": [5]})))
    assert "limit" in budget.run(budget.recall_result(sid, {"limit": -1}))


def _content(answer: str) -> str:
    return "".join(item.get("content", "") for item in json.loads(answer)["items"])
