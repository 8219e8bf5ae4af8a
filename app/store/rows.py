"""Rows as values and values as parameters: a dataclass's fields are named as the columns."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


def columns(kind: type["DataclassInstance"]) -> str:
    """What to select for a value."""
    return ", ".join(field.name for field in fields(kind))


def parameters(value: "DataclassInstance") -> dict[str, Any]:
    """A value's fields by name, for a statement that has a parameter for each."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def decode(kind: type[Value], row: asyncpg.Record) -> Value:
    """The value of a row, which may have further columns. Arrays become tuples."""
    values = {field.name: row[field.name] for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
