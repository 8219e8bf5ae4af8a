"""Assemble a context: one pure function from its inputs to the request that is sent and the record that is kept."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from app.core import dataclass, replace
from app.core.assembly.inputs import ContextInputs, ViewRow, changed_setting, plan_inputs, summary_tree
from app.core.errors import NothingToSend
from app.core.lexicon.times import from_seconds, is_time
from app.core.plan.pipeline import PREFIX_CAUSES, Plan, PlanStart, begin, finish
from app.core.plan.state import wording
from app.core.plan.state.frontier import Frontier, first_changed
from app.core.record import AppliedCalibration, CallManifest, RecordedBreakpoint
from app.core.record.evictions import (
    Eviction,
    evicted_ranges,
    evictions,
    format_evictions,
    left_out_tokens,
    stable_tokens,
    tokens_up_to,
)
from app.core.render.breakpoints import LOOKBACK_BLOCKS, Marking, choose_breakpoints
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.request import Request, Settled, WrittenContext, ephemeral_content, write_text
from app.core.tokens.models import ANTHROPIC, CachedPrefix, cached_prefix


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """A new epoch; it becomes the view's current epoch if `current`.

    `tokens_before`, `tokens_after` and `stable_tokens` are in the provider's tokens, `target` and `carry_tokens` in our
    own. `carry_tokens` are the context's tokens less the log's, by which appends estimate the next context.
    `changed_seq` is the first seq shown differently than before, 0 if all may be; `stable_tokens` are those before it.
    `evicted` are the (first, last) seqs of ranges that are not shown as logged.
    """

    epoch: int
    head: int
    cause: str
    frontier: Frontier
    tokens_before: int
    tokens_after: int
    view_row: ViewRow
    target: int
    carry_tokens: int
    current: bool
    evictions: tuple[Eviction, ...]
    evicted: Sequence[tuple[int, int]]
    changed_seq: int
    stable_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """The record of a call. `counted` is in our tokens; `estimate`, `target` and `evicted_tokens` in the provider's."""

    call_id: UUID
    view: str
    head: int
    epoch: int
    policy: tuple[str, int]
    format: str
    model: str | None
    render_version: int
    manifest: CallManifest
    breakpoints: tuple[int, ...]
    estimate: int
    target: int
    sha256: bytes
    counted: int
    evicted_tokens: int
    retry_of: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall(CallRecord):
    """A call to record. `keep_days`: the minimum to keep the record, None for no limit; `held_out`: the request's."""

    keep_days: int | None = None
    held_out: bool | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A planned context as written: `layout` in its final order, `request` in its format.

    `settled` is the part that later contexts of the epoch repeat. `evictions` are the plan's, `unfit` is content
    that the format cannot express. `tokens` and `by_source` count the plan's context and the injections, by the inputs'
    counter.
    """

    plan: Plan
    layout: Layout
    settled: Settled
    request: Request
    tokens: int
    by_source: Mapping[str, int]
    evictions: tuple[Eviction, ...]
    unfit: tuple[Eviction, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A context with its record. `epoch` is the epoch that it opens; None if the view's current epoch continues."""

    inputs: ContextInputs
    rendered: Rendered
    call: NewCall
    epoch: NewEpoch | None


def assemble(inputs: ContextInputs, call_id: UUID) -> Assembled:
    """Plan, arrange and write a context, and make its record as the call `call_id`.

    Raises CannotFit if nothing legal fits, and NothingToSend if it holds nothing that could be sent to a model.
    """
    return assemble_plan(inputs, finish(begin_plan(inputs)), call_id)


def begin_plan(inputs: ContextInputs) -> PlanStart:
    """Update the context and determine the moment that it is planned for: the first part of `assemble`."""
    read, state = plan_inputs(inputs)
    return begin(read, inputs.budget, inputs.settings.policy, state, force=inputs.request.force)


