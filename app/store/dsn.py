"""Database URLs in the form that each library expects. They are read and written as SQLAlchemy does it, but without
importing SQLAlchemy for this alone."""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote

_SCHEME: Final = "postgresql+asyncpg"
_SCHEMES: Final = frozenset({"postgres", "postgresql", _SCHEME})
_PARAMETERS: Final = frozenset({"host", "port", "ssl", "target_session_attrs"})
_TARGETS: Final = frozenset({"any", "primary", "read-write"})
# A password may contain anything but "@", so that nobody needs to know which characters a URL must quote.
_URL: Final = re.compile(
    r"(?P<scheme>[\w+]+)://"
    r"(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?P<host>\[[^/?]+\]|[^/:?]+)?(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
# More hosts may follow the first host's port, as in libpq.
_PORT: Final = re.compile(r"\d*(?:,(?:\[[^,\]]+\]|[^,:\[\]]+)(?::\d+)?)*", re.ASCII)


def normalize(url: str, password: str | None = None) -> str:
    """Return a database URL in its normalized form, `postgresql+asyncpg://…`; `password` is added if it has none.
    Raises ValueError if it cannot work."""
    found = _parse(url)
    if password is not None and found["password"] is None:
        if not found["user"]:
            raise ValueError("has no user name for PALIMPSEST_DATABASE_PASSWORD to apply to")
        found["password"] = quote(password, safe="")
    if found["scheme"] not in _SCHEMES:
        raise ValueError("must begin with postgresql://")
    query = _query(found, {"sslmode": "ssl"})
    unknown = sorted({name for name, _ in query} - _PARAMETERS)
    if unknown:
        known = "sslmode, host, port and target_session_attrs are understood"
        raise ValueError(f"has the parameter {unknown[0]!r}; {known}")
    target = dict(query).get("target_session_attrs", "any")
    if target not in _TARGETS:
        raise ValueError(f"has target_session_attrs={target}: it must be one of {', '.join(sorted(_TARGETS))}")
    return _format(_SCHEME, found, query)


def for_asyncpg(url: str) -> str:
    """Return the same address for asyncpg, which takes libpq's parameters."""
    found = _parse(url)
    return _format("postgresql", found, _query(found, {"ssl": "sslmode"}))


def hosts(url: str) -> tuple[str, ...]:
    """Return an asyncpg URL for each host of a URL, in its order; if there are several, each must take writes."""
    found = _parse(url)
    listed = f"{found['host'] or ''}:{found['port'] or ''}".removesuffix(":").split(",")
    if len(listed) == 1:
        return (for_asyncpg(url),)
    query = [("target_session_attrs", "read-write"), *_query(found, {"ssl": "sslmode"})]
    return tuple(_format("postgresql", {**found, "host": one, "port": None}, query) for one in listed)


def _parse(url: str) -> dict[str, str | None]:
    found = _URL.match(url)
    if found is None or not (found["port"] is None or _PORT.fullmatch(found["port"])):
        raise ValueError("is no URL of the form postgresql://user:password@host:port/database")
    return found.groupdict()


def _query(found: Mapping[str, str | None], names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the parameters, renamed by `names`."""
    return [(names.get(name, name), value) for name, value in parse_qsl(found["query"] or "")]


def _format(scheme: str, found: Mapping[str, str | None], query: Sequence[tuple[str, str]]) -> str:
    """Return the URL in its normalized spelling."""
    password = "" if found["password"] is None else f":{_quote(found['password'])}"
    user = "" if found["user"] is None else f"{_quote(found['user'])}{password}@"
    port = f":{found['port'].lstrip('0') or '0'}" if found["port"] else ""
    database = "" if found["database"] is None else f"/{_quote(found['database'], '/')}"
    text = "&".join(f"{name}={quote_plus(value)}" for name, value in sorted(query, key=lambda pair: pair[0]))
    return f"{scheme}://{user}{found['host'] or ''}{port}{database}{text and '?' + text}"


def _quote(part: str, kept: str = "") -> str:
    return quote(unquote(part), safe=f" +{kept}")
