"""What an operation asks of the server: a value, without any I/O."""

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
    """One request, and the type of its answer: a class of `palimpsest.types`, `dict`, `str`, or None for no answer.

    Parameters and members of the body that are None are not sent. `idempotency_key` names the request: whoever sends it
    again, after a lost answer, gets the first one. A POST without one is given a key of its own, for all its retries.
    One that is not `repeatable` is not sent again when its answer was lost, since only that answer holds a secret.
    """

    method: str
    path: str
    answer: Any
    query: Mapping[str, Any] | None = None
    body: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    repeatable: bool = True

    def params(self) -> dict[str, Any]:
        """The query parameters to send."""
        return _given(self.query or {})

    def json(self) -> dict[str, Any] | None:
        """The body to send."""
        return None if self.body is None else _given(self.body)

    def parse(self, content: Any) -> T_co:
        """The typed answer for the JSON or text of one."""
        return cast(T_co, None if self.answer is None else decode(self.answer, content))


@dataclass(frozen=True)
class Listing(Request[T_co]):
    """A request for one page of a list of `answer`s."""

    def parse(self, content: Any) -> Any:
        """As `page`."""
        return self.page(content)

    def page(self, content: Mapping[str, Any]) -> tuple[list[T_co], str | None]:
        """The items of the page, and the cursor of the next one if there is one."""
        return [decode(self.answer, item) for item in content["items"]], content.get("next_cursor")

    def after(self, cursor: str) -> Listing[T_co]:
        """The request for the page after a cursor."""
        return Listing(self.method, self.path, self.answer, {**(self.query or {}), "cursor": cursor})


def path(*parts: object) -> str:
    """A path below /v1 from its parts; each is escaped, so that none reaches into the next."""
    return "/v1/" + "/".join(quote(str(part), safe=":@") for part in parts)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value as JSON has it: times become text."""
    isoformat = getattr(value, "isoformat", None)
    return value if isoformat is None else isoformat()
