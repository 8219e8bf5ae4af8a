"""Usage as providers report it, and its price."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.core.policy.overflow import classify
from app.core.wire.replies import error_of

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call by price: `hour` are written to a cache that lives for an hour, `fresh` are not cached."""

    fresh: int = 0
    read: int = 0
    write: int = 0
    hour: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        mine, theirs = asdict(self), asdict(other)
        return Usage(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True, slots=True)
class Prices:
    """USD of a million tokens of each kind."""

    fresh: float
    read: float
    write: float
    hour: float
    output: float

    @classmethod
    def parse(cls, text: str) -> "Prices":
        """Read `fresh=3,read=0.3,write=3.75,hour=6,output=15`. Raises ValueError if a kind is missing or unknown."""
        pairs = [part.partition("=") for part in text.split(",")]
        given = {name.strip(): float(value) for name, _, value in pairs}
        if set(given) != set(cls.__slots__) or len(given) != len(pairs):
            raise ValueError(f"prices are needed for {', '.join(cls.__slots__)}, each once: {text}")
        return cls(**given)

    def of(self, usage: Usage) -> float:
        """Return the price in USD."""
        each, counts = asdict(self), asdict(usage)
        return float(sum(each[name] * counts[name] for name in each)) / 1e6


def usage_of(body: bytes) -> Usage | None:
    """Return the usage that a response reports, a whole one or a stream of events; None if it reports none."""
    found: dict[str, Any] = {}
    for value in _objects(body):
        for holder in (value, value.get("message"), value.get("response")):
            if isinstance(holder, Mapping) and isinstance(holder.get("usage"), Mapping):
                found |= {name: count for name, count in holder["usage"].items() if count is not None}
    return _split(found) if found else None


def is_too_long(status: int, body: bytes) -> bool:
    """Return whether a response is a provider's refusal of a request for its length."""
    if status < 400:
        return False
    error = next((error_of(value) for value in _objects(body)), {})
    message, code = error.get("message"), error.get("code")
    return classify(message if isinstance(message, str) else None, code if isinstance(code, str) else None) is not None


def _objects(body: bytes) -> Iterator[Json]:
    """Yield the object of a whole response, or those of a stream's events."""
    for text in (
        [body] if body.lstrip()[:1] == b"{" else [line[5:] for line in body.splitlines() if line[:5] == b"data:"]
    ):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, Mapping):
            yield value


def _split(found: Json) -> Usage:
    """Return the usage of Anthropic's, OpenAI's chat's or OpenAI's responses' fields."""
    if "cache_read_input_tokens" in found or "cache_creation_input_tokens" in found:
        written = found.get("cache_creation_input_tokens") or 0
        hour = (found.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
        read, fresh = found.get("cache_read_input_tokens") or 0, found.get("input_tokens") or 0
        return Usage(fresh, read, written - hour, hour, found.get("output_tokens") or 0)
    whole = found.get("prompt_tokens") or found.get("input_tokens") or 0
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details") or {}
    read, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    output = found.get("completion_tokens") or found.get("output_tokens") or 0
    return Usage(whole - read - written, read, written, 0, output)
