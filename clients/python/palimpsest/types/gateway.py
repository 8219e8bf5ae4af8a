"""Types of `gateway`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class GatewayCall(Model):
    """A request that was forwarded."""

    at: datetime
    """Time of the request."""
    provider: str
    """Provider, as in the paths under `/gateway`."""
    path: str
    """The provider's path."""
    mode: Literal["context", "observed", "answered", "bypass", "passthrough"]
    """Form in which it was sent: with a `context` in place of the client's conversation, or without one: because
    the session is only observed (`observed`), because no context could be made or the database was unreachable
    (`bypass`), or because the request has no conversation or session, or is for the provider's endpoint for
    compactions (`passthrough`). `answered`: it was not sent, but answered by the gateway with a compaction
    item.
    """
    reason: str | None
    """Reason why it was sent without a context; null if there is none."""
    session: str | None
    """Id of the session; null without one."""
    line: str | None
    """Id of the session's line; null unless a context was recorded."""
    call_id: str | None
    """Id of the recorded call; null without one."""
    tokens_sent: int | None
    """Estimated size of the context; null unless one was sent."""
    tokens_wanted: int | None
    """Estimated size of the conversation; null unless a context was recorded."""
    potential_tokens: int | None
    """Estimated size of the context that was recorded and not sent; null unless `mode` is `observed`."""


@dataclass(frozen=True, kw_only=True)
class GatewayOut(Model):
    """State of the gateway."""

    upstreams: dict[str, str]
    """Address to which requests for each provider are forwarded; empty if the gateway is off."""
    since: datetime
    """Time since when this process has remembered requests."""
    calls: list[GatewayCall]
    """Requests that this process has forwarded for the tenant, newest first, 200 at most."""
