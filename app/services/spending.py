"""What a tenant's summaries may cost in a day: reserved before a model is asked, settled when it has answered.

All processes over one database share the account, so that together they spend no more than one of them might. Where a
process dies under a request, what it reserved stays reserved: nobody knows what it has cost.
"""

from datetime import date
from uuid import UUID

import asyncpg
import structlog

from app.core.compaction.prompt import Completion, Prompt
from app.core.errors import StoreUnavailable
from app.providers.guard import cost, expected_tokens
from app.providers.summarizer import ProviderError, Summarizer
from app.store import spending
from app.store.engine import Database


class Spending:
    """The tenants' accounts: `most` tokens a day (UTC) each, in and out, over all models."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self.most = most

    def paid_by(self, tenant_id: UUID, summarizer: Summarizer) -> Summarizer:
        """A summarizer at a tenant's expense."""
        return _Paid(summarizer, self._database, tenant_id, self.most)


class _Paid:
    """A summarizer that is asked only while its tenant's account has what that may cost."""

    def __init__(self, inner: Summarizer, database: Database, tenant_id: UUID, most: int) -> None:
        self._inner = inner
        self._database = database
        self._tenant_id = tenant_id
        self._most = most

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """See Summarizer; fails with `spent` without asking. Raises StoreUnavailable, too, before it has asked."""
        reserved = expected_tokens(ask)
        day = await spending.reserve(self._database, self._tenant_id, reserved, self._most)
        if day is None:
            detail = f"the {self._most} tokens allowed in a day leave no room for about {reserved}"
            raise ProviderError("spent", detail, retryable=False)
        try:
            answer = await self._inner.summarize(ask, timeout=timeout)
        except ProviderError as error:
            await self._settle(day, reserved, reserved if error.kind == "timeout" else 0)  # it may have been worked on
            raise
        await self._settle(day, reserved, cost(answer, reserved))
        return answer

    async def _settle(self, day: date, reserved: int, spent: int) -> None:
        """Whatever comes in between, an answer that was paid for is not thrown away."""
        try:
            await spending.settle(self._database, self._tenant_id, day, reserved, spent)
        except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            structlog.get_logger().warning("what a summary cost stays reserved", error=str(error))

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()
