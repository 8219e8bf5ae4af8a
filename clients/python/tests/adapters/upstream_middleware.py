"""A pytest plugin that adds our middleware to every agent of LangChain's own tests."""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import factory
from langgraph.checkpoint.memory import InMemorySaver

from palimpsest import Palimpsest
from palimpsest.langchain import PalimpsestMiddleware

_create_agent = factory.create_agent


def create_agent(*args: Any, middleware: Any = (), **more: Any) -> Any:
    """Return an agent with our middleware after its own."""
    client = Palimpsest(base_url=os.environ["PALIMPSEST_URL"])
    return _create_agent(*args, middleware=[*middleware, PalimpsestMiddleware(uuid4().hex, client=client)], **more)


if "PALIMPSEST_URL" in os.environ:
    factory.create_agent = create_agent


@pytest.fixture(params=["memory"])
def sync_checkpointer() -> InMemorySaver:
    """Return the checkpointer of their `conftest.py`, which needs servers for its other kinds."""
    return InMemorySaver()
