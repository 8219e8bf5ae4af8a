"""Headers of calls: the session that they name, the fields that pass in either direction, and their credentials."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_plus

from app.core.log.events import SESSION_ID_PATTERN, Json
from app.http.auth import session_of_client
from app.providers.failures import credentials, may_be_secret

Fields = Sequence[tuple[bytes, bytes]]

NAME_CHARS_MAX: Final = 110
"""Length of the longest name that is made here, so that the ids of lines and a key's prefix still fit."""
USER_CHARS_MAX: Final = 4_096
"""A longer `user_id` is not searched for the session that Claude Code writes into it."""
_NAME: Final = re.compile(SESSION_ID_PATTERN)
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._:@-]")
_SESSION_OF_USER: Final = re.compile(r"_session_([A-Za-z0-9-]{8,})$")
_OWN_PREFIX: Final = b"x-palimpsest-"
KEY_HEADER: Final = "x-palimpsest-key"
_HOP_BY_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}
_NOT_SENT_UP: Final = {b"host", b"content-length", b"expect"}
_NOT_SENT_DOWN: Final = {b"date", b"server"}
"""Every server sets its own."""


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
    name = session_of_client(headers, path, SESSION_ID_PATTERN)
    if name is not None:
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


def request_fields(fields: Fields, *, plain: bool, without_beta: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request to send upstream, without hop-by-hop fields and ours.

    `plain`: the gateway reads the response, which must not be compressed. `without_beta`: the name of a beta feature
    that the request no longer uses.
    """
    left_out = _NOT_SENT_UP | _hop_by_hop(fields) | ({b"accept-encoding"} if plain else set())
    kept = _without(fields, left_out)
    if without_beta is not None:
        kept = [field for one in kept if (field := _without_beta(*one, without_beta.encode())) is not None]
    return [*kept, (b"accept-encoding", b"identity")] if plain else kept


def _without_beta(name: bytes, value: bytes, beta: bytes) -> tuple[bytes, bytes] | None:
    """Return a field without a beta feature; None if it names no other."""
    betas = [one.strip() for one in value.split(b",")]
    if name.lower() != b"anthropic-beta" or beta not in betas:
        return name, value
    others = [one for one in betas if one != beta]
    return (name, b",".join(others)) if others else None


def response_fields(fields: Fields, *, changed: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of a response to send to the client. `changed`: its bytes are not those that were received."""
    changing = {b"content-length", b"content-encoding"} if changed else set()
    return _without(fields, _NOT_SENT_DOWN | _hop_by_hop(fields) | changing)


def secrets(fields: Fields, query: bytes = b"") -> tuple[str, ...]:
    """Return the values in a request that may be credentials, under any name that is not known to be public."""
    found = {
        (field, one)
        for field, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
        for one in credentials(value)
    }
    for pair in query.decode("latin-1").split("&"):
        name, _, text = pair.partition("=")
        found |= {(unquote(name), text), (unquote(name), unquote_plus(text))}
    return tuple(sorted({value for name, value in found if may_be_secret(name, value)}))


def _hop_by_hop(fields: Fields) -> set[bytes]:
    """Return the hop-by-hop fields, including those that `Connection` names."""
    named = {
        one.strip().lower() for name, value in fields if name.lower() == b"connection" for one in value.split(b",")
    }
    return _HOP_BY_HOP | named


def _without(fields: Fields, left_out: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in left_out and not name.lower().startswith(_OWN_PREFIX)
    ]
