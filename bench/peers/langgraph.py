"""LangGraph's `AsyncPostgresSaver` with `trim_messages`; with `delta` as a second argument, on a `DeltaChannel`."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypedDict

from langchain_core.messages import BaseMessage, convert_to_messages, trim_messages
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from bench.peers.conversation import BUDGET_TOKENS, Message
from bench.peers.process import serve

THREAD: Final = {"configurable": {"thread_id": "one"}}


class DeltaState(TypedDict):
    """The messages in LangGraph's beta form: the additions of each update, and from time to time a snapshot."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


class LangGraph:
    """`aupdate_state`, and `aget_state` with `trim_messages`, counting approximately as the documentation advises."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def native(self, given: Message) -> BaseMessage:
        """Return a message of LangChain's."""
        (made,) = convert_to_messages([given | {"content": given["content"] or ""}])
        return made

    async def fill(self, natives: Sequence[BaseMessage]) -> None:
        await self._graph.aupdate_state(THREAD, {"messages": list(natives)}, as_node="model")

    async def append(self, native: BaseMessage) -> None:
        await self._graph.aupdate_state(THREAD, {"messages": [native]}, as_node="model")

    async def context(self) -> Sequence[BaseMessage]:
        state = await self._graph.aget_state(THREAD)
        kept: list[BaseMessage] = trim_messages(
            state.values["messages"],
            max_tokens=BUDGET_TOKENS,
            token_counter="approximate",
            strategy="last",
            start_on="human",
            include_system=True,
        )
        return kept


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[LangGraph]:
    async with AsyncPostgresSaver.from_conn_string(url.replace("+asyncpg", "", 1)) as saver:
        await saver.setup()
        graph: Any = StateGraph(DeltaState if "delta" in sys.argv[2:] else MessagesState)
        graph.add_node("model", lambda state: {"messages": []})
        graph.add_edge(START, "model")
        yield LangGraph(graph.compile(checkpointer=saver))


if __name__ == "__main__":
    serve(opened, "langgraph", "langgraph-checkpoint-postgres", "langchain-core")
