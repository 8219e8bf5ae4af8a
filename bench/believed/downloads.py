"""Downloaded files, read with errors that name the file, its source and the way to get it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class UnknownData(Exception):
    """A file is missing, or is not of the expected form."""


def read(file: Path, get_it: str) -> Any:
    """Return a JSON file's content. Raises UnknownData; `get_it` says where the file can be got."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnknownData(f"{file} does not exist. {get_it}") from None
    except ValueError as error:
        raise UnknownData(f"{file} is no JSON: {error}. {get_it}") from None


def field(value: Any, name: str, kind: type, where: str) -> Any:
    """Return a field of an object. Raises UnknownData if there is none of that type."""
    found = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(found, kind):
        raise UnknownData(f"{where} has no field `{name}` of type {kind.__name__}")
    return found
