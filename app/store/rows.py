"""Rows as values: the names of a dataclass's fields are those of its columns."""

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


def columns(kind: type["DataclassInstance"]) -> str:
    """What to select for a value."""
    return ", ".join(field.name for field in fields(kind))


def decode(kind: type[Value], row: asyncpg.Record) -> Value:
    """The value of a row, which may have further columns. Arrays become tuples."""
    values = {field.name: row[field.name] for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
