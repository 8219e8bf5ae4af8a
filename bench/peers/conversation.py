"""The conversation that every side holds: a user message, a tool call, its result and a response, repeated.

It imports only the standard library, because a peer's process has an environment of its own.
"""

import json
from random import Random
from typing import Any, Final

BUDGET_TOKENS: Final = 8_000
NEWEST: Final = 100
"""Number of newest events that fit the budget, for peers whose only limit is a number of events."""
_WORDS: Final = (
    "after again and answer before build call change check client code config count default each error every fails "
    "field file first folder found from function has import index into is it key last left line list log made main "
    "method module more name new next not number of old once only open order other over page path place read request "
    "result return row same second server session set should size some state still store table test than that the then "
    "there time to token two type under until update use value was when where which why with work write"
)
VOCABULARY: Final = tuple(_WORDS.split())
USER_WORDS, CALL_WORDS, RESULT_WORDS, ANSWER_WORDS = 36, 14, 174, 60

Message = dict[str, Any]
"""A message of OpenAI's chat completions, which every side converts to its own form."""


def message(number: int) -> Message:
    """Return the message of a number, counted from 0: deterministic, and unlike any other."""
    call_id = f"call_{number // 4}"
    match number % 4:
        case 0:
            return {"role": "user", "content": _text(number, USER_WORDS)}
        case 1:
            arguments = {"path": f"src/module_{number}.py", "query": _text(number, CALL_WORDS)}
            function = {"name": "search", "arguments": json.dumps(arguments)}
            call = {"id": call_id, "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case 2:
            return {"role": "tool", "tool_call_id": call_id, "content": _text(number, RESULT_WORDS)}
        case _:
            return {"role": "assistant", "content": _text(number, ANSWER_WORDS)}


def _text(seed: int, words: int) -> str:
    return " ".join(Random(seed).choices(VOCABULARY, k=words))
