"""An agent loop with the anthropic SDK: every call's context comes from Palimpsest.

make run                                     # in another terminal
ANTHROPIC_API_KEY=... python -m examples.anthropic_agent my-session "What is 17 times 4711?"

PALIMPSEST_URL and PALIMPSEST_API_KEY name another server than the one on this machine. The session is erased at the
end, unless --keep is given.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from anthropic import APIStatusError, AsyncAnthropic

from examples.memory import Json, Memory, server

Tool = Callable[..., Awaitable[str]]
OUTPUT_TOKENS_MAX = 1_024


async def turn(memory: Memory, client: AsyncAnthropic, model: str, tools: Mapping[str, Tool], text: str) -> str:
    """Run one turn: the user's message, the model's calls and their results, the model's response.

    Each call takes one request, which appends what is new, reports the call before, and gets the context. So a response
    with tool calls is appended with their results: if a tool ends the program, the log ends before that response.
    """
    context = await memory.context({"role": "user", "content": text})
    while True:
        call_id, answer = await _ask(memory, client, model, context)
        said = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
        calls, usage = [block for block in answer.content if block.type == "tool_use"], _usage(answer.usage)
        if not calls:
            await memory.log(said)
            await memory.report(call_id, usage=usage)
            return "".join(block.text for block in answer.content if block.type == "text")
        results = []
        for call in calls:
            if call.name == "recall":
                result = json.dumps(await memory.recall(call.input, call_id))
            else:
                result = await tools[call.name](**call.input)
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
        outcome = {"call_id": call_id, "usage": usage}
        context = await memory.context(said, {"role": "user", "content": results}, outcome=outcome)


async def _ask(memory: Memory, client: AsyncAnthropic, model: str, context: Json) -> tuple[str, Any]:
    """Return the id of the call and the model's response; after an overflow a tighter context is requested once."""
    while True:
        call_id = context["call_id"]
        try:
            given = {"model": model, "max_tokens": OUTPUT_TOKENS_MAX, **context["request"]}
            return call_id, await client.messages.create(**given)
        except APIStatusError as error:
            outcome = await memory.report(call_id, error={"status": error.status_code, "message": str(error)})
            if outcome["action"] != "retry":
                raise
            context = await memory.context(retry_of=call_id)


def _usage(usage: Any) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_input_tokens,
        "cache_write_tokens": usage.cache_creation_input_tokens,
        "output_tokens": usage.output_tokens,
    }


MULTIPLY = {
    "name": "multiply",
    "description": "The product of two integers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


async def multiply(a: int, b: int) -> str:
    """Return the product of two numbers."""
    return str(a * b)


async def main(model: str = "claude-haiku-5-5") -> None:
    """Run each argument after the first, a new session's name, as a turn. --keep leaves the session on the server."""
    session, *texts = [argument for argument in sys.argv[1:] if argument != "--keep"]
    async with server() as http, AsyncAnthropic() as anthropic:
        memory = Memory(http, session, "anthropic", model, max_tokens=32_000)
        await memory.begin("You are a careful assistant.", [MULTIPLY])
        try:
            for text in texts:
                print(await turn(memory, anthropic, model, {"multiply": multiply}, text))
        finally:
            if "--keep" not in sys.argv:
                await memory.erase()


if __name__ == "__main__":
    asyncio.run(main())
