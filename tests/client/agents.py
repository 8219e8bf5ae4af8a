"""An agent in eight variants: four SDKs, blocking and not. A turn runs until the model calls no more tools."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from google.genai import Client
from google.genai.client import AsyncClient
from google.genai.types import HttpOptions
from openai import AsyncOpenAI, OpenAI
from palimpsest import AsyncPalimpsest, AsyncSession, Palimpsest, Session

MODELS = {
    "openai": "gpt-4o",
    "openai-responses": "gpt-4o",
    "anthropic": "claude-sonnet-5-5",
    "gemini": "gemini-2.5-flash",
}
EXTRA: dict[str, dict[str, Any]] = {
    "openai": {},
    "openai-responses": {},
    "anthropic": {"max_tokens": 500},
    "gemini": {},
}
SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
WORDS = "All that is known of an order."
TOOLS: dict[str, dict[str, Any]] = {
    "openai": {"type": "function", "function": {"name": "lookup", "description": WORDS, "parameters": SCHEMA}},
    "openai-responses": {"type": "function", "name": "lookup", "description": WORDS, "parameters": SCHEMA},
    "anthropic": {"name": "lookup", "description": WORDS, "input_schema": SCHEMA},
    "gemini": {"functionDeclarations": [{"name": "lookup", "description": WORDS, "parametersJsonSchema": SCHEMA}]},
}


@dataclass
class TurnResult:
    """The results that the agent received."""

    contents: list[str] = field(default_factory=list)
    chunks: int = 0
    left_out: list[int] = field(default_factory=list)


class Blocking:
    """A blocking agent, in a thread of its own."""

    def __init__(self, url: str, provider: str, format: str, session: str = "s", **settings: Any) -> None:
        self.client = Palimpsest(base_url=url)
        # Each format is a str here, and a Literal there.
        self.memory: Session = self.client.session(session, model=MODELS[format], format=format, **settings)  # type: ignore[arg-type]
        self.format = format
        self.sdk: Anthropic | OpenAI | Client
        self.functions: tuple[Any, Any]
        """The SDK's methods for a whole response and for a streamed one, with the arguments in `streaming`."""
        self.streaming: tuple[dict[str, Any], dict[str, Any]] = ({}, {"stream": True})
        if format == "gemini":
            self.sdk = Client(api_key="k", http_options=HttpOptions(base_url=provider))
            self.functions = self.sdk.models.generate_content, self.sdk.models.generate_content_stream
            self.streaming = {}, {}
        elif format == "anthropic":
            self.sdk = Anthropic(base_url=provider, api_key="k", max_retries=0)
            self.functions = (self.sdk.messages.create,) * 2
        else:
            self.sdk = OpenAI(base_url=f"{provider}/v1", api_key="k", max_retries=0)
            create = self.sdk.chat.completions.create if format == "openai" else self.sdk.responses.create
            self.functions = (create,) * 2

    async def begin(self) -> None:
        await asyncio.to_thread(self._begin)

    def _begin(self) -> None:
        self.memory.system("You look after orders.")
        self.memory.tools([TOOLS[self.format]])

    async def turn(self, text: str, run: Callable[[Any], Any], *, stream: bool = False) -> TurnResult:
        return await asyncio.to_thread(self._turn, text, run, stream)

    def _turn(self, text: str, run: Callable[[Any], Any], stream: bool) -> TurnResult:
        told = TurnResult()
        self.memory.user(text)
        function, extra = self.functions[stream], EXTRA[self.format] | self.streaming[stream]
        while True:
            with self.memory.call() as call:
                reply = call.send(function, **extra)
                told.chunks += sum(1 for _ in reply)
            told.contents.append(reply.content)
            told.left_out.append(len(call.left_out))
            if not reply.tool_calls:
                return told
            self.memory.results(run(one) for one in reply.tool_calls)

    async def turn_in_steps(self, text: str, run: Callable[[Any], Any], *, stream: bool = False) -> TurnResult:
        return await asyncio.to_thread(self._turn_in_steps, text, run, stream)

    def _turn_in_steps(self, text: str, run: Callable[[Any], Any], stream: bool) -> TurnResult:
        told = TurnResult()
        function, extra = self.functions[stream], EXTRA[self.format] | self.streaming[stream]
        with self.memory.turn(text) as turn:
            while True:
                reply = turn.send(function, **extra)
                told.chunks += sum(1 for _ in reply)
                told.contents.append(reply.content)
                told.left_out.append(len(turn.left_out))
                if not reply.tool_calls:
                    return told
                turn.results(run(one) for one in reply.tool_calls)

    async def log(self, *messages: Any) -> None:
        await asyncio.to_thread(self.memory.log, *messages)

    async def events(self) -> list[Any]:
        return await asyncio.to_thread(lambda: list(self.memory.list_events()))

    async def calls(self) -> list[Any]:
        return await asyncio.to_thread(lambda: [self.memory.get_call(one.call_id) for one in self.memory.list_calls()])

    async def close(self) -> None:
        self.client.close()
        self.sdk.close()


