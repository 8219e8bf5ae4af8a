"""The OpenAI Agents SDK's `SQLAlchemySession`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from agents.extensions.memory import SQLAlchemySession

from bench.peers.conversation import NEWEST, Message
from bench.peers.process import serve

Item = dict[str, Any]
AT_ONCE: Final = 50
"""Items of one call while filling: a call's items share a timestamp, and reading must sort those."""


class OpenAIAgents:
    """`add_items`, and `get_items` with a limit, which is a number of items: the SDK counts no tokens."""

    def __init__(self, session: SQLAlchemySession) -> None:
        self._session = session

    def native(self, given: Message) -> Item:
        """Return an input item of OpenAI's responses."""
        if given["role"] == "tool":
            return {"type": "function_call_output", "call_id": given["tool_call_id"], "output": given["content"]}
        for call in given.get("tool_calls", ()):
            return {"type": "function_call", "call_id": call["id"], **call["function"]}
        return {"role": given["role"], "content": given["content"]}

    async def fill(self, natives: Sequence[Item]) -> None:
        for start in range(0, len(natives), AT_ONCE):
            await self._session.add_items(list(natives[start : start + AT_ONCE]))

    async def append(self, native: Item) -> None:
        await self._session.add_items([native])

    async def context(self) -> Sequence[Item]:
        items: list[Item] = await self._session.get_items(limit=NEWEST)
        return items


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[OpenAIAgents]:
    session = SQLAlchemySession.from_url("one", url=url, create_tables=True)
    yield OpenAIAgents(session)
    await session.engine.dispose()


if __name__ == "__main__":
    serve(opened, "openai-agents")
