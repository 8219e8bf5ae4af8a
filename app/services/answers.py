"""What a rendered context is answered and recorded as: the answer's JSON, the call's row, the epoch it opens."""

from collections.abc import Iterable, Mapping

from app.core.audit.manifest import Eviction, evicted, stable_tokens, tokens_behind
from app.core.log.events import Json, canonical_json
from app.core.plan.context import wording
from app.core.plan.context.frontier import first_changed
from app.services.calibrated import calibration_of
from app.services.ids import new_id
from app.services.rendering import ContextInputs, Rendered, ViewSettings
from app.store.calls import NewCall, NewEpoch
from app.store.views import ViewRow


def changed(view: ViewRow | None, settings: ViewSettings) -> str | None:
    """What of a view's settings differs: then it is planned afresh, since its cache is cold anyway."""
    if view is None:
        return None
    if view.model != settings.model:
        return "model"
    if view.window_tokens != settings.window_tokens:
        return "window"
    return "policy" if view.policy != settings.policy_ref else None


def opened(job: ContextInputs, rendered: Rendered) -> NewEpoch | None:
    """The epoch that a plan opens; None when the view's own still stands."""
    view = job.loaded.view
    if rendered.plan.cause is None and view is not None and not job.anew:
        return None
    return _new_epoch(job, rendered, (view.epochs if view else 0) + 1)


def _new_epoch(job: ContextInputs, rendered: Rendered, epoch: int) -> NewEpoch:
    loaded, planned = job.loaded, rendered.plan
    shown = job.budget.shown
    cause = changed(loaded.view, job.settings) or planned.cause or "start"
    if loaded.view is not None and job.anew and not job.fresh:
        cause = loaded.view.afresh or "policy"
    elif loaded.view is not None and job.fresh and changed(loaded.view, job.settings) is None:
        # At an earlier seq: a redaction of what the epoch that was asked for shows a summary of.
        cause = "healed" if job.request.at is None else "redaction"
    if loaded.view is None:
        cause = "start" if planned.cause in (None, "system_prompt", "tools") else planned.cause or "start"
    if job.request.retry is not None:
        cause = "overflow"
    settings = ViewRow(job.settings.policy_ref, job.settings.model, job.settings.window_tokens, epoch, epoch)
    changed_seq = 0 if job.anew else first_changed(loaded.frontier, planned.state)
    stable = 0 if job.anew else stable_tokens(planned.context, planned.state, loaded.frontier, changed_seq)
    return NewEpoch(
        epoch=epoch,
        head=loaded.head,
        cause=cause,
        frontier=planned.state,
        tokens_before=shown(planned.tokens_before),
        tokens_after=shown(planned.context.tokens),
        settings=settings,
        target=max(job.budget.target, job.budget.most),
        carry_tokens=planned.context.tokens - loaded.log_tokens,
        current=job.request.at is None or job.request.at == loaded.real_head,
        evictions=_evictions(job, rendered.evictions),
        evicted=evicted(planned.state),
        changed_seq=changed_seq,
        stable_tokens=shown(stable),
    )


