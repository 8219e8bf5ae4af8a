"""A pytest plugin that replaces the SDK's own `SQLiteSession` by ours in the SDK's own tests."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import agents

from palimpsest import Palimpsest
from palimpsest.openai_agents import PalimpsestSession


class Ours(PalimpsestSession):
    """A session with the arguments of `SQLiteSession`. Each database of a test has sessions of its own."""

    def __init__(self, session_id: str, db_path: Any = None, **settings: Any) -> None:
        own = uuid4() if db_path in (None, ":memory:") else db_path
        apart = blake2b(f"{own}".encode(), digest_size=8).hexdigest()
        super().__init__(f"{session_id}-{apart}", client=Palimpsest(base_url=os.environ["PALIMPSEST_URL"]), **settings)

    def close(self) -> None:
        """Do nothing."""


agents.SQLiteSession = Ours  # type: ignore[misc]
