"""Conditions on the metadata of sessions."""

from collections.abc import Iterator, Mapping

from app.core.errors import InvalidRequest
from app.core.log.events import Json


def has_values(metadata: Json, wanted: Json, *, exact: bool) -> bool:
    """Return whether metadata has the wanted value; for an object, all of its named fields.

    A list must be equal if `exact`; otherwise it must contain all of the wanted items, in any order.
    """
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            name in metadata and has_values(metadata[name], value, exact=exact) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(metadata, list):
            return False
        if exact:
            return _equal(metadata, wanted)
        return all(any(has_values(one, value, exact=False) for one in metadata) for value in wanted)
    return _equal(metadata, wanted)


def check_names_values(metadata: Mapping[str, Json]) -> None:
    """Raise InvalidRequest unless a condition names a value: an undefined variable must not match everybody's sessions.

    The condition must hold neither an empty object nor an empty list, and at least one text, number, true or false.
    """
    if any(value in ({}, []) for value in _leaves(metadata)):
        raise InvalidRequest("metadata must hold neither an empty object nor an empty list", field="metadata")
    if all(value is None for value in _leaves(metadata)):
        raise InvalidRequest("metadata must name at least one value that is not null", field="metadata")


def _leaves(value: Json) -> Iterator[Json]:
    """Yield the scalars in a value, and its empty objects and lists."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    if not inner:
        yield value
    for one in inner:
        yield from _leaves(one)


def _equal(one: Json, other: Json) -> bool:
    """Return whether two values are the same JSON, with true and 1 distinct."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
