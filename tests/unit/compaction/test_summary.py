"""The prompt of a summarizing model."""

import re

import pytest

from app.core.compaction.prompt import (
    MERGE,
    NARRATIVE,
    PLANNED,
    STRUCTURED,
    STYLES,
    TURN_START,
    Completion,
    Style,
    history_prompt,
    merge_prompt,
    retry_prompt,
    unwrapped,
)
from app.providers import load_prompts

PROMPTS = load_prompts()


def test_every_named_prompt_exists() -> None:
    assert set(PROMPTS) >= {style.key for style in (STRUCTURED, PLANNED, NARRATIVE, TURN_START)} | {MERGE}
    assert set(STYLES) == {"structured", "planned", "narrative"}


@pytest.mark.parametrize("style", [STRUCTURED, NARRATIVE, TURN_START])
def test_a_prompt_asks_for_exactly_the_headings_of_its_style(style: Style) -> None:
    assert tuple(re.findall(r"^#+ (.*)$", PROMPTS[style.key], re.MULTILINE)) == style.sections


def test_a_first_summary_is_asked_for_with_the_conversation_alone() -> None:
    ask = history_prompt(PROMPTS, "[User]: hello", "", 800)
    assert ask.prompt == "<conversation>\n[User]: hello\n</conversation>\n\nWrite the summary of the conversation now."
    assert (ask.max_tokens, ask.temperature, ask.model) == (800, 0.2, None)
    assert "At most 400 words." in ask.system
    assert "{" not in ask.system


def test_the_earlier_summary_the_constraints_and_the_focus_are_given() -> None:
    ask = history_prompt(
        PROMPTS,
        "[User]: on",
        "We began </previous-summary> well",
        800,
        focus=" the\nbuild ",
        constraints=["Never push."],
    )
    assert ask.prompt.startswith(
        "<conversation>\n[User]: on\n</conversation>\n\n"
        "<previous-summary>\nWe began &lt;/previous-summary> well\n</previous-summary>\n\n"
        "<constraints>\n- Never push.\n</constraints>\n\n"
        "Additional focus: the build\n\n"
    )
    assert "do not repeat what stands there" in ask.prompt


def test_a_cumulative_summary_carries_over_the_one_before() -> None:
    ask = history_prompt(PROMPTS, "[User]: on", "We began", 800, cumulative=True)
    assert "takes the place of the previous summary" in ask.prompt
    assert "do not repeat" not in ask.prompt


def test_the_beginning_of_a_turn_has_headings_of_its_own() -> None:
    ask = history_prompt(PROMPTS, "[User]: big", "", 400, style=TURN_START, focus="tests")
    assert "## Context for Suffix" in ask.system
    assert "Additional focus: tests" in ask.prompt


def test_a_merge_keeps_the_order_and_asks_for_the_same_form() -> None:
    ask = merge_prompt(PROMPTS, ["older", "newer </summary>"], 800, constraints=["Never push."])
    assert ask.system.startswith(PROMPTS[STRUCTURED.key][:40])
    assert ask.system.endswith(PROMPTS[MERGE].strip())
    assert ask.prompt.startswith(
        '<summaries>\n<summary number="1">\nolder\n</summary>\n\n'
        '<summary number="2">\nnewer &lt;/summary>\n</summary>\n</summaries>\n\n<constraints>\n- Never push.\n'
    )


def test_a_second_attempt_includes_the_complaints() -> None:
    ask = history_prompt(PROMPTS, "[User]: hello", "", 10)
    second = retry_prompt(ask, Completion("x" * 100, "m"), ["It is too long.", "It was cut off."])
    assert second.prompt.startswith(ask.prompt)
    assert "<rejected-answer>\n" + "x" * 60 + "...(truncated)\n</rejected-answer>" in second.prompt
    assert "- It is too long.\n- It was cut off." in second.prompt
    assert (second.system, second.max_tokens) == (ask.system, ask.max_tokens)
    assert "<rejected-answer>" not in retry_prompt(ask, Completion(" ", "m"), ["It was empty."]).prompt


@pytest.mark.parametrize(
    "wrapped",
    [
        "  ## Goal\nx\n",
        "```\n## Goal\nx\n```",
        "```markdown\n## Goal\nx\n```\n",
        "<summary>\n## Goal\nx\n</summary>",
        "<think>let me see</think>\n## Goal\nx",
        "<thinking>a</thinking>```md\n<summary>## Goal\nx</summary>\n```",
    ],
)
def test_wrapping_around_a_summary_is_removed(wrapped: str) -> None:
    assert unwrapped(wrapped) == "## Goal\nx"


def test_a_fence_inside_a_summary_stays() -> None:
    text = "## Goal\n```\nmake\n```"
    assert unwrapped(text) == text
