"""An agent loop with the openai SDK: every call's context comes from Palimpsest.

make run                                     # in another terminal
OPENAI_API_KEY=... python -m examples.openai_agent my-session "What is 17 times 4711?"

PALIMPSEST_URL and PALIMPSEST_API_KEY name another server than the one on this machine. The session is erased at the
end, unless --keep is given.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from openai import APIStatusError, AsyncOpenAI

from examples.memory import Json, Memory, server

Tool = Callable[..., Awaitable[str]]


async def turn(memory: Memory, client: AsyncOpenAI, model: str, tools: Mapping[str, Tool], text: str) -> str:
    """Run one turn: the user's message, the model's calls and their results, the model's response.

    Each call takes one request, which appends what is new, reports the call before, and gets the context. So a response
    with tool calls is appended with their results: if a tool ends the program, the log ends before that response.
    """
    context = await memory.context({"role": "user", "content": text})
    while True:
        call_id, answer = await _ask(memory, client, model, context)
        message, usage = answer.choices[0].message, _usage(answer.usage)
        new: list[Json] = [message.model_dump(exclude_none=True)]
        if not message.tool_calls:
            await memory.log(*new)
            await memory.report(call_id, usage=usage)
            return message.content or ""
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "recall":
                result = json.dumps(await memory.recall(arguments, call_id))
            else:
                result = await tools[call.function.name](**arguments)
            new.append({"role": "tool", "tool_call_id": call.id, "content": result})
        context = await memory.context(*new, outcome={"call_id": call_id, "usage": usage})


async def _ask(memory: Memory, client: AsyncOpenAI, model: str, context: Json) -> tuple[str, Any]:
    """Return the id of the call and the model's response; after an overflow a tighter context is requested once."""
    while True:
        call_id = context["call_id"]
        try:
            return call_id, await client.chat.completions.create(model=model, **context["request"])
        except APIStatusError as error:
            outcome = await memory.report(call_id, error={"status": error.status_code, "message": str(error)})
            if outcome["action"] != "retry":
                raise
            context = await memory.context(retry_of=call_id)


def _usage(usage: Any) -> Json:
    details = usage.prompt_tokens_details
    return {
        "input_tokens": usage.prompt_tokens,
        "cache_read_tokens": details.cached_tokens if details else None,
        "output_tokens": usage.completion_tokens,
    }


MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "The product of two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


async def multiply(a: int, b: int) -> str:
    """Return the product of two numbers."""
    return str(a * b)


async def main(model: str = "gpt-5-mini") -> None:
    """Run each argument after the first, a new session's name, as a turn. --keep leaves the session on the server."""
    session, *texts = [argument for argument in sys.argv[1:] if argument != "--keep"]
    async with server() as http, AsyncOpenAI() as openai:
        memory = Memory(http, session, "openai", model, max_tokens=32_000)
        await memory.begin("You are a careful assistant.", [MULTIPLY])
        try:
            for text in texts:
                print(await turn(memory, openai, model, {"multiply": multiply}, text))
        finally:
            if "--keep" not in sys.argv:
                await memory.erase()


if __name__ == "__main__":
    asyncio.run(main())
