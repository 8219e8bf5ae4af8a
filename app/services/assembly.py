"""A context: load the view, plan, render, record; then the answer.

The record is durable before the answer leaves. When another request opened an epoch meanwhile, nothing was written and
the plan is made again on what stands now.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core import wording
from app.core.budget import Budget, budget_for
from app.core.errors import Conflict, InjectionOverReserve, InvalidRequest, NotFound, NothingToSend
from app.core.events import Json, canonical_json
from app.core.formats import FORMATS
from app.core.log import Event
from app.core.manifest import Eviction, evictions, result_seqs
from app.core.models import profile
from app.core.plan.frontier import START
from app.core.plan.pipeline import Plan, Read, plan
from app.core.policy import Policy
from app.core.render.arrange import arrange
from app.core.render.breakpoints import choose
from app.core.render.layout import Breakpoint, Layout, Written
from app.core.tokens import Counter
from app.services.counting import Counting
from app.services.policies import Policies
from app.services.tails import Tails
from app.store import sessions, views
from app.store.engine import Database
from app.store.views import CallRow, Loaded, NewEpoch, ViewRow

ATTEMPTS_MAX: Final = 8
BOUND_FACTOR: Final = 2
"""How much of the log is read beyond an epoch, in targets: stubs make room for more than one."""
DEEPEN_FACTOR: Final = 4
DEEPEN_MAX: Final = 4
OFF_LOOP_TOKENS: Final = 30_000
"""Contexts above this are planned and rendered in a thread, so that other requests go on."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Content for this call only, beside the user's message at the end."""

    name: str
    content: str
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a caller asks for; None means: as the view has it."""

    view: str = "main"
    format: str = "openai"
    model: str | None = None
    max_tokens: int | None = None
    at: int | None = None
    policy: str | Mapping[str, Any] | None = None
    force: bool = False
    now: datetime | None = None
    injections: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a view is read with."""

    policy_ref: tuple[str, int]
    policy: Policy
    model: str | None
    window_tokens: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A planned and written context. `request` is the canonical JSON of what goes to the provider."""

    plan: Plan
    request: str
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]
    evictions: tuple[Eviction, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """All inputs of the pure part."""

    events: tuple[Event, ...]
    loaded: Loaded
    settings: Settings
    counter: Counter
    budget: Budget
    fresh: bool
    request: ContextRequest
    injected_tokens: int = field(default=0)


class Assembly:
    """The context use case."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._tails = Tails()

    async def context(self, tenant_id: UUID, external_id: str, request: ContextRequest) -> str:
        """The answer's JSON.

        Raises NotFound, NothingToSend, CannotFit, InjectionOverReserve, InvalidPolicy, or InvalidRequest for an `at`
        beyond the head.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        for _ in range(ATTEMPTS_MAX):
            job = await self._load(tenant_id, session_id, external_id, request)
            rendered = await _off_loop(job)
            answer = await self._record(tenant_id, external_id, job, rendered)
            if answer is not None:
                return answer
        raise Conflict("other calls kept opening epochs of this view; ask again")

    async def _load(self, tenant_id: UUID, session_id: UUID, external_id: str, request: ContextRequest) -> _Job:
        """Read until the plan would not want to see more of the log."""
        bound = (request.max_tokens or 128_000) * BOUND_FACTOR
        fresh = False
        given = None if request.policy is None else await self._policies.resolve(tenant_id, request.policy)
        for deepening in range(DEEPEN_MAX + 2):
            held = self._tails.get(session_id, request.view) if deepening == 0 and request.at is None else None
            loaded = None if held is None else await views.news(self._database, tenant_id, request.view, held)
            if loaded is None:
                loaded = await views.load(
                    self._database, session_id, tenant_id, request.view, at=request.at, fresh=fresh, bound_tokens=bound
                )
            if loaded is None:
                raise NotFound(f"there is no session {external_id!r}", session=external_id)
            if request.at is not None and request.at > loaded.head:
                raise InvalidRequest(f"at is {request.at}, but the head is {loaded.head}", field="at")
            settings = await self._settings(tenant_id, loaded, request, given)
            if not fresh and _changed(loaded.view, settings) is not None:
                fresh = True
                continue
            job = await self._job(loaded, settings, request, fresh=fresh)
            if deepening > DEEPEN_MAX or not _wants_more(job, bound):
                if request.at is None and not fresh:
                    self._tails.put(request.view, loaded)
                return job
            bound *= DEEPEN_FACTOR
        raise Conflict("the settings of this view kept changing; ask again")

    async def _settings(
        self, tenant_id: UUID, loaded: Loaded, request: ContextRequest, given: tuple[str, int] | None
    ) -> Settings:
        view = loaded.view
        ref = given or (view.policy if view else loaded.session_policy)
        policy = await self._policies.get(tenant_id, ref)
        model = request.model or (view.model if view else None) or loaded.session_model
        window = request.max_tokens
        if window is None:
            same = view is not None and view.model == model and view.policy == ref
            window = view.window_tokens if view and same else policy.window_tokens or profile(model).window_tokens
        return Settings(ref, policy, model, window)

    async def _job(self, loaded: Loaded, settings: Settings, request: ContextRequest, *, fresh: bool) -> _Job:
        counter = self._counting.counter(settings.model)
        session_counter = self._counting.session_counter(loaded.estimator, loaded.session_model)
        events = loaded.events
        if counter != session_counter:
            events = await self._counting.recount(events, counter)
        budget = budget_for(settings.policy, settings.window_tokens, counter.estimator.margin)
        injected = _injected_tokens(request.injections, counter, budget.injection_reserve)
        return _Job(events, loaded, settings, counter, budget, fresh, request, injected)

    async def _record(self, tenant_id: UUID, external_id: str, job: _Job, rendered: Rendered) -> str | None:
        loaded, view = job.loaded, job.loaded.view
        opens = rendered.plan.cause is not None or view is None or job.fresh
        epoch = (view.epochs if view else 0) + 1 if opens else loaded.epoch
        new = _new_epoch(job, rendered, epoch) if opens else None
        call = _call_row(job, rendered, epoch)
        if not await views.record(self._database, loaded.session_id, tenant_id, call, new):
            return None
        return _answer(external_id, job, rendered, call)


async def _off_loop(job: _Job) -> Rendered:
    size = sum(event.tokens for event in job.events)
    if size > OFF_LOOP_TOKENS:
        return await asyncio.to_thread(render, job)
    return render(job)


def render(job: _Job) -> Rendered:
    """Plan and write: pure."""
    planned = _plan(job)
    if not planned.context.items and job.request.format != "blocks":
        raise NothingToSend("the session holds nothing yet that could be sent to a model")
    injected = [_injection_text(injection) for injection in job.request.injections]
    layout = arrange(planned.context, planned.state, injected)
    chosen = _breakpoints(job, planned, layout)
    form = FORMATS[job.request.format]
    written = form.write(layout, chosen)
    text = canonical_json(written.request)
    sha256 = hashlib.sha256(text.encode()).digest()
    return Rendered(
        plan=planned,
        request=text,
        sha256=sha256,
        prefix_sha256=_prefix_sha256(job.request.format, layout, written, sha256),
        breakpoints=written.breakpoints,
        evictions=evictions(planned.state, result_seqs(planned.context)),
    )


def _plan(job: _Job) -> Plan:
    read = Read(job.events, job.loaded.turn, job.counter, job.loaded.unread, job.injected_tokens)
    state = START if job.fresh else job.loaded.frontier
    return plan(read, job.budget, job.settings.policy, state, force=job.request.force)


def _wants_more(job: _Job, bound: int) -> bool:
    """Whether older events that were not read would still have their place."""
    if not job.loaded.unread.to_seq or bound > job.loaded.log_tokens:
        return False
    return _plan(job).tokens_before < job.budget.goal


def _breakpoints(job: _Job, planned: Plan, layout: Layout) -> tuple[Breakpoint, ...]:
    if job.request.format != "anthropic":
        return ()
    if planned.context.tokens < profile(job.settings.model).cache_minimum_tokens:
        return ()
    same_epoch = planned.cause is None and not job.fresh
    return choose(layout, job.loaded.last_breakpoints if same_epoch else ())


def _prefix_sha256(form: str, layout: Layout, written: Written, sha256: bytes) -> bytes:
    """SHA-256 of the request without cache markers and without the ephemeral tail."""
    stable = tuple(block for block in layout.blocks if not block.ephemeral)
    if not written.breakpoints and len(stable) == len(layout.blocks):
        return sha256
    request = FORMATS[form].write(replace(layout, blocks=stable)).request
    return hashlib.sha256(canonical_json(request).encode()).digest()


def _changed(view: ViewRow | None, settings: Settings) -> str | None:
    """What of a view's settings differs: then it is planned afresh, since its cache is cold anyway."""
    if view is None:
        return None
    if view.model != settings.model:
        return "model"
    if view.window_tokens != settings.window_tokens:
        return "window"
    return "policy" if view.policy != settings.policy_ref else None


