"""The smallest agent with a shell: it sends all of its messages with each call, and marks the last one as cached."""

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any, Final

import anthropic

from bench.tasks.local import SUBMIT, TASKS

STEPS_MAX: Final = 40
BASH: Final = {
    "name": "bash",
    "description": "Run a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


async def work(task: str, address: str, folder: Path) -> tuple[str, str]:
    """Work on a local task; return the reason for the end and the submitted patch, as runners' agents do."""
    statement = next(one.statement for one in TASKS if one.name == task)
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": statement}]}]
    async with anthropic.AsyncAnthropic(base_url=address, api_key="a-key", max_retries=0) as client:
        for _ in range(STEPS_MAX):
            messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
            try:
                reply = await client.messages.create(
                    model="claude-sonnet-5", max_tokens=1000, tools=[BASH], messages=messages
                )
            except anthropic.APIStatusError as error:
                return type(error).__name__, ""
            del messages[-1]["content"][-1]["cache_control"]
            call = next(block for block in reply.content if block.type == "tool_use")
            output = await _run(call.input["command"], folder / "repository")
            if output.startswith(SUBMIT):
                return "Submitted", output.partition("\n")[2]
            messages.append(
                {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in reply.content]}
            )
            messages.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": output or " "}]}
            )
    return "LimitsExceeded", ""


async def _run(command: str, folder: Path) -> str:
    process = await asyncio.create_subprocess_shell(command, cwd=folder, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return output.decode()