def call_row(job: ContextInputs, rendered: Rendered, epoch: int) -> NewCall:
    """The call's record, under an id of its own."""
    request, planned = job.request, rendered.plan
    manifest: dict[str, Json] = {
        "window": job.budget.window,
        "reserve": job.budget.reserve,
        "injection_reserve": job.budget.injection_reserve,
        "estimator": job.counter.estimator.name,
        **({"outside": job.budget.outside, "outside_by": job.outside_by} if job.outside_by else {}),
        "by_source": job.budget.parts(rendered.by_source),
        "prefix_sha256": rendered.prefix_sha256.hex(),
        "breakpoint_kinds": [point.kind for point in rendered.breakpoints],
    }
    if rendered.breakpoints:
        behind = tokens_behind(planned.context, planned.state, [point.seq for point in rendered.breakpoints])
        manifest["breakpoint_tokens"] = [job.budget.shown(behind.get(point.seq, 0)) for point in rendered.breakpoints]
        manifest["breakpoint_blocks"] = [point.at for point in rendered.breakpoints]
    if rendered.unfit:
        manifest["unfit"] = _evictions(job, rendered.unfit)
    if any(point.hour for point in rendered.breakpoints):
        manifest["hour"] = True
    if shown := len(_summaries(job, rendered)):
        manifest["summaries"] = shown
    if (calibration := _calibration(job)) is not None:
        manifest["calibration"] = calibration
    if job.loaded.redactions:
        manifest["redactions"] = job.loaded.redactions
    if planned.pruning != "disabled":
        manifest["ttl_pruning"] = planned.pruning
    if planned.notice is not None:
        manifest["notice"] = planned.notice
    if planned.stalled is not None:
        manifest["stalled"] = planned.stalled
    if request.now is not None:
        manifest["now"] = request.now.isoformat()
    if job.layers:
        manifest["layers"] = {layer.kind: layer.version for layer in job.layers}
    if request.recall:
        manifest["recall"] = True
    if request.injections:
        manifest["injections"] = [{"name": i.name, "content": i.content} for i in request.injections]
    return NewCall(
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
        estimate=job.budget.shown(rendered.tokens),
        target=job.budget.limit,
        sha256=rendered.sha256,
        counted=rendered.tokens,
        evicted_tokens=job.budget.shown(sum(row.tokens_saved for row in rendered.evictions)),
        keep_days=job.keep_days,
        retry_of=None if request.retry is None else request.retry.call_id,
    )


def answer(
    external_id: str,
    job: ContextInputs,
    rendered: Rendered,
    call: NewCall,
    compaction: str,
    preview: Mapping[str, Json] | None = None,
) -> str:
    """The answer's JSON. `compaction`: whether summaries are being written (none, scheduled, running).

    With `preview`, which is added to it, it is of a call that was not made and has no id.
    """
    by_source, stalled = job.budget.parts(rendered.by_source), rendered.plan.stalled
    head: dict[str, Json] = {
        "call_id": str(call.call_id) if preview is None else None,
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
            "outside": job.budget.outside,
            "estimator": job.counter.estimator.name,
            "by_source": by_source,
            "calibration": _calibration(job),
        },
        "summaries": _summaries(job, rendered),
        "evictions": _evictions(job, sorted((*rendered.evictions, *rendered.unfit), key=lambda row: row.from_seq)),
        "cache": {
            "breakpoints": [{"seq": point.seq, "kind": point.kind} for point in rendered.breakpoints],
            "prefix_sha256": rendered.prefix_sha256.hex(),
            "prefix_tokens": call.estimate - by_source["ephemeral"],
        },
        "compaction": {"state": compaction if stalled is None else "stalled", "reason": stalled},
        "sha256": rendered.sha256.hex(),
        **(preview or {}),
    }
    # The request is already text: parsing it to build one value, only to print it again, would double the work.
    return f'{canonical_json(head)[:-1]},"request":{rendered.request},{canonical_json(tail)[1:]}'


def _calibration(job: ContextInputs) -> dict[str, Json] | None:
    """By what the tokens shown were brought from the estimator's into the provider's; None if nothing was reported."""
    known, reported = calibration_of(job.loaded, job.settings.model, job.counter), job.loaded.reported
    if (known is None or not (known.version or known.samples)) and reported is None:
        return None
    margin = job.counter.estimator.margin if known is None else known.margin
    return {"ratio": round(job.budget.ratio, 4), "margin": margin, "samples": known.samples if known else 0}


def _summaries(job: ContextInputs, rendered: Rendered) -> list[Json]:
    shown = (fold for fold in rendered.plan.state.folds if fold.shown)
    return [
        {
            "id": f.id,
            "from_seq": f.from_seq,
            "to_seq": f.to_seq,
            "depth": f.depth,
            "tokens": job.budget.shown(f.tokens),
        }
        for f in shown
    ]


def _evictions(job: ContextInputs, rows: Iterable[Eviction]) -> list[Mapping[str, Json]]:
    return [_eviction(row, job.budget.shown(row.tokens_saved)) for row in rows]


def _eviction(row: Eviction, tokens_saved: int) -> dict[str, Json]:
    return {
        "from_seq": row.from_seq,
        "to_seq": row.to_seq,
        "disposition": row.disposition,
        "reducer": row.reducer,
        "reason": row.reason,
        "tokens_saved": tokens_saved,
    }
