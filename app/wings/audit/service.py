"""Recorded calls, listed and explained, and the next evictions of a view."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from app.core.assembly.assemble import shown_evictions
from app.core.assembly.inputs import ContextRequest
from app.core.errors import NotFound, NotReproducible
from app.core.log.events import Json
from app.core.log.segments import is_line, line_of
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.projection import project
from app.core.record import NO_COUNT
from app.core.record.evictions import disposition_runs, dispositions, eviction_row, without_shown
from app.core.render.formats.parts import plain_text
from app.core.tokens.budget import provider_tokens
from app.http.fields import Answer, answer_of
from app.resources.contexts.recordings import Recordings, Reproduced
from app.resources.contexts.routes import ContextResponse, parts_json
from app.resources.contexts.schemas import CallRef
from app.resources.contexts.service import Assembly
from app.resources.policies.service import Policies
from app.store import audit, event_log, lines, sessions
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, session_key, session_ref
from app.wings.audit import schemas
from app.wings.audit.call_blocks import CallBlock, call_blocks
from app.wings.audit.declined import Declined, declined
from app.wings.audit.moments import Moments, next_reduction


class Audit:
    """Lists and explains recorded calls, and plans the next evictions of a view."""

    def __init__(
        self, database: Database, policies: Policies, recordings: Recordings, assembly: Assembly, moments: Moments
    ) -> None:
        self._database = database
        self._policies = policies
        self._recordings = recordings
        self._assembly = assembly
        self._moments = moments

    async def page(
        self, tenant_id: UUID, external_id: str, *, view: str | None, before: UUID | None, limit: int
    ) -> list[tuple[str, CallRow]]:
        """Return the calls of a line, or of all lines of a session, newest first, each with the name of its line's row.

        Raises NotFound for an unknown session.
        """
        names = {session_key(tenant_id, external_id): external_id}
        if not is_line(external_id):
            names = await lines.names(self._database, tenant_id, external_id)
        calls = await audit.page(self._database, names, tenant_id, view=view, before=before, limit=limit)
        if not calls:
            await sessions.get(self._database, tenant_id, external_id)
        return [(names[session_id], call) for session_id, call in calls]

    async def explain(
        self,
        tenant_id: UUID,
        external_id: str,
        call_id: UUID,
        *,
        with_dispositions: bool = True,
        with_declined: bool = True,
    ) -> schemas.Manifest:
        """Return the complete record of a call. Raises NotFound, or NotReproducible."""
        call = await self._recordings.find(tenant_id, external_id, call_id)
        ref = session_ref(tenant_id, external_id)
        epoch = await self._recordings.epoch(ref.session_id, call)
        fates = await self._dispositions(ref, call, epoch.frontier) if with_dispositions else {}
        later = (await audit.erased_seqs(self._database, ref.session_id))[call.manifest.redactions :]
        runs = disposition_runs(fates, epoch.frontier.folds)
        asked = await self._declined(tenant_id, external_id, call) if with_declined else None
        return manifest(external_id, call, epoch, runs, [seq for seq in later if seq <= call.head], asked)

    async def _declined(self, tenant_id: UUID, external_id: str, call: CallRow) -> tuple[Declined, ...] | None:
        """Return the reducers that evicted nothing for a call; None if that is not known."""
        if call.manifest.moment is None:
            return None
        try:
            done = await self._recordings.reproduce(tenant_id, external_id, call)
        except NotReproducible:
            return None
        at = await self._moments.of_call(tenant_id, external_id, done)
        return None if at is None else await asyncio.to_thread(declined, at)

    async def _dispositions(self, ref: SessionRef, call: CallRow, state: Frontier) -> dict[int, str]:
        """Return the disposition of every event up to the call's head, by seq (I4)."""
        policy = await self._policies.get(ref.tenant_id, call.policy)
        events = await event_log.events_without_bodies(self._database, SessionLog(ref.session_id), call.head)
        erased = (await audit.erased_seqs(self._database, ref.session_id))[: call.manifest.redactions]
        shown = partial(project, events, state, NO_COUNT, turn=0, shows=policy.shows)
        return await asyncio.to_thread(lambda: dispositions(events, shown(), state, erased))

    async def blocks(self, tenant_id: UUID, external_id: str, call_id: UUID) -> Sequence[CallBlock]:
        """Return the blocks of a call's request, in order. Raises NotFound, or NotReproducible."""
        done = await self._recordings.context(tenant_id, external_id, call_id)
        erased = frozenset(await audit.erased_seqs(self._database, session_key(tenant_id, external_id)))
        at = await self._moments.of_call(tenant_id, external_id, done)
        stays = None if at is None else at.protections
        return call_blocks(done.replayed, done.epoch.frontier, done.call, erased, stays, exact=done.is_exact)

    async def block(self, tenant_id: UUID, external_id: str, call_id: UUID, index: int) -> CallBlock:
        """Return one block of a call's request. Raises NotFound, or NotReproducible."""
        blocks = await self.blocks(tenant_id, external_id, call_id)
        if index >= len(blocks):
            named = {"session": external_id, "call": str(call_id)}
            raise NotFound(f"call {call_id} has {len(blocks)} blocks, and none at {index}", **named)
        return blocks[index]

    async def next_evictions(
        self, tenant_id: UUID, external_id: str, view: str, limit: int
    ) -> schemas.NextEvictionsOut:
        """Return the first evictions of a view's next reduction. Raises NotFound, InvalidPolicy or CannotFit."""
        request = ContextRequest(view=view)
        inputs = await self._assembly.load_inputs(tenant_id, external_id, request, from_memory=True)
        found = await asyncio.to_thread(next_reduction, inputs)
        rows, shown = shown_evictions(inputs, found.evictions), inputs.budget.provider_tokens
        return answer_of(
            schemas.NextEvictionsOut,
            found,
            inputs.loaded,
            session=external_id,
            line=line_of(external_id),
            view=view,
            tokens=shown(found.tokens),
            threshold=shown(inputs.budget.trigger),
            target=inputs.budget.limit,
            tokens_after=shown(found.tokens_after),
            evictions=list(map(eviction_row, rows[:limit])),
            more=max(0, len(rows) - limit),
        )


