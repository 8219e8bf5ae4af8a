"""What most providers' formats have in common; a format that differs says so itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.types import UsageIn


class Common:
    """A format whose requests are keyword arguments as they stand, and which names each tool in a definition of its
    own."""

    def user(self, content: Any) -> dict[str, Any]:
        """A message of the user."""
        return {"role": "user", "content": content}

    def arguments(self, request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the SDK's method: a rendered request, and what the caller adds."""
        return joined(request, extra)

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """The names in a tool's definition."""
        return [tool["name"]] if "name" in tool else []


def joined(request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Both together. Raises TypeError where the caller adds what the request has."""
    for name in request:
        if name in extra:
            raise TypeError(
                f"{name} comes from the session; use its system(), tools(), user() and log(), so that it is counted"
            )
    return {**request, **extra}


def usage_of(**counts: int | None) -> UsageIn | None:
    """The figures that a provider named; None if it named none.

    A figure that it did not name is left out and is no 0: a provider that reports no cache reads has no cold cache.
    """
    usage: Any = {name: count for name, count in counts.items() if count is not None}
    return usage or None


def without_zeros(usage: UsageIn | None) -> UsageIn | None:
    """The usage of a framework whose types have a 0 also for what the provider did not name."""
    counts: Mapping[str, Any] = usage or {}
    return usage_of(**{name: count or None for name, count in counts.items()})
