"""The newest requests of each tenant through a gateway, in the memory of this process."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

CALLS_MAX: Final = 200
"""Number of requests that are remembered of a tenant."""
TENANTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A request through a gateway: to which provider, in which mode, and the reason if it was not replaced.

    `line` and `call_id` are those of the recorded call whose context was sent in place of the client's conversation, or
    could have been: then `potential_tokens` is its size.
    """

    provider: str
    path: str
    mode: str
    reason: str | None = None
    session: str | None = None
    line: str | None = None
    call_id: UUID | None = None
    tokens_sent: int | None = None
    tokens_wanted: int | None = None
    potential_tokens: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


class ForwardedCalls:
    """Remembers requests through a gateway, for people who look for the reason why one was forwarded unchanged."""

    def __init__(self) -> None:
        self.since = datetime.now(UTC)
        self._newest: OrderedDict[UUID, deque[ForwardedCall]] = OrderedDict()

    def note(self, tenant_id: UUID, call: ForwardedCall) -> None:
        """Remember a tenant's request; the oldest is forgotten, or the tenant without requests for the longest time."""
        self._newest.setdefault(tenant_id, deque(maxlen=CALLS_MAX)).append(call)
        self._newest.move_to_end(tenant_id)
        if len(self._newest) > TENANTS_MAX:
            self._newest.popitem(last=False)

    def newest(self, tenant_id: UUID) -> Sequence[ForwardedCall]:
        """Return a tenant's requests, newest first."""
        return list(reversed(self._newest.get(tenant_id, ())))
