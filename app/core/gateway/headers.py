"""Header fields on their way through the gateway, in both directions: which go on, and what they may give away."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, unquote_plus

from app.core.gateway.redaction import credentials, may_be_secret

Fields = Sequence[tuple[bytes, bytes]]

OURS: Final = b"x-palimpsest-"
KEY_HEADER: Final = "x-palimpsest-key"
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_OF_THE_REQUEST: Final = frozenset((b"host", b"content-length", b"expect"))
_OF_THE_ANSWER: Final = frozenset((b"date", b"server"))
"""Every server sets its own."""


def upward(fields: Fields, *, plain: bool) -> list[tuple[bytes, bytes]]:
    """The fields of a request that go to the upstream: neither those of one connection nor ours.

    `plain`: the answer will be read here, and must not come compressed.
    """
    left_out = _OF_THE_REQUEST | _of_connection(fields) | ({b"accept-encoding"} if plain else set())
    kept = _kept(fields, left_out)
    return [*kept, (b"accept-encoding", b"identity")] if plain else kept


def downward(fields: Fields, *, changed: bool) -> list[tuple[bytes, bytes]]:
    """The fields of an answer that go to the client. `changed`: its bytes are not those that came."""
    changing = {b"content-length", b"content-encoding"} if changed else set()
    return _kept(fields, _OF_THE_ANSWER | _of_connection(fields) | changing)


def secrets(fields: Fields, query: bytes = b"") -> tuple[str, ...]:
    """The credentials in a request: what may be one, under whatever name that is not known to hold none."""
    found = {
        (field, one)
        for field, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
        for one in credentials(value)
    }
    for pair in query.decode("latin-1").split("&"):
        name, _, text = pair.partition("=")
        found |= {(unquote(name), text), (unquote(name), unquote_plus(text))}
    return tuple(sorted({value for name, value in found if may_be_secret(name, value)}))


def _of_connection(fields: Fields) -> frozenset[bytes]:
    """The fields that concern one connection only, and those that `Connection` names so."""
    named = {
        one.strip().lower() for name, value in fields if name.lower() == b"connection" for one in value.split(b",")
    }
    return _HOP_BY_HOP | named


def _kept(fields: Fields, left_out: frozenset[bytes] | set[bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value) for name, value in fields if name.lower() not in left_out and not name.lower().startswith(OURS)
    ]