def _about(kind: type[Answer], session: str, call: CallRow, **more: Any) -> Answer:
    """Return an answer about a call."""
    return answer_of(kind, call, call.manifest, **more, session=session, line=line_of(session))


def call_item(session: str, call: CallRow) -> schemas.CallItem:
    """Return a call as an item of a list."""
    return _about(
        schemas.CallItem,
        session,
        call,
        outcome=_outcome(call),
        overflow=bool(call.outcome and call.outcome.overflow),
        input_tokens=call.outcome and call.outcome.input_tokens,
    )


def _outcome(call: CallRow) -> schemas.CallOutcome | None:
    """Return a call's reported outcome; None until it is reported."""
    found = call.outcome
    if found is None or call.reported_at is None:
        return None
    return answer_of(schemas.CallOutcome, found, call, usage=found)


def _parts(call: CallRow, epoch: StoredEpoch, prefix_sha256: bytes) -> dict[str, Json]:
    """Return the parts of a response that describe a call's request; records of early versions hold evictions."""
    applied, own = call.manifest.calibration, call.manifest.evictions
    ratio = applied.ratio if applied else 1.0
    rows = without_shown([*(epoch.evictions if own is None else own), *call.manifest.unfit], epoch.frontier)
    evictions = list(map(eviction_row, rows))
    return parts_json(
        call, epoch.frontier.folds, evictions, prefix_sha256, lambda tokens: provider_tokens(tokens, ratio)
    )


def manifest(
    session: str,
    call: CallRow,
    epoch: StoredEpoch,
    runs: Iterable[Mapping[str, Json]],
    redacted_since: Sequence[int],
    declined: Sequence[Declined] | None,
) -> schemas.Manifest:
    """Return the complete record of a call; `runs` are the dispositions of its events.

    `declined` are the reducers that evicted nothing, None if unknown.
    """
    injected = call.manifest.injections
    return _about(
        schemas.Manifest,
        session,
        call,
        **_parts(call, epoch, call.manifest.prefix_sha256),
        cause=epoch.cause,
        injections=[schemas.InjectionRef(name=name, chars=len(plain_text(content))) for name, content in injected],
        outcome=_outcome(call),
        dispositions=list(runs),
        redacted_since=redacted_since,
        declined=declined,
        moment=call.manifest.moment,
    )


def context_again(session: str, done: Reproduced) -> bytes:
    """Return the response with a call rendered again: the request as its bytes, the rest as `ContextAgain`."""
    call, request = done.call, done.replayed.request
    answer = _about(
        schemas.ContextAgain,
        session,
        call,
        **_parts(call, done.epoch, request.prefix_sha256),
        reproduced=done.is_exact,
        redacted=done.erased,
        request={},
        sha256=request.sha256.hex(),
        recorded_sha256=call.sha256.hex(),
    )
    rest = answer.model_dump(mode="json", exclude={"request"})
    ref = {name: rest.pop(name) for name in CallRef.model_fields}
    return ContextResponse(ref, request, rest).json()