def _new_epoch(job: _Job, rendered: Rendered, epoch: int) -> NewEpoch:
    loaded, planned = job.loaded, rendered.plan
    cause = _changed(loaded.view, job.settings) or planned.cause or "start"
    if loaded.view is None:
        cause = "start" if planned.cause in (None, "system_prompt", "tools") else planned.cause or "start"
    settings = ViewRow(job.settings.policy_ref, job.settings.model, job.settings.window_tokens, epoch, epoch)
    return NewEpoch(
        epoch=epoch,
        head=loaded.head,
        cause=cause,
        frontier=planned.state,
        tokens_before=planned.tokens_before,
        tokens_after=planned.context.tokens,
        settings=settings,
        target=job.budget.target,
        carry_tokens=planned.context.tokens - loaded.log_tokens,
        current=job.request.at is None or job.request.at == loaded.real_head,
    )


def _call_row(job: _Job, rendered: Rendered, epoch: int) -> CallRow:
    request, planned = job.request, rendered.plan
    manifest: dict[str, Json] = {
        "window": job.budget.window,
        "reserve": job.budget.reserve,
        "injection_reserve": job.budget.injection_reserve,
        "estimator": job.counter.estimator.name,
        "by_source": planned.context.by_source,
        "prefix_sha256": rendered.prefix_sha256.hex(),
        "breakpoint_kinds": [point.kind for point in rendered.breakpoints],
        "evictions": [_eviction(row) for row in rendered.evictions],
    }
    if request.now is not None:
        manifest["now"] = request.now.isoformat()
    if request.injections:
        manifest["injections"] = [{"name": i.name, "content": i.content} for i in request.injections]
    return CallRow(
        call_id=_new_call_id(),
        view=request.view,
        head=job.loaded.head,
        epoch=epoch,
        policy=job.settings.policy_ref,
        format=request.format,
        model=job.settings.model,
        render_version=wording.RENDER_VERSION,
        manifest=manifest,
        breakpoints=tuple(point.seq for point in rendered.breakpoints),
        estimate=planned.context.tokens,
        target=job.budget.target,
        sha256=rendered.sha256,
    )