def assemble_plan(inputs: ContextInputs, planned: Plan, call_id: UUID) -> Assembled:
    """Arrange and write a planned context, and make its record: the last part of `assemble`. Raises NothingToSend."""
    form, last = inputs.request.format, inputs.last_context
    if not any(item.shown for item in planned.context.items) and FORMATS[form].native:
        raise NothingToSend("the session holds nothing yet that could be sent to a model")
    injections = [(injection.name, injection.content) for injection in inputs.request.injections]
    injected = ephemeral_content(planned.notice, injections, inputs.layers)
    repeats = last is not None and planned.state is last.plan.state
    planned = planned if repeats else replace(planned, context=planned.context.without_unshown())
    text = write_text(form, planned.context, planned.state, injected, last.settled if last else None)
    context = planned.context
    rendered = Rendered(
        plan=planned,
        layout=text.layout,
        settled=text.settled,
        request=text.request(_breakpoints(inputs, planned, text) if FORMATS[form].marked else ()),
        tokens=context.tokens + inputs.injected_tokens,
        by_source={**context.by_source, "ephemeral": context.by_source["ephemeral"] + inputs.injected_tokens},
        evictions=last.evictions if last and repeats else evictions(planned.state, context),
        unfit=format_evictions(text.losses, form) if text.losses else (),
    )
    opens = planned.cause is not None or inputs.loaded.view is None or inputs.from_scratch
    epoch = _epoch(inputs, rendered) if opens else None
    number = inputs.loaded.epoch if epoch is None else epoch.epoch
    return Assembled(inputs, rendered, _call(inputs, rendered, call_id, number), epoch)


def _epoch(inputs: ContextInputs, rendered: Rendered) -> NewEpoch:
    """Return the epoch that a plan opens."""
    loaded, planned, shown = inputs.loaded, rendered.plan, inputs.budget.provider_tokens
    number = (loaded.view.epochs if loaded.view else 0) + 1
    view_row = ViewRow(inputs.settings.policy_ref, inputs.settings.model, inputs.settings.window_tokens, number, number)
    changed_seq = 0 if inputs.from_scratch else first_changed(loaded.frontier, planned.state)
    stable = 0 if inputs.from_scratch else stable_tokens(planned.context, planned.state, loaded.frontier, changed_seq)
    return NewEpoch(
        epoch=number,
        head=loaded.head,
        cause=_cause(inputs, planned),
        frontier=planned.state,
        tokens_before=shown(planned.tokens_before),
        tokens_after=shown(planned.context.tokens),
        view_row=view_row,
        target=max(inputs.budget.target, inputs.budget.fallback_target),
        carry_tokens=planned.context.tokens - loaded.log_tokens,
        current=inputs.request.at is None or inputs.request.at == loaded.real_head,
        evictions=shown_evictions(inputs, rendered.evictions),
        evicted=evicted_ranges(planned.state),
        changed_seq=changed_seq,
        stable_tokens=shown(stable),
    )


def _cause(inputs: ContextInputs, planned: Plan) -> str:
    loaded, request = inputs.loaded, inputs.request
    if request.retry is not None:
        return "overflow"
    if loaded.view is None:
        return "start" if planned.cause in (None, *PREFIX_CAUSES) else planned.cause
    if inputs.from_scratch and not inputs.ignores_epoch:
        return loaded.view.replan_cause or "policy"
    difference = changed_setting(loaded.view, inputs.settings)
    if inputs.ignores_epoch and difference is None:
        # At an earlier seq the cause is a redaction: the requested epoch shows a summary of the redacted event.
        return "healed" if request.at is None else "redaction"
    return difference or planned.cause or "start"


def _call(inputs: ContextInputs, rendered: Rendered, call_id: UUID, epoch: int) -> NewCall:
    request = inputs.request
    return NewCall(
        call_id=call_id,
        view=request.view,
        head=inputs.loaded.head,
        epoch=epoch,
        policy=inputs.settings.policy_ref,
        format=request.format,
        model=inputs.settings.model,
        render_version=wording.RENDER_VERSION,
        manifest=_manifest(inputs, rendered),
        breakpoints=tuple(point.seq for point in rendered.request.breakpoints),
        estimate=inputs.budget.provider_tokens(rendered.tokens),
        target=inputs.budget.applied_target(rendered.tokens),
        sha256=rendered.request.sha256,
        counted=rendered.tokens,
        evicted_tokens=inputs.budget.provider_tokens(left_out_tokens(rendered.evictions)),
        keep_days=inputs.keep_days,
        held_out=request.held_out,
        retry_of=None if request.retry is None else request.retry.call_id,
    )


