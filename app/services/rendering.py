"""From what was loaded to the bytes of a request: plan, arrange, write. Pure."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.core.budget import Budget
from app.core.cache import ANTHROPIC, CacheProfile
from app.core.errors import InjectionOverReserve, NothingToSend
from app.core.events import canonical_json
from app.core.formats import FORMATS
from app.core.log import Event
from app.core.manifest import Eviction, evictions
from app.core.plan.frontier import START, first_changed
from app.core.plan.pipeline import Plan, Read, Standing, plan
from app.core.policy import Policy
from app.core.render.arrange import arrange
from app.core.render.breakpoints import LOOKBACK_BLOCKS, Marking, choose
from app.core.render.layout import Breakpoint, Layout, Written
from app.core.tokens import Counter
from app.store.summaries import cover_id
from app.store.views import Loaded


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
    wait_ms: int | None = None


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
class Job:
    """All inputs of a context. `fresh`: the view's epoch is disregarded."""

    events: tuple[Event, ...]
    loaded: Loaded
    settings: Settings
    counter: Counter
    budget: Budget
    fresh: bool
    request: ContextRequest
    injected_tokens: int = 0
    before: Standing | None = None
    now: float = 0.0
    cache: CacheProfile = CacheProfile()

    @property
    def anew(self) -> bool:
        """Whether it is planned from nothing: with other settings, or under a policy the session was given since."""
        return self.fresh or (self.request.at is None and self.loaded.epoch == 0)


def render(job: Job) -> Rendered:
    """Plan and write: pure."""
    planned = planned_for(job)
    if not planned.context.items and job.request.format != "blocks":
        raise NothingToSend("the session holds nothing yet that could be sent to a model")
    injected = [_injection_text(injection) for injection in job.request.injections]
    told = [] if planned.notice is None else [planned.notice]
    layout = arrange(planned.context, planned.state, told + injected)
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
        evictions=evictions(planned.state, planned.context),
    )


def planned_for(job: Job) -> Plan:
    """The plan alone."""
    loaded = job.loaded
    used_at = loaded.used_at
    state = loaded.frontier
    own = str(cover_id(loaded.session_id, job.settings.policy.authors))
    if job.anew:
        state = replace(START, began=loaded.head)
        used_at = None if loaded.view is None else -math.inf  # other settings: what was cached is of no use
    read = Read(
        job.events,
        loaded.turn,
        job.counter,
        loaded.unread,
        job.injected_tokens,
        job.before,
        job.now,
        used_at,
        job.cache,
        tuple(one for one in loaded.cover if one.cover_id == own and one.to_seq <= loaded.head),
        () if job.anew else loaded.folded,
    )
    return plan(read, job.budget, job.settings.policy, state, force=job.request.force)


def wants_more(job: Job, bound: int) -> bool:
    """Whether older events that were not read would still have their place."""
    if not job.loaded.unread.to_seq or bound > job.loaded.log_tokens:
        return False
    return planned_for(job).tokens_before < job.budget.goal


def _breakpoints(job: Job, planned: Plan, layout: Layout) -> tuple[Breakpoint, ...]:
    if job.request.format != "anthropic" or planned.context.tokens < job.cache.minimum_tokens:
        return ()
    same_epoch = planned.cause is None and not job.anew
    changed = 0 if same_epoch or job.anew else first_changed(job.loaded.frontier, planned.state)
    marking = Marking(
        markers=job.settings.policy.markers,
        markers_max=job.cache.markers,
        lookback=job.cache.lookback_blocks or LOOKBACK_BLOCKS,
        early=_early(planned, job.cache.minimum_tokens),
        changed_seq=changed,
        turn_seq=next((i.event.seq for i in planned.context.items if i.event.turn == planned.context.turn), 0),
    )
    points = choose(layout, job.loaded.last_breakpoints if same_epoch else (), marking)
    hour = job.cache.ttl_seconds > ANTHROPIC.ttl_seconds
    return tuple(replace(point, hour=True) for point in points) if hour else points


def _early(planned: Plan, minimum_tokens: int) -> frozenset[int]:
    """The seqs up to which the prefix is smaller than what the provider caches."""
    context = planned.context
    total = sum(event.tokens for event in context.prefix)
    if total >= minimum_tokens:
        return frozenset()
    early = {event.seq for event in context.prefix}
    total += context.note_tokens
    if total >= minimum_tokens:
        return frozenset(early)
    early.add(planned.state.floor)
    for item in context.items:
        total += item.tokens
        if total >= minimum_tokens:
            break
        early.add(item.event.seq)
    return frozenset(early)


def _prefix_sha256(form: str, layout: Layout, written: Written, sha256: bytes) -> bytes:
    """SHA-256 of the request without cache markers and without the ephemeral tail."""
    stable = tuple(block for block in layout.blocks if not block.ephemeral)
    if not written.breakpoints and len(stable) == len(layout.blocks):
        return sha256
    request = FORMATS[form].write(replace(layout, blocks=stable)).request
    return hashlib.sha256(canonical_json(request).encode()).digest()


def _injection_text(injection: Injection) -> str:
    return f'<injected name="{injection.name}">\n{injection.content}\n</injected>'


def injected_tokens(injections: tuple[Injection, ...], counter: Counter, reserve: int) -> int:
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