def _answer(external_id: str, job: _Job, rendered: Rendered, call: CallRow) -> str:
    by_source = rendered.plan.context.by_source
    head: dict[str, Json] = {
        "call_id": str(call.call_id),
        "session": external_id,
        "view": call.view,
        "head": call.head,
        "epoch": call.epoch,
        "format": call.format,
        "model": call.model,
        "policy": {"name": call.policy[0], "version": call.policy[1]},
    }
    tail: dict[str, Json] = {
        "tokens": {
            "estimate": call.estimate,
            "target": call.target,
            "limit": job.budget.window,
            "reserve": job.budget.reserve,
            "estimator": job.counter.estimator.name,
            "by_source": by_source,
        },
        "summaries": [],
        "evictions": [_eviction(row) for row in rendered.evictions],
        "cache": {
            "breakpoints": [{"seq": point.seq, "kind": point.kind} for point in rendered.breakpoints],
            "prefix_sha256": rendered.prefix_sha256.hex(),
            "prefix_tokens": call.estimate - by_source["ephemeral"],
        },
        "compaction": {"state": "none", "reason": None},
        "sha256": rendered.sha256.hex(),
    }
    # The request is already text: parsing it to build one value, only to print it again, would double the work.
    return f'{canonical_json(head)[:-1]},"request":{rendered.request},{canonical_json(tail)[1:]}'


def _eviction(row: Eviction) -> dict[str, Json]:
    return {
        "from_seq": row.from_seq,
        "to_seq": row.to_seq,
        "disposition": row.disposition,
        "reducer": row.reducer,
        "reason": row.reason,
        "tokens_saved": row.tokens_saved,
    }


def _injection_text(injection: Injection) -> str:
    return f'<injected name="{injection.name}">\n{injection.content}\n</injected>'


def _injected_tokens(injections: tuple[Injection, ...], counter: Counter, reserve: int) -> int:
    """Tokens of all injections. Raises InjectionOverReserve naming the first that is too large."""
    total = 0
    for injection in injections:
        tokens = counter.message(_injection_text(injection))
        total += tokens
        ceiling = min(reserve, injection.max_tokens) if injection.max_tokens is not None else reserve
        if tokens > ceiling or total > reserve:
            raise InjectionOverReserve(
                f"injection {injection.name!r} takes {tokens} of {ceiling} reserved tokens, all up to it {total}",
                name=injection.name,
                tokens=tokens,
                reserve=ceiling,
            )
    return total


def _new_call_id() -> UUID:
    """A UUIDv7 (RFC 9562): calls of a session stand in the index in the order they were made."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))
