"""Requests to the server as values, without any I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from palimpsest._model import decode

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """One request, and the type of its response: a class of `palimpsest.types`, `dict`, `str`, or None for none.

    Parameters and members of the body that are None are not sent. A request repeated with the same `idempotency_key`
    gets the first response; a POST without one gets a random key for all of its retries. A request that is not
    `repeatable` is not retried after a lost response, since only that response has the secret.
    """

    method: str
    path: str
    answer: Any
    query: Mapping[str, Any] | None = None
    body: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    repeatable: bool = True

    def params(self) -> dict[str, Any]:
        """Return the query parameters to send."""
        return _given(self.query or {})

    def json(self) -> dict[str, Any] | None:
        """Return the body to send."""
        return None if self.body is None else _given(self.body)

    def parse(self, content: Any) -> T_co:
        """Return the typed response for its JSON or text."""
        return cast(T_co, None if self.answer is None else decode(self.answer, content))


@dataclass(frozen=True)
class Listing(Request[T_co]):
    """A request for one page of a list of items of the type `answer`."""

    def parse(self, content: Any) -> Any:
        """Return what `page` does."""
        return self.page(content)

    def page(self, content: Mapping[str, Any]) -> tuple[list[T_co], str | None]:
        """Return the items of the page, and the cursor of the next page, if any."""
        return [decode(self.answer, item) for item in content["items"]], content.get("next_cursor")

    def after(self, cursor: str) -> Listing[T_co]:
        """Return the request for the page after a cursor."""
        return Listing(self.method, self.path, self.answer, {**(self.query or {}), "cursor": cursor})


def path(*parts: object) -> str:
    """Join parts to a path under /v1, each of them escaped."""
    return "/v1/" + "/".join(quote(str(part), safe=":@") for part in parts)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a value as JSON can encode it: times become text."""
    isoformat = getattr(value, "isoformat", None)
    return value if isoformat is None else isoformat()
