"""Attributes of immutable values, computed on first access."""

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")


class lazy(Generic[_Owner, _Value]):
    """A property that is computed on first access and kept in the instance's `__dict__` under its name.

    It holds no lock, unlike `functools.cached_property` before Python 3.12, whose lock all instances of a class share.
    Concurrent threads may each compute the value, so it must be a pure function of the instance; all of them get the
    one that is kept.
    """

    def __init__(self, compute: Callable[[_Owner], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[_Owner]) -> Self: ...

    @overload
    def __get__(self, instance: _Owner, owner: type[_Owner]) -> _Value: ...

    def __get__(self, instance: _Owner | None, owner: type[_Owner]) -> Self | _Value:
        """Return the cached value, computing it on first access; on the class, return this descriptor."""
        if instance is None:
            return self
        value: _Value = vars(instance).setdefault(self._name, self._compute(instance))
        return value
