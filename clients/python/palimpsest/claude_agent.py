"""A `SessionStore` for the Claude Agent SDK: mirror its transcripts to Palimpsest, and resume from there.

Use `ClaudeAgentOptions(session_store=PalimpsestSessionStore())`. Messages, tool calls and tool results become events of
a session's log, so that they can be searched, recalled, forked and audited. Each transcript entry is stored with them
and is returned unchanged.

A store does not budget model calls, since the SDK's own process makes them. For that, point the SDK at the gateway.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from claude_agent_sdk.types import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
)

from palimpsest._names import session_name
from palimpsest.client import AsyncPalimpsest
from palimpsest.errors import IdempotencyConflictError, InvalidRequestError, NotFoundError
from palimpsest.types import EventIn, SessionOut

PROJECT, SESSION, SUBPATH = "claude_project", "claude_session", "claude_subpath"
"""The metadata of a session: the key of its transcript."""
ENTRY = "claude_entry"
"""The metadata of an event: the transcript entry it was made from, as JSON text; of several events, on the first."""
EVENTS_PER_APPEND_MAX = 1000
PAGE = 1000


class PalimpsestSessionStore(SessionStore):
    """Transcripts in Palimpsest, one session for each transcript, and one for each sub-agent's.

    Errors are raised: the SDK attempts an append three times and then notifies its caller (`MirrorErrorMessage`) while
    the agent continues; a resume fails if the server is unreachable.
    """

    def __init__(self, client: AsyncPalimpsest | None = None) -> None:
        self._client = client or AsyncPalimpsest()
        self._is_own = client is None
        self._known: set[str] = set()

    async def aclose(self) -> None:
        """Close the connections, unless a client was given."""
        if self._is_own:
            await self._client.close()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries in their order. An entry whose `uuid` was appended before changes nothing."""
        if not entries:
            return
        session = self._client.session(session_id(key))
        if session.id not in self._known:
            await session.put_session(metadata=_metadata(key))
            self._known.add(session.id)
        try:
            await self._append(session.id, [event for entry in entries for event in _events(entry)])
        except (InvalidRequestError, IdempotencyConflictError):
            for entry in entries:
                await self._append_one(session.id, entry)

    async def _append_one(self, session: str, entry: SessionStoreEntry) -> None:
        """Append an entry; if the log refuses its message, such as a result without its call, append it as a note."""
        try:
            await self._append(session, [*_events(entry)])
        except InvalidRequestError:
            with suppress(IdempotencyConflictError):
                await self._append(session, [*_events(entry, read=False)])
        except IdempotencyConflictError:  # its uuid was appended before
            pass

    async def _append(self, session: str, events: Sequence[EventIn]) -> None:
        for at in range(0, len(events), EVENTS_PER_APPEND_MAX):
            await self._client.session(session).append_events(events=events[at : at + EVENTS_PER_APPEND_MAX])

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries of a transcript as they were appended; None if there are none."""
        session = self._client.session(session_id(key))
        try:
            texts = [
                event.metadata[ENTRY]
                async for event in session.list_events(limit=PAGE)
                if event.metadata and ENTRY in event.metadata
            ]
        except NotFoundError:
            return None
        return [json.loads(text) for text in texts] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the main transcripts of a project, each with the time of its last append."""
        return [
            {"session_id": one.metadata[SESSION], "mtime": int(one.updated_at.timestamp() * 1000)}
            async for one in self._transcripts({PROJECT: project_key})
            if one.metadata[SUBPATH] is None
        ]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's sub-agents."""
        of_session = {PROJECT: key["project_key"], SESSION: key["session_id"]}
        return [
            one.metadata[SUBPATH] async for one in self._transcripts(of_session) if one.metadata[SUBPATH] is not None
        ]

    async def delete(self, key: SessionKey) -> None:
        """Erase a transcript, and with a main transcript those of its sub-agents."""
        keys = [key]
        if not key.get("subpath"):
            of_session: SessionListSubkeysKey = {"project_key": key["project_key"], "session_id": key["session_id"]}
            keys += [{**of_session, "subpath": one} for one in await self.list_subkeys(of_session)]
        for one in keys:
            session = self._client.session(session_id(one))
            self._known.discard(session.id)
            try:
                await session.delete_session()
            except NotFoundError:
                continue

    async def _transcripts(self, wanted: Mapping[str, str]) -> AsyncIterator[SessionOut]:
        async for one in self._client.list_sessions(metadata=wanted, limit=PAGE):
            if SUBPATH in one.metadata and wanted.items() <= one.metadata.items():
                yield one


def session_id(key: SessionKey) -> str:
    """Return the id of a transcript's session in Palimpsest."""
    subpath = key.get("subpath")
    return session_name("claude", key["project_key"], key["session_id"], *([subpath] if subpath else []))


def _metadata(key: SessionKey) -> dict[str, Any]:
    return {PROJECT: key["project_key"], SESSION: key["session_id"], SUBPATH: key.get("subpath")}


def _events(entry: SessionStoreEntry, *, read: bool = True) -> Iterator[EventIn]:
    """Yield the events of an entry: if `read`, one for its message's text and one for each tool call or result."""
    of_message = [*_message_events(entry)] if read else []
    for at, event in enumerate(of_message or [_hidden_note(entry)]):
        if at == 0:
            event["metadata"] = {ENTRY: json.dumps(entry)}
        if "uuid" in entry:
            event["id"] = entry["uuid"] if at == 0 else f"{entry['uuid']}.{at}"
        yield event


def _message_events(entry: Mapping[str, Any]) -> Iterator[EventIn]:
    message = entry.get("message")
    if entry["type"] not in ("user", "assistant") or not isinstance(message, Mapping):
        return
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    rest = []
    for block in blocks or ():
        kind = block.get("type")
        if kind == "tool_use":
            yield {"type": "tool.call", "call_id": block["id"], "tool": block["name"], "arguments": block.get("input")}
        elif kind == "tool_result":
            result: EventIn = {"type": "tool.result", "call_id": block["tool_use_id"]}
            result["content"] = block.get("content") or ""
            if block.get("is_error"):
                result["is_error"] = True
            yield result
        else:
            rest.append(block)
    if rest:
        yield {"type": "user.message" if entry["type"] == "user" else "assistant.message", "content": rest}


def _hidden_note(entry: Mapping[str, Any]) -> EventIn:
    """Return the event for an entry without a message; it is already expired, so that no context shows it."""
    return {"type": "agent.note", "content": entry["type"], "ttl_seconds": 1, "occurred_at": "1970-01-01T00:00:00Z"}
