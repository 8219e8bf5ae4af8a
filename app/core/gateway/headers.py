"""Header fields that pass through the gateway in either direction, and the credentials in them."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, unquote_plus

from app.core.gateway.redaction import credentials, may_be_secret

Fields = Sequence[tuple[bytes, bytes]]

_OWN_PREFIX: Final = b"x-palimpsest-"
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
_NOT_SENT_UP: Final = frozenset((b"host", b"content-length", b"expect"))
_NOT_SENT_DOWN: Final = frozenset((b"date", b"server"))
"""Every server sets its own."""


def request_fields(fields: Fields, *, plain: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request to send upstream, without hop-by-hop fields and ours.

    `plain`: the gateway reads the response, which must not be compressed.
    """
    left_out = _NOT_SENT_UP | _of_connection(fields) | ({b"accept-encoding"} if plain else set())
    kept = _kept(fields, left_out)
    return [*kept, (b"accept-encoding", b"identity")] if plain else kept


def response_fields(fields: Fields, *, changed: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of a response to send to the client. `changed`: its bytes are not those that were received."""
    changing = {b"content-length", b"content-encoding"} if changed else set()
    return _kept(fields, _NOT_SENT_DOWN | _of_connection(fields) | changing)


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


def _of_connection(fields: Fields) -> frozenset[bytes]:
    """Return the hop-by-hop fields, including those that `Connection` names."""
    named = {
        one.strip().lower() for name, value in fields if name.lower() == b"connection" for one in value.split(b",")
    }
    return _HOP_BY_HOP | named


def _kept(fields: Fields, left_out: frozenset[bytes] | set[bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in left_out and not name.lower().startswith(_OWN_PREFIX)
    ]
