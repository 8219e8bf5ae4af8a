"""Dataclasses as the core makes them."""

import dataclasses

import pytest

from app.core import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    depth: int = 0
    _known: int | None = field(default=None, init=False, compare=False)


def test_a_frozen_class_has_a_hash_of_its_fields_and_a_constructor_that_sets_them_directly() -> None:
    assert hash(_Place("a", 1)) == hash(_Place("a", 1)) != hash(_Place("a", 2))
    assert "__setattr__" not in vars(_Place)


def test_a_changed_value_is_that_of_the_standard_library() -> None:
    place = _Place("a", 1)
    assert replace(place, depth=2) == dataclasses.replace(place, depth=2) == _Place("a", 2)
    with pytest.raises(TypeError, match="height"):
        replace(place, height=2)  # type: ignore[call-arg]  # the mistake under test
