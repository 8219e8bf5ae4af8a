"""Warmings, requests that keep the provider's cache of a call: prepared for clients, and recorded when reported."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID, uuid5

from fastapi import Depends, Path
from pydantic import BaseModel, Field

from app.core import dataclass
from app.core.assembly.inputs import OBSERVED_VIEW
from app.core.errors import NotFound, NothingToSend
from app.core.log.segments import is_line, line_of, session_of
from app.core.render.formats import FORMATS
from app.core.tokens.models import Bill, CacheProfile, cache_profile, priced
from app.http import fields
from app.http.fields import Sid, answer_of
from app.http.openapi import examples
from app.http.operation import Idempotent, Resource, Who, service
from app.resources.contexts.recordings import Recordings
from app.resources.feedback.schemas import UsageIn
from app.resources.policies.service import Policies
from app.store import audit, lines, sessions
from app.store.audit import CallRow
from app.store.engine import Database
from app.store.ids import SessionRef, new_id, session_ref
from app.store.lines import LINE_KEYS
from app.store.rows import columns, decode, parameters


@dataclass(frozen=True, slots=True)
class WarmedCall:
    """The fields of a call on which the price of its warming depends."""

    policy: tuple[str, int]
    format: str
    model: str | None


@dataclass(frozen=True, slots=True)
class WarmingUsage:
    """The input tokens of a warming: all of them, and those read from and written to the cache. None: it failed."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


_COPIED: Final = "session_id, tenant_id, call_id, view, policy_name, policy_version, format, model"
# The view's cache lives longer now; a process that holds the view in memory reads it again.
ADD_WARMING: Final = f"""
WITH added AS (
    INSERT INTO warmings ({_COPIED}, id, {columns(WarmingUsage)})
    SELECT {_COPIED}, :id, :input_tokens, :cache_read_tokens, :cache_write_tokens
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND call_id = :call_id
    ON CONFLICT DO NOTHING RETURNING session_id, view, input_tokens
), kept AS (
    UPDATE views v SET warmed_at = now() FROM added a
    WHERE v.session_id = :session_id AND a.session_id = :session_id AND v.view = a.view AND a.input_tokens IS NOT NULL
)
UPDATE sessions SET version = version + 1
WHERE session_id = :session_id AND tenant_id = :tenant_id
  AND EXISTS (SELECT FROM added a WHERE a.session_id = :session_id)
"""
_WARMED_CALL: Final = (
    "SELECT policy_name, policy_version, format, model FROM model_calls "
    "WHERE session_id = :session_id AND tenant_id = :tenant_id AND call_id = :call_id"
)
_WARMING_SUMS: Final = (
    "SELECT coalesce(sum(input_tokens), 0)::bigint AS input_tokens, "
    "coalesce(sum(cache_read_tokens), 0)::bigint AS cache_read_tokens, "
    "coalesce(sum(cache_write_tokens), 0)::bigint AS cache_write_tokens "
    f"FROM warmings WHERE session_id IN ({LINE_KEYS}) AND tenant_id = :tenant_id"
)


async def _find_call(database: Database, ref: SessionRef, call_id: UUID) -> WarmedCall | None:
    """Return a call of a session or line; None if there is none."""
    row = await database.fetchrow(_WARMED_CALL, **ref._asdict(), call_id=call_id)
    return None if row is None else decode(WarmedCall, row)


async def _add(database: Database, ref: SessionRef, call_id: UUID, id: UUID, usage: WarmingUsage) -> None:
    """Record a warming of a call, unless its `id` is recorded or the call is gone."""
    await database.execute(ADD_WARMING, **ref._asdict(), call_id=call_id, id=id, **parameters(usage))


async def warming_sums(database: Database, tenant_id: UUID, name: str) -> WarmingUsage:
    """Return the sums of the warmings of a session, all lines included."""
    row = await database.fetchrow(_WARMING_SUMS, **session_ref(tenant_id, name)._asdict())
    return WarmingUsage() if row is None else decode(WarmingUsage, row)


WARMED_FORMAT: Final = "anthropic"
"""Anthropic's API alone documents a request that reads the cache and asks for no answer: `max_tokens` 0."""


def warming_bill(usage: WarmingUsage, profile: CacheProfile) -> Bill:
    """Return the bill of a warming, or of the sums of several."""
    total, read, write = usage.input_tokens or 0, usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    return priced(profile, read, write, max(0, total - read - write))


def _usage(report: WarmingUsage | None, format: str) -> WarmingUsage:
    """Return the figures to store, of which the first is the whole input, for those that the provider reported."""
    if report is None:
        return WarmingUsage()
    read, write = report.cache_read_tokens or 0, report.cache_write_tokens or 0
    apart = read + write if FORMATS[format].excludes_cached_tokens else 0
    return WarmingUsage((report.input_tokens or 0) + apart, read, write)


class WarmingIn(fields.StrictRequest):
    """Report of a request that kept the provider's cache of a call, without an answer of the model."""

    model_config = examples(lambda: WarmingIn(usage=UsageIn(input_tokens=4, cache_read_tokens=52000)))

    usage: UsageIn | None = Field(
        None, description="Token usage, as in the outcome of a call. Null or omitted: the request failed."
    )


class WarmingOut(BaseModel):
    """Bill of a recorded warming."""

    input_tokens: int = Field(description="All input tokens, including those read from and written to the cache.")
    read_tokens: int = Field(description="Input tokens read from the cache, which now live longer.")
    write_tokens: int = Field(
        description="Input tokens written to the cache: more than a few mean that it had expired before the request."
    )
    billed: float = Field(
        description="Price of the request, expressed as the number of uncached input tokens that would cost the same."
    )


