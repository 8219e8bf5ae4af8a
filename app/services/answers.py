"""What a rendered context is answered and recorded as: the answer's JSON, the call's row, the epoch it opens."""

from app.core import wording
from app.core.events import Json, canonical_json
from app.core.manifest import Eviction, evicted, stable_tokens
from app.core.plan.frontier import first_changed
from app.services.ids import new_id
from app.services.rendering import Job, Rendered, Settings
from app.store.views import CallRow, NewEpoch, ViewRow


def changed(view: ViewRow | None, settings: Settings) -> str | None:
    """What of a view's settings differs: then it is planned afresh, since its cache is cold anyway."""
    if view is None:
        return None
    if view.model != settings.model:
        return "model"
    if view.window_tokens != settings.window_tokens:
        return "window"
    return "policy" if view.policy != settings.policy_ref else None


def new_epoch(job: Job, rendered: Rendered, epoch: int) -> NewEpoch:
    """The epoch that a plan opens."""
    loaded, planned = job.loaded, rendered.plan
    cause = changed(loaded.view, job.settings) or planned.cause or "start"
    if loaded.view is not None and job.anew and not job.fresh:
        cause = loaded.view.afresh or "policy"
    if loaded.view is None:
        cause = "start" if planned.cause in (None, "system_prompt", "tools") else planned.cause or "start"
    settings = ViewRow(job.settings.policy_ref, job.settings.model, job.settings.window_tokens, epoch, epoch)
    changed_seq = 0 if job.anew else first_changed(loaded.frontier, planned.state)
    stable = 0 if job.anew else stable_tokens(planned.context, planned.state, loaded.frontier, changed_seq)
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
        evictions=[_eviction(row) for row in rendered.evictions],
        evicted=evicted(planned.state),
        changed_seq=changed_seq,
        stable_tokens=stable,
    )


def call_row(job: Job, rendered: Rendered, epoch: int) -> CallRow:
    """The call's record, under an id of its own."""
    request, planned = job.request, rendered.plan
    manifest: dict[str, Json] = {
        "window": job.budget.window,
        "reserve": job.budget.reserve,
        "injection_reserve": job.budget.injection_reserve,
        "estimator": job.counter.estimator.name,
        "by_source": planned.context.by_source,
        "prefix_sha256": rendered.prefix_sha256.hex(),
        "breakpoint_kinds": [point.kind for point in rendered.breakpoints],
    }
    if any(point.hour for point in rendered.breakpoints):
        manifest["hour"] = True
    if planned.state.folds:
        manifest["summaries"] = _summaries(rendered)
    if planned.pruning != "disabled":
        manifest["ttl_pruning"] = planned.pruning
    if planned.notice is not None:
        manifest["notice"] = planned.notice
    if planned.stalled is not None:
        manifest["stalled"] = planned.stalled
    if request.now is not None:
        manifest["now"] = request.now.isoformat()
    if request.injections:
        manifest["injections"] = [{"name": i.name, "content": i.content} for i in request.injections]
    return CallRow(
        call_id=new_id(),
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
        counted=planned.context.tokens,
        evicted_tokens=sum(row.tokens_saved for row in rendered.evictions),
    )


def answer(external_id: str, job: Job, rendered: Rendered, call: CallRow, compaction: str) -> str:
    """The answer's JSON. `compaction`: whether summaries are being written (none, scheduled, running)."""
    by_source, stalled = rendered.plan.context.by_source, rendered.plan.stalled
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
        "summaries": _summaries(rendered),
        "evictions": [_eviction(row) for row in rendered.evictions],
        "cache": {
            "breakpoints": [{"seq": point.seq, "kind": point.kind} for point in rendered.breakpoints],
            "prefix_sha256": rendered.prefix_sha256.hex(),
            "prefix_tokens": call.estimate - by_source["ephemeral"],
        },
        "compaction": {"state": compaction if stalled is None else "stalled", "reason": stalled},
        "sha256": rendered.sha256.hex(),
    }
    # The request is already text: parsing it to build one value, only to print it again, would double the work.
    return f'{canonical_json(head)[:-1]},"request":{rendered.request},{canonical_json(tail)[1:]}'


def _summaries(rendered: Rendered) -> list[Json]:
    shown = (fold for fold in rendered.plan.state.folds if fold.shown)
    return [
        {"id": f.id, "from_seq": f.from_seq, "to_seq": f.to_seq, "depth": f.depth, "tokens": f.tokens} for f in shown
    ]


def _eviction(row: Eviction) -> dict[str, Json]:
    return {
        "from_seq": row.from_seq,
        "to_seq": row.to_seq,
        "disposition": row.disposition,
        "reducer": row.reducer,
        "reason": row.reason,
        "tokens_saved": row.tokens_saved,
    }
