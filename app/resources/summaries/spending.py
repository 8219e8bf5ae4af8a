"""Daily limits on the cost of a tenant's summaries: reserved before a model is called, settled after its response.

All processes over one database share a tenant's account, so the limit holds for them together. The reservation of a
process that dies during a request is kept: the cost of that request is unknown.
"""

from datetime import date
from uuid import UUID

import asyncpg
import structlog

from app.core.compaction.prompt import Completion, Prompt
from app.core.errors import StoreUnavailable
from app.providers.failures import ProviderError
from app.providers.guard import cost, expected_tokens
from app.providers.summarizer import Summarizer
from app.store import spending
from app.store.engine import Database


class Spending:
    """Tenants' accounts: `most` tokens a day (UTC) each, input and output, of all models together."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self.most = most

    def charge_to(self, tenant_id: UUID, summarizer: Summarizer) -> Summarizer:
        """Return a summarizer that charges a tenant's account."""
        return _PaidSummarizer(summarizer, self._database, tenant_id, self.most)


class _PaidSummarizer:
    """A summarizer that is called only if its tenant's account has enough tokens left for the request."""

    def __init__(self, inner: Summarizer, database: Database, tenant_id: UUID, most: int) -> None:
        self._inner = inner
        self._database = database
        self._tenant_id = tenant_id
        self._most = most

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - also the limit on the wire
        """See Summarizer. Raises StoreUnavailable, or ProviderError `spent`, without calling the model."""
        reserved = expected_tokens(ask)
        day = await spending.reserve(self._database, self._tenant_id, reserved, self._most)
        if day is None:
            detail = f"the {self._most} tokens allowed in a day leave no room for about {reserved}"
            raise ProviderError("spent", detail, retryable=False)
        try:
            answer = await self._inner.summarize(ask, timeout=timeout)
        except ProviderError as error:
            await self._settle(day, reserved, reserved if error.kind == "timeout" else 0)  # a timeout may be billed
            raise
        await self._settle(day, reserved, cost(answer, reserved))
        return answer

    async def _settle(self, day: date, reserved: int, spent: int) -> None:
        """Settle a reservation; a failure is only logged, so that a paid response is not lost."""
        try:
            await spending.settle(self._database, self._tenant_id, day, reserved, spent)
        except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            structlog.get_logger().warning("a summary's cost was not settled; its reservation stays", error=str(error))

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()
