"""Knobs: the fields of a policy, with a description, unit and bounds, for parsing and documentation."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from app.core import dataclass, field, replace
from app.core.errors import InvalidPolicy
from app.core.log.events import NAME_CHARS_MAX, Json

WHOLE_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Knob:
    """The description of a policy's field: a `sentence` for readers, and the inclusive bounds `least` and `most`.

    The type of the field determines its `kind`: whole, share, number, reserve, flag, choice, name, names, group or
    groups. A float with `most` is a number, one without it a share; `shape` is a group's class.
    """

    sentence: str = ""
    unit: str = ""
    least: float = 0
    most: float | None = None
    zero: bool = False
    """Whether a share may be 0."""
    kind: str = ""
    choices: tuple[str, ...] = ()
    shape: Any = None
    optional: bool = False


def knob(default: Any, sentence: str = "", **more: Any) -> Any:
    """Return a dataclass field that is a knob. `default` may be a factory; `more` are further fields of `Knob`."""
    metadata = {"knob": Knob(sentence, **more)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def knobs_of(group: Any) -> Mapping[str, Knob]:
    """Return the knobs of a dataclass by name, each with its kind."""
    return {own.name: _with_kind(own.metadata["knob"], own.type) for own in fields(group)}


_KINDS: Final = {int: "whole", float: "share", bool: "flag", str: "name", Literal: "choice", tuple: "names"}


def _with_kind(knob: Knob, hint: Any) -> Knob:
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    first, *others = (one for one in types if one is not NoneType)
    if is_dataclass(first):
        return replace(knob, kind="group", shape=first)
    if get_origin(first) is Mapping:
        return replace(knob, kind="groups", shape=get_args(first)[1])
    kind = _KINDS[get_origin(first) or first]
    if kind == "share" and knob.most is not None:
        kind = "number"
    choices = get_args(first) if kind == "choice" else ()
    return replace(knob, kind="reserve" if others else kind, choices=choices, optional=NoneType in types)


def read_group(document: Json, path: str, shape: Any) -> Any:
    """Read a value of the dataclass `shape` from a document. Raises InvalidPolicy, which names the knob by its path."""
    return shape(**read_values(document, path, shape))


def read_values(document: Json, path: str, shape: Any) -> dict[str, Any]:
    """Return the knobs of the dataclass `shape` that a document sets. Raises InvalidPolicy."""
    if not isinstance(document, Mapping):
        raise InvalidPolicy("must be an object", knob=path or "policy")
    known = knobs_of(shape)
    values: dict[str, Any] = {}
    for name, value in document.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise InvalidPolicy(f"unknown knob; known here: {', '.join(sorted(known))}", knob=where)
        knob = known[name]
        read = _read if knob.shape is None else _read_inner
        values[name] = None if value is None and knob.optional else read(value, where, knob)
    return values


def _read_inner(value: Json, where: str, knob: Knob) -> Any:
    """Return the group of a knob, or its groups by their names. Raises InvalidPolicy."""
    if knob.kind == "group":
        return read_group(value, where, knob.shape)
    if not isinstance(value, Mapping):
        raise InvalidPolicy("must be an object of tool names", knob=where)
    return {str(name): read_group(inner, f"{where}.{name}", knob.shape) for name, inner in value.items()}


def _read(value: Json, where: str, knob: Knob) -> Any:
    """Return the value of a knob without groups. Raises InvalidPolicy."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match knob.kind:
        case "whole" | "reserve":
            whole = number and isinstance(value, int) and knob.least <= value <= (knob.most or WHOLE_MAX)
            if whole or (knob.kind == "reserve" and value == "auto"):
                return value
            rule = f"a whole number of {int(knob.least)} or more"
        case "share":
            if number and 0 <= value <= 1 and (value != 0 or knob.zero):
                return float(value)
            rule = f"a share {'from' if knob.zero else 'above'} 0 and at most 1"
        case "number":
            if number and knob.least <= value <= knob.most:
                return float(value)
            rule = f"a number from {knob.least:g} to {knob.most:g}"
        case "flag":
            if isinstance(value, bool):
                return value
            rule = "true or false"
        case "choice":
            if isinstance(value, str) and value in knob.choices:
                return value
            rule = f"one of {', '.join(knob.choices)}"
        case "name":
            if isinstance(value, str) and 1 <= len(value) <= NAME_CHARS_MAX:
                return value
            rule = f"a name of 1 to {NAME_CHARS_MAX} characters"
        case "names":
            if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
                return tuple(value)
            rule = "a list of names"
    raise InvalidPolicy(f"must be {rule}", knob=where)


def json_schema(shape: Any) -> dict[str, Json]:
    """Return the JSON Schema of a group of knobs, each with its sentence, unit and default."""
    knobs = knobs_of(shape)
    properties = {f.name: _described(knobs[f.name], f) for f in fields(shape)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _described(knob: Knob, own: Any) -> dict[str, Json]:
    sentence = f"{knob.sentence} In {knob.unit}." if knob.unit else knob.sentence
    if knob.kind == "group":
        return {**json_schema(knob.shape), "description": sentence}
    if knob.kind == "groups":
        return {"type": "object", "description": sentence, "additionalProperties": json_schema(knob.shape)}
    least, most = int(knob.least), knob.most
    shapes: dict[str, dict[str, Json]] = {
        "whole": {"type": "integer", "minimum": least},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "number": {"type": "number", "minimum": knob.least, "maximum": most},
        "reserve": {"anyOf": [{"type": "integer", "minimum": least}, {"const": "auto"}]},
        "flag": {"type": "boolean"},
        "choice": {"type": "string", "enum": list(knob.choices)},
        "name": {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
        "names": {"type": "array", "items": {"type": "string"}},
    }
    schema = shapes[knob.kind]
    default = None if own.default is MISSING else own.default
    if knob.optional:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": sentence, "default": list(default) if isinstance(default, tuple) else default}
