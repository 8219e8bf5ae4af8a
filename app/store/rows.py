"""Rows as dataclasses and dataclasses as parameters; a dataclass's fields have the names of the columns."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

Row = asyncpg.Record | Mapping[str, Any]
"""A row from the driver, or one combined from several."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


@cache  # grows by one entry for each class
def _names(kind: type["DataclassInstance"]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def columns(kind: type["DataclassInstance"]) -> str:
    """Return the column list for a dataclass."""
    return ", ".join(_names(kind))


def parameters(value: "DataclassInstance", *omitted: str) -> dict[str, Any]:
    """Return a value's fields by name, for a statement with one parameter per field that is not `omitted`."""
    return {name: getattr(value, name) for name in _names(type(value)) if name not in omitted}


def decode(kind: type[Value], row: Row, **others: Any) -> Value:
    """Decode a row, which may have further columns; `others` are fields that are not columns.

    Lists become tuples, and a field `policy` is read from the two columns that hold a policy's name and version.
    """
    for name in _names(kind):
        if name not in others:
            value = (row["policy_name"], row["policy_version"]) if name == "policy" else row[name]
            others[name] = tuple(value) if isinstance(value, list) else value
    return kind(**others)
