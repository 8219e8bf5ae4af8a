"""Reported usage: a figure that a provider did not name is left out, and 0 is one that it did name."""

from typing import Any

import pytest
from anthropic.types import Usage
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails
from palimpsest import _blocks
from palimpsest.formats import FORMATS
from palimpsest.types import UsageIn

from examples import anthropic_agent, openai_agent

READERS = {
    "openai": {"usage": {"prompt_tokens": 5}},
    "openai-responses": {"usage": {"input_tokens": 5}},
    "anthropic": {"usage": {"input_tokens": 5}},
    "gemini": {"usageMetadata": {"promptTokenCount": 5}},
}
"""The minimal usage in a response, by format."""


def read(form: str, **more: Any) -> UsageIn | None:
    [(name, usage)] = READERS[form].items()
    return FORMATS[form].read({name: {**usage, **more}}).usage


@pytest.mark.parametrize("form", FORMATS)
def test_a_figure_that_was_not_named_is_left_out(form: str) -> None:
    assert read(form) == {"input_tokens": 5}
    [name] = READERS[form]
    assert FORMATS[form].read({name: {"total": 5}}).usage is None


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    ("form", "named", "reported"),
    [
        ("openai", "prompt_tokens_details.cached_tokens", "cache_read_tokens"),
        ("openai", "prompt_tokens_details.cache_write_tokens", "cache_write_tokens"),
        ("openai", "completion_tokens", "output_tokens"),
        ("openai-responses", "input_tokens_details.cached_tokens", "cache_read_tokens"),
        ("openai-responses", "input_tokens_details.cache_write_tokens", "cache_write_tokens"),
        ("openai-responses", "output_tokens", "output_tokens"),
        ("anthropic", "cache_read_input_tokens", "cache_read_tokens"),
        ("anthropic", "cache_creation_input_tokens", "cache_write_tokens"),
        ("anthropic", "output_tokens", "output_tokens"),
        ("gemini", "cachedContentTokenCount", "cache_read_tokens"),
        ("gemini", "cached_content_token_count", "cache_read_tokens"),
        ("gemini", "candidatesTokenCount", "output_tokens"),
        ("gemini", "thoughtsTokenCount", "output_tokens"),
    ],
)
def test_a_figure_that_was_named_is_reported(form: str, named: str, reported: str, count: int) -> None:
    def said(value: int | None) -> dict[str, Any]:
        *outer, name = named.split(".")
        return {outer[0]: {name: value}} if outer else {name: value}

    assert read(form, **said(count)) == {"input_tokens": 5, reported: count}
    assert read(form, **said(None)) == {"input_tokens": 5}


@pytest.mark.parametrize(
    ("figures", "reported"),
    [
        ((None, None, None, None), None),
        ((50, None, None, None), {"input_tokens": 50}),
        ((50, 0, 7, 0), {"input_tokens": 50, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 7}),
        ((50, 20, None, 5), {"input_tokens": 25, "cache_read_tokens": 20, "cache_write_tokens": 5}),
        ((None, None, 7, None), {"output_tokens": 7}),
    ],
)
def test_cached_input_is_separate_if_the_provider_named_it(figures: Any, reported: Any) -> None:
    assert _blocks.usage(*figures) == reported


def test_the_examples_leave_out_what_was_not_named() -> None:
    def named(usage: dict[str, Any]) -> dict[str, Any]:
        return {name: count for name, count in usage.items() if count is not None}

    least = {"input_tokens": 5, "output_tokens": 7}
    assert named(anthropic_agent._usage(Usage(**least))) == least
    said = named(anthropic_agent._usage(Usage(**least, cache_read_input_tokens=0)))
    assert said == {**least, "cache_read_tokens": 0}
    chat: Any = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    zero = PromptTokensDetails(cached_tokens=0)
    for details, more in ((None, {}), (PromptTokensDetails(), {}), (zero, {"cache_read_tokens": 0})):
        said = named(openai_agent._usage(CompletionUsage(**chat, prompt_tokens_details=details)))
        assert said == {**least, **more}
