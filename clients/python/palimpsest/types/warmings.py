"""Types of `warmings`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class WarmingOut(Model):
    """Bill of a recorded warming."""

    input_tokens: int
    """All input tokens, including those read from and written to the cache."""
    read_tokens: int
    """Input tokens read from the cache, which now live longer."""
    write_tokens: int
    """Input tokens written to the cache: more than a few mean that it had expired before the request."""
    billed: float
    """Price of the request, expressed as the number of uncached input tokens that would cost the same."""


@dataclass(frozen=True, kw_only=True)
class WarmingRequest(Model):
    """Request that keeps the provider's cache of a view's last call. Nothing was recorded."""

    call_id: str
    """Id of the recorded call, a UUID."""
    session: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    view: str
    """Name of the view that the context was made for."""
    format: Literal["openai", "openai-responses", "anthropic", "gemini", "blocks"]
    """Format of the request: a provider's, or the neutral `blocks`."""
    model: str | None
    """Name of the model that the context was made for; null if none was given."""
    request: dict[str, Any]
    """Request of that call with `max_tokens` 0, to send unchanged and without streaming. Send the same tools,
    model and other parameters as with the call, or the provider has another cache.
    """
    tokens: int
    """Part of it that the provider's cache is expected to hold, in the model's tokens; 0 if none is."""
    expires_at: datetime | None
    """Time at which that part expires, counted from the call; null if `tokens` is 0. Requests that kept it since
    are not counted.
    """
    price: float
    """Price of the request while the cache holds that part, in uncached input tokens. Later it is written again,
    at the price of a write.
    """
    saves: float
    """Price that the next call saves if it finds that part in the cache instead of writing it again. All requests
    until that call together should cost less.
    """
