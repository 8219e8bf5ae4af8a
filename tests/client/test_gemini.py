"""Gemini's requests and responses as values; its turns with an agent are those of all formats (test_agents)."""

import pytest
from google.genai.errors import ClientError
from google.genai.types import GenerateContentConfig
from palimpsest._sending import error_report
from palimpsest.formats.gemini import GEMINI, ContentStream

from tests.client.agents import TOOLS


def test_gemini_takes_the_fields_of_its_config() -> None:
    request = {"systemInstruction": {"parts": [{"text": "A"}]}, "contents": [], "tools": [TOOLS["gemini"]]}
    told = {"system_instruction": request["systemInstruction"], "tools": request["tools"]}
    for config in ({"temperature": 0.5}, GenerateContentConfig(temperature=0.5)):
        given = GEMINI.arguments(request, {"model": "m", "config": config})
        assert given == {"contents": [], "model": "m", "config": {**told, "temperature": 0.5}}
    assert GEMINI.arguments({"contents": []}, {}) == {"contents": []}
    for config in ({"systemInstruction": "B"}, GenerateContentConfig(system_instruction="B")):
        with pytest.raises(TypeError, match="system_instruction comes from the session"):
            GEMINI.arguments(request, {"config": config})
    with pytest.raises(TypeError, match="contents comes from the session"):
        GEMINI.arguments(request, {"contents": "B"})


def test_signed_parts_and_calls_without_ids_come_together_whole() -> None:
    stream = ContentStream()
    pieces = [{"text": "Hm", "thought": True}, {"text": ".", "thought": True}, {"text": "I "}, {"text": "look."}]
    call = {"functionCall": {"name": "f", "args": {"é": 1}}}
    parts = [*pieces, {"text": "", "thoughtSignature": "c2ln"}, {"text": ""}, {"text": "!"}, call, call]
    for part in parts:
        stream.feed({"candidates": [{"content": {"parts": [part], "role": "model"}}], "usageMetadata": {}})
    assert stream.begun and not stream.ended
    last = {"finishReason": "STOP", "content": {}}
    stream.feed({"candidates": [last], "usageMetadata": {"promptTokenCount": 5, "thoughtsTokenCount": 2}})
    assert stream.ended and stream.text == "I look.!"
    answer = GEMINI.read(stream.response())
    assert answer.messages == [
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "I look."},
                {"text": "", "thoughtSignature": "c2ln"},
                {"text": "!"},
                call,
                call,
            ],
        }
    ]
    assert [(one.id, one.arguments) for one in answer.tool_calls] == [("f#1", {"é": 1}), ("f#2", {"é": 1})]
    assert (answer.content, answer.stop_reason) == ("I look.!", "STOP")
    assert answer.usage == {"input_tokens": 5, "output_tokens": 2}
    refused = GEMINI.read({"prompt_feedback": {"block_reason": "SAFETY"}})
    assert (refused.messages, refused.tool_calls, refused.stop_reason) == ([], [], "SAFETY")


def test_a_google_error_is_reported_by_status_and_code() -> None:
    error = ClientError(400, {"error": {"message": "too long", "status": "INVALID_ARGUMENT"}})
    assert error_report(error) == {"message": str(error), "status": 400, "code": "INVALID_ARGUMENT"}
    assert error_report(RuntimeError()) == {"message": "RuntimeError"}
