"""A database's address in the form that each library wants.

SQLAlchemy is imported only for an address: commands that use no database have settings without one.
"""

from typing import Final

_SCHEMES: Final = frozenset({"postgres", "postgresql", "postgresql+asyncpg"})
_PARAMETERS: Final = frozenset({"host", "port", "ssl"})


def for_sqlalchemy(url: str) -> str:
    """Return a URL for SQLAlchemy with asyncpg. Raises ValueError for a URL that would not work."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError("is no URL of the form postgresql://user:password@host:port/database") from None
    if parsed.drivername not in _SCHEMES:
        raise ValueError("must begin with postgresql://")
    query = {"ssl" if name == "sslmode" else name: value for name, value in parsed.query.items()}
    unknown = sorted(query.keys() - _PARAMETERS)
    if unknown:
        raise ValueError(f"has the parameter {unknown[0]!r}; sslmode, host and port are understood")
    return parsed.set(drivername="postgresql+asyncpg", query=query).render_as_string(hide_password=False)


def for_asyncpg(url: str) -> str:
    """Return the same address for asyncpg itself, which takes libpq's parameters."""
    from sqlalchemy.engine import make_url

    parsed = make_url(url)
    query = {"sslmode" if name == "ssl" else name: value for name, value in parsed.query.items()}
    return parsed.set(drivername="postgresql", query=query).render_as_string(hide_password=False)
