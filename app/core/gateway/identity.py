"""The session that a model call belongs to, according to its headers, its path or its body."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.core.errors import InvalidRequest
from app.core.log.events import SESSION_ID_PATTERN, Json

SESSION_HEADER: Final = "x-palimpsest-session"
NAME_CHARS_MAX: Final = 110
"""Length of the longest name that is made here, so that the ids of lines and a key's prefix still fit."""
USER_CHARS_MAX: Final = 4_096
"""A longer `user_id` is not searched for the session that Claude Code writes into it."""

_NAME: Final = re.compile(SESSION_ID_PATTERN)
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._:@-]")
_SESSION_OF_USER: Final = re.compile(r"_session_([A-Za-z0-9-]{8,})$")


@dataclass(frozen=True, slots=True)
class Identity:
    """A session's name. `configured` names were configured for Palimpsest; others are the client's own."""

    session: str
    configured: bool


def identify(headers: Mapping[str, str], path: str | None, body: Mapping[str, Json] | None) -> Identity | None:
    """Return the session of a call; None if nothing names one.

    `headers` have lower-case names, `path` is the URL's name. Names for Palimpsest come first: its header, then the
    path. Then come the names that clients send by default: Claude Code, Codex, opencode, and Anthropic's
    `metadata.user_id`. Cache keys and system prompts do not count: they change within a session and are shared between
    sessions. Raises InvalidRequest for an illegal name.
    """
    for name, where in ((headers.get(SESSION_HEADER), SESSION_HEADER), (path, "sid")):
        if name is not None:
            if _NAME.fullmatch(name) is None:
                raise InvalidRequest(f"{where} must match {SESSION_ID_PATTERN}", field=where)
            return Identity(name, configured=True)
    sent = _from_headers(headers) or _from_body(body)
    return None if sent is None else Identity(legal_name(sent), configured=False)


def legal_name(text: str) -> str:
    """Return a session's name for any text: the text if it is legal, else a legal name that ends with its hash."""
    if len(text) <= NAME_CHARS_MAX and _NAME.fullmatch(text) is not None:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{_ILLEGAL.sub('-', text)[: NAME_CHARS_MAX - 1 - len(digest)]}.{digest}"


def _from_headers(headers: Mapping[str, str]) -> str | None:
    """Return the name in the client's own headers; each agent or thread of a session has a log of its own."""
    for session_name, part_name in (
        ("x-claude-code-session-id", "x-claude-code-agent-id"),
        ("session-id", "thread-id"),
    ):
        session, part = headers.get(session_name), headers.get(part_name)
        if session:
            return session if not part or part == session else f"{session}:{part}"
    return headers.get("thread-id") or headers.get("x-session-id") or None


def _from_body(body: Mapping[str, Json] | None) -> str | None:
    """Return Anthropic's `metadata.user_id`, or the session that Claude Code writes into it."""
    metadata = None if body is None else body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or not user:
        return None
    if user.startswith("{") and len(user) <= USER_CHARS_MAX:
        try:
            session = json.loads(user).get("session_id")
        except (ValueError, RecursionError):
            session = None
        if isinstance(session, str) and session:
            return session
    found = _SESSION_OF_USER.search(user)
    return found[1] if found else user
