"""Rows as dataclasses and dataclasses as parameters; a dataclass's fields have the names of the columns."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

Row = asyncpg.Record | Mapping[str, Any]
"""A row from the driver, or one combined from several."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


def columns(kind: type["DataclassInstance"]) -> str:
    """Return the column list for a dataclass."""
    return ", ".join(field.name for field in fields(kind))


def parameters(value: "DataclassInstance", *omitted: str) -> dict[str, Any]:
    """Return a value's fields by name, for a statement with one parameter per field that is not `omitted`."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in omitted}


def decode(kind: type[Value], row: asyncpg.Record, **others: Any) -> Value:
    """Decode a row, which may have further columns; `others` are fields that are not columns. Lists become tuples."""
    values = {field.name: row[field.name] for field in fields(kind) if field.name not in others}
    read = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**read, **others)
