"""Defaults that most providers' formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.types import UsageIn


class BaseFormat:
    """A format whose rendered requests are the keyword arguments, and whose tools have one definition each."""

    def user(self, content: Any) -> dict[str, Any]:
        """Return a message of the user."""
        return {"role": "user", "content": content}

    def arguments(self, request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of the SDK's method: a rendered request, and the caller's own arguments."""
        return merge(request, extra)

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """Return the names in a tool's definition."""
        return [tool["name"]] if "name" in tool else []


def merge(request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both. Raises TypeError if the caller's arguments repeat one of the request."""
    for name in request:
        if name in extra:
            raise TypeError(
                f"{name} comes from the session; set it with system(), tools(), user() or log(), so that it is counted"
            )
    return {**request, **extra}


def usage_of(**counts: int | None) -> UsageIn | None:
    """Return the figures that a provider reported; None if it reported none.

    A missing figure is omitted and not 0: a provider that reports no cache reads does not have a cold cache.
    """
    usage: Any = {name: count for name, count in counts.items() if count is not None}
    return usage or None


def without_zeros(usage: UsageIn | None) -> UsageIn | None:
    """Return usage without zeros, for frameworks that set figures to 0 that the provider did not report."""
    counts: Mapping[str, Any] = usage or {}
    return usage_of(**{name: count or None for name, count in counts.items()})