class WarmIn(fields.StrictRequest):
    """Request for the request that keeps a provider's cache."""

    view: fields.RecordedView = "main"


class WarmingRequest(BaseModel):
    """Request that keeps the provider's cache of a view's last call. Nothing was recorded."""

    call_id: fields.CallId
    session: fields.SessionName
    line: fields.LineName
    view: fields.ViewOf
    format: fields.CallFormat
    model: fields.CallModel
    request: dict[str, Any] = Field(
        description="Request of that call with `max_tokens` 0, to send unchanged and without streaming. "
        "Send the same tools, model and other parameters as with the call, or the provider has another cache."
    )
    tokens: int = Field(
        description="Part of it that the provider's cache is expected to hold, in the model's tokens; 0 if none is."
    )
    expires_at: datetime | None = Field(
        description="Time at which that part expires, counted from the call; null if `tokens` is 0. Requests that kept "
        "it since are not counted."
    )
    price: float = Field(
        description="Price of the request while the cache holds that part, in uncached input tokens. Later it is "
        "written again, at the price of a write."
    )
    saves: float = Field(
        description="Price that the next call saves if it finds that part in the cache instead of writing it again. "
        "All requests until that call together should cost less."
    )


@dataclass(eq=False)
class Warmings:
    """Prepares and records warmings."""

    _database: Database
    _policies: Policies
    _recordings: Recordings
    _caches: Mapping[str, CacheProfile]

    async def record(
        self, tenant_id: UUID, address: str, call_id: UUID, warming_id: UUID, report: WarmingUsage | None
    ) -> Bill:
        """Record a warming of a call, and return its bill; without a report it failed and was not billed.

        A `warming_id` is recorded once. `address` is the session's id or a line's. Raises NotFound.
        """
        name = address
        call = await _find_call(self._database, session_ref(tenant_id, name), call_id)
        if call is None and not is_line(address):
            name = await lines.of_call(self._database, tenant_id, address, call_id) or address
            call = await _find_call(self._database, session_ref(tenant_id, name), call_id)
        if call is None:
            raise NotFound(f"session {address!r} has no call {call_id}", call_id=str(call_id))
        usage = _usage(report, call.format)
        await _add(self._database, session_ref(tenant_id, name), call_id, warming_id, usage)
        return warming_bill(usage, await self._profile(tenant_id, call))

    async def prepare(self, tenant_id: UUID, line: str, view: str) -> WarmingRequest:
        """Return the request that keeps the provider's cache of a view's last call.

        Raises NotFound, NotReproducible, or NothingToSend if there is no such request.
        """
        ref = session_ref(tenant_id, line)
        found = await audit.page(self._database, (ref.session_id,), tenant_id, view=view, before=None, limit=1)
        if not found:
            await sessions.get(self._database, tenant_id, line)
            raise NothingToSend(f"view {view!r} has no call whose cache could be kept")
        if view == OBSERVED_VIEW:
            raise NothingToSend("the last context of this view was not sent, so the provider's cache does not have it")
        done = await self._recordings.reproduce(tenant_id, line, found[0][1])
        call = done.call
        if call.format != WARMED_FORMAT:
            raise NothingToSend(f"no request in the format {call.format!r} keeps a cache without an answer")
        if not done.is_exact:
            raise NothingToSend("events of the last call were erased, so the provider's cache does not have its prefix")
        profile, tokens = await self._profile(tenant_id, call), call.manifest.cached_tokens
        return answer_of(
            WarmingRequest,
            call,
            session=session_of(line),
            line=line_of(line),
            request=json.loads(done.replayed.request.body) | {"max_tokens": 0},
            tokens=tokens,
            expires_at=call.manifest.cache_expires_at,
            price=round(tokens * profile.read_price, 1),
            saves=round(tokens * max(0.0, profile.write_price - profile.read_price), 1),
        )

    async def _profile(self, tenant_id: UUID, call: WarmedCall | CallRow) -> CacheProfile:
        policy = await self._policies.get(tenant_id, call.policy)
        return cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache)


router = Resource("feedback", scope="ingest")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/calls/{call_id}/warmings",
    scope="ingest",
    resolves_line=False,
    returns=WarmingOut,
    status=201,
    problems=("idempotency-conflict",),
)
async def report_warming(
    sid: Sid,
    call_id: Annotated[UUID, Path(description="Id of the recorded call whose request was sent again.")],
    who: Who,
    body: WarmingIn,
    idempotent: Idempotent,
    warmings: Annotated[Warmings, Depends(service(Warmings))],
) -> Any:
    """Report a request that kept the provider's cache of a call. The ledger counts it apart from the model's calls."""
    report = None
    if body.usage is not None:
        report = WarmingUsage(**body.usage.model_dump(exclude={"output_tokens"}))
    asked = idempotent(body)
    warming_id = new_id() if asked.claim is None else uuid5(call_id, asked.claim.key)

    async def recorded() -> WarmingOut:
        bill = await warmings.record(who.tenant_id, sid, call_id, warming_id, report)
        return answer_of(WarmingOut, bill, input_tokens=bill.tokens, billed=round(bill.billed, 1))

    return await asked.run_repeatable(WarmingOut, recorded, status=201)


@router.operation(
    "POST", "/v1/sessions/{sid}/context:warm", scope="ingest", problems=("nothing-to-send", "not-reproducible")
)
async def warm_context(
    sid: Sid, who: Who, body: WarmIn, warmings: Annotated[Warmings, Depends(service(Warmings))]
) -> WarmingRequest:
    """Get the request that keeps the provider's cache of a view's last call, to send while the session is idle.

    Report its usage as a warming of that call. Only Anthropic's format has such requests.
    """
    return await warmings.prepare(who.tenant_id, sid, body.view)
