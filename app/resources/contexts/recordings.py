"""Recorded calls, and their contexts rendered again."""

from dataclasses import dataclass
from uuid import UUID

from app.core.errors import NotFound, NotReproducible
from app.core.plan.state.frontier import Frontier
from app.core.record import ReplayedCall, ReplayInputs, UnknownVersion, breakpoints_of, replay_call, seqs_in_request
from app.resources.policies.service import Policies
from app.store import audit
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.ids import SessionRef, session_ref
from app.store.layers import named as named_layers

_TAMPERED = (ArithmeticError, AssertionError, AttributeError, LookupError, NotFound, TypeError, ValueError)
"""Errors that rendering from changed rows can raise."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A call rendered again. If the result differs from what was sent, `erased` has the seqs of its context that were
    redacted since; otherwise it is empty."""

    call: CallRow
    replayed: ReplayedCall
    epoch: StoredEpoch
    erased: tuple[int, ...]

    @property
    def is_exact(self) -> bool:
        """Whether the result is the same as what was sent."""
        return not self.erased


class Recordings:
    """Reads a session's recorded calls, and renders them again."""

    def __init__(self, database: Database, policies: Policies) -> None:
        self._database = database
        self._policies = policies

    async def find(self, tenant_id: UUID, address: str, call_id: UUID) -> CallRow:
        """Return the record of a call. Raises NotFound, or NotReproducible for a record that cannot be read."""
        ref = session_ref(tenant_id, address)
        try:
            call = await audit.find(self._database, ref, call_id)
        except (UnknownVersion, *_TAMPERED) as error:
            raise NotReproducible(
                f"the record of call {call_id} cannot be read: {error}", call_id=str(call_id)
            ) from error
        if call is None:
            named = {"session": address, "call": str(call_id)}
            raise NotFound(f"session {address!r} has no record of call {call_id}", **named)
        return call

    async def context(self, tenant_id: UUID, address: str, call_id: UUID) -> Reproduced:
        """Return the request of a call as it was sent. Raises NotFound, and what `reproduce` raises."""
        return await self.reproduce(tenant_id, address, await self.find(tenant_id, address, call_id))

    async def reproduce(self, tenant_id: UUID, address: str, call: CallRow) -> Reproduced:
        """Render a call again and compare it with its record.

        Events that were redacted later are shown as such. Raises NotReproducible if the bytes differ for any other
        reason.
        """
        ref = session_ref(tenant_id, address)
        try:
            epoch = await self.epoch(ref.session_id, call)
            inputs = await self._inputs(ref, call, epoch.frontier)
            again = replay_call(inputs)
        except UnknownVersion as error:
            raise _not_reproducible(call, None, str(error)) from error
        except _TAMPERED as error:
            raise _not_reproducible(call, None, f"its record cannot be read: {error}") from error
        same_prefix = call.manifest.prefix_sha256 in (b"", again.request.prefix_sha256)
        exact = again.request.sha256 == call.sha256 and same_prefix
        later = (await audit.erased_seqs(self._database, ref.session_id))[call.manifest.redactions :]
        erased = () if exact else tuple(sorted(seqs_in_request(later, again.context, epoch.frontier)))
        if not exact and not erased:
            raise _not_reproducible(call, again.request.sha256, "the data that its record refers to has changed")
        return Reproduced(call, again, epoch, erased)

    async def epoch(self, session_id: UUID, call: CallRow) -> StoredEpoch:
        """Return the epoch that a call was rendered from. Raises NotReproducible."""
        found = await audit.epoch(self._database, session_id, call.view, call.epoch)
        if found is None:
            raise _not_reproducible(call, None, f"epoch {call.epoch} of view {call.view!r} is missing")
        return found

    async def _inputs(self, ref: SessionRef, call: CallRow, state: Frontier) -> ReplayInputs:
        named = await audit.summaries_of_frontier(self._database, ref.session_id, state)
        if len(named) != len(state.folds):
            raise LookupError("a summary is missing")
        layers = call.manifest.layers
        shown = await named_layers(self._database, ref.session_id, list(layers.values()))
        if {layer.kind: layer.version for layer in shown} != layers:
            raise LookupError("a layer is missing")
        return ReplayInputs(
            events=await audit.events(self._database, ref.session_id, call.head, state),
            frontier=state,
            policy=await self._policies.get(ref.tenant_id, call.policy),
            summaries=named,
            format=call.format,
            render_version=call.render_version,
            breakpoints=breakpoints_of(call.breakpoints, call.manifest),
            notice=call.manifest.notice,
            injections=call.manifest.injections,
            layers=shown,
        )


def _not_reproducible(call: CallRow, rendered: bytes | None, why: str) -> NotReproducible:
    return NotReproducible(
        f"call {call.call_id} cannot be rendered as it was recorded: {why}",
        call_id=str(call.call_id),
        recorded_sha256=call.sha256.hex(),
        rendered_sha256=None if rendered is None else rendered.hex(),
    )