class Asynchronous:
    """An asynchronous agent."""

    def __init__(self, url: str, provider: str, format: str, session: str = "s", **settings: Any) -> None:
        self.client = AsyncPalimpsest(base_url=url)
        # Each format is a str here, and a Literal there.
        self.memory: AsyncSession = self.client.session(session, model=MODELS[format], format=format, **settings)  # type: ignore[arg-type]
        self.format = format
        self.sdk: AsyncAnthropic | AsyncOpenAI | AsyncClient
        self.functions: tuple[Any, Any]
        """The SDK's methods for a whole response and for a streamed one, with the arguments in `streaming`."""
        self.streaming: tuple[dict[str, Any], dict[str, Any]] = ({}, {"stream": True})
        if format == "gemini":
            self.sdk = Client(api_key="k", http_options=HttpOptions(base_url=provider)).aio
            self.functions = self.sdk.models.generate_content, self.sdk.models.generate_content_stream
            self.streaming = {}, {}
        elif format == "anthropic":
            self.sdk = AsyncAnthropic(base_url=provider, api_key="k", max_retries=0)
            self.functions = (self.sdk.messages.create,) * 2
        else:
            self.sdk = AsyncOpenAI(base_url=f"{provider}/v1", api_key="k", max_retries=0)
            create = self.sdk.chat.completions.create if format == "openai" else self.sdk.responses.create
            self.functions = (create,) * 2

    async def begin(self) -> None:
        await self.memory.system("You look after orders.")
        await self.memory.tools([TOOLS[self.format]])

    async def turn(self, text: str, run: Callable[[Any], Any], *, stream: bool = False) -> TurnResult:
        told = TurnResult()
        await self.memory.user(text)
        function, extra = self.functions[stream], EXTRA[self.format] | self.streaming[stream]
        while True:
            async with self.memory.call() as call:
                reply = await call.send(function, **extra)
                async for _ in reply:
                    told.chunks += 1
            told.contents.append(reply.content)
            told.left_out.append(len(call.left_out))
            if not reply.tool_calls:
                return told
            await self.memory.results([run(one) for one in reply.tool_calls])

    async def turn_in_steps(self, text: str, run: Callable[[Any], Any], *, stream: bool = False) -> TurnResult:
        told = TurnResult()
        function, extra = self.functions[stream], EXTRA[self.format] | self.streaming[stream]
        async with self.memory.turn(text) as turn:
            while True:
                reply = await turn.send(function, **extra)
                async for _ in reply:
                    told.chunks += 1
                told.contents.append(reply.content)
                told.left_out.append(len(turn.left_out))
                if not reply.tool_calls:
                    return told
                await turn.results([run(one) for one in reply.tool_calls])

    async def log(self, *messages: Any) -> None:
        await self.memory.log(*messages)

    async def events(self) -> list[Any]:
        return [one async for one in self.memory.list_events()]

    async def calls(self) -> list[Any]:
        return [await self.memory.get_call(one.call_id) async for one in self.memory.list_calls()]

    async def close(self) -> None:
        await self.client.close()
        await (self.sdk.aclose() if isinstance(self.sdk, AsyncClient) else self.sdk.close())