def _manifest(inputs: ContextInputs, rendered: Rendered) -> CallManifest:
    """Return the part of a call's record that has no columns of its own."""
    budget, request, planned, policy = inputs.budget, inputs.request, rendered.plan, inputs.settings.policy
    points = rendered.request.breakpoints
    tokens = tokens_up_to(planned.context, planned.state, [point.seq for point in points]) if points else {}
    known, applied = budget.calibration, None
    if (known is not None and (known.version or known.reports)) or inputs.loaded.reported is not None:
        margin = inputs.counter.estimator.margin if known is None else known.margin
        applied = AppliedCalibration(round(budget.ratio, 4), margin, known.reports if known else 0)
    breakpoints = tuple(RecordedBreakpoint(p.kind, budget.provider_tokens(tokens.get(p.seq, 0)), p.at) for p in points)
    outside, by_source = budget.outside if budget.outside_by else 0, budget.parts(rendered.by_source)
    cached = CachedPrefix()
    if inputs.caching and inputs.cache_known and is_time(inputs.now + inputs.cache.ttl_seconds):
        stable = sum(by_source.values()) - by_source["ephemeral"]
        if inputs.cache.lookback_blocks is not None:  # the provider caches up to breakpoints only
            stable = breakpoints[-1].tokens or 0 if breakpoints else 0
        cached = cached_prefix(inputs.cache, stable, outside, inputs.now)
    return CallManifest(
        window=budget.window,
        window_stated=(request.max_tokens or request.served_tokens or policy.window_tokens) is not None
        or budget.window == request.window_max,
        reserve=budget.reserve,
        injection_reserve=budget.injection_reserve,
        estimator=inputs.counter.estimator.name,
        outside=outside,
        outside_by=budget.outside_by,
        by_source=by_source,
        prefix_sha256=rendered.request.prefix_sha256,
        breakpoints=breakpoints,
        cached_tokens=cached.tokens,
        cache_expires_at=None if cached.expires_at is None else from_seconds(cached.expires_at),
        hour=any(point.hour for point in points),
        unfit=shown_evictions(inputs, rendered.unfit) if rendered.unfit else (),
        summaries=sum(fold.shown for fold in planned.state.folds),
        calibration=applied,
        redactions=inputs.loaded.redactions,
        ttl_pruning=planned.pruning,
        notice=planned.notice,
        stalled=planned.stalled,
        moment=planned.moment,
        caching=inputs.caching,
        now=request.now,
        layers={layer.kind: layer.version for layer in inputs.layers},
        recall=request.recall,
        cache_last=request.cache_last,
        injections=tuple((injection.name, injection.content) for injection in request.injections),
    )


def folds_more(assembled: Assembled) -> bool:
    """Return whether a context folds more than the one before it."""
    inputs = assembled.inputs
    folded_to = 0 if inputs.from_scratch else inputs.loaded.frontier.folded_to
    return assembled.rendered.plan.state.folded_to > folded_to


def reason_not_shown(assembled: Assembled) -> str | None:
    """Return why a requested compaction is not shown by a context; None if it is, or if none was requested."""
    inputs, loaded, state = assembled.inputs, assembled.inputs.loaded, assembled.rendered.plan.state
    if inputs.request.at is not None:
        return None
    if loaded.requested_error is not None:
        return f"the requested compaction wrote no summary: {loaded.requested_error}"
    if loaded.requested_to <= state.folded_to:
        return None
    if not summary_tree(inputs):
        return "the requested summaries are not shown: this view shows other authors or types of events"
    return "the requested summaries are not shown: they would save nothing"


def shown_evictions(inputs: ContextInputs, rows: Iterable[Eviction]) -> tuple[Eviction, ...]:
    """Return evictions as recorded and returned, in the provider's tokens."""
    shown = inputs.budget.provider_tokens
    return tuple(
        row if (saved := shown(row.tokens_saved)) == row.tokens_saved else replace(row, tokens_saved=saved)
        for row in rows
    )


def _breakpoints(inputs: ContextInputs, planned: Plan, text: WrittenContext) -> tuple[Breakpoint, ...]:
    same_epoch = planned.cause is None and not inputs.from_scratch
    changed = 0 if same_epoch or inputs.from_scratch else first_changed(inputs.loaded.frontier, planned.state)
    marking = Marking(
        markers=inputs.settings.policy.markers,
        markers_max=inputs.cache.markers,
        lookback=inputs.cache.lookback_blocks or LOOKBACK_BLOCKS,
        changed_seq=changed,
        turn_seq=planned.context.turn_seq,
        uncached_from=planned.once_from,
        tail=inputs.request.cache_last,
    )
    points = choose_breakpoints(text.layout, text.places, inputs.loaded.last_breakpoints if same_epoch else (), marking)
    hour = inputs.cache.ttl_seconds > ANTHROPIC.ttl_seconds
    return tuple(replace(point, hour=True) for point in points) if hour else points
