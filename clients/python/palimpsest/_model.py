"""The base of all response types, and their decoding from JSON."""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from datetime import datetime
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """A response of the server, or a part of one.

    Fields that a newer server sends in addition to the declared ones are in `to_dict()` and available as attributes.
    Fields that an older server does not send are None.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object as the server sent it."""
        return dict(self.__dict__["_sent"])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            sent = self.__dict__.get("_sent", {})
            if name in sent:
                return sent[name]
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")


def decode(kind: Any, data: Any) -> Any:
    """Decode JSON data as a declared type; data that does not fit the type is returned unchanged."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _one_of(get_args(kind), data)
    if origin is list and isinstance(data, list):
        (inner,) = get_args(kind)
        return [decode(inner, one) for one in data] if _has_models(inner) else data
    if origin is dict and isinstance(data, dict):
        inner = get_args(kind)[1]
        return {name: decode(inner, one) for name, one in data.items()} if _has_models(inner) else data
    if kind is datetime and isinstance(data, str):
        return _moment(data)
    if isinstance(kind, type) and issubclass(kind, Model) and isinstance(data, dict):
        return _model(kind, data)
    return data


def _model(kind: Any, data: dict[str, Any]) -> Any:
    hints = _hints(kind)
    given = {}
    for one in _fields(kind):
        name = one.metadata.get("name", one.name)
        given[one.name] = decode(hints[one.name], data.get(name))
    made = kind(**given)
    made.__dict__["_sent"] = data
    return made


def _one_of(kinds: tuple[Any, ...], data: Any) -> Any:
    for kind in kinds:
        if kind is type(None):
            continue
        decoded = decode(kind, data)
        if decoded is not data:
            return decoded
    return data


def _moment(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:  # the server returns an invalid time as it was given
        return text


@cache
def _has_models(kind: Any) -> bool:
    if isinstance(kind, type) and (kind is datetime or issubclass(kind, Model)):
        return True
    return any(_has_models(one) for one in get_args(kind))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)
