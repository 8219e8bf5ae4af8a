"""A recorded call rendered again, from nothing but what its record names. Pure.

All of it is immutable: the events up to its head, the frontier of its epoch, the policy's version, the summaries that
the frontier names, whatever became of them since, and what the manifest holds of the call alone. No count is made
again, so a tokenizer that is missing now does not matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.audit.manifest import CallManifest, UnknownVersion
from app.core.cover.summaries import Summary
from app.core.log.event import ERASED, Event
from app.core.plan.context.context import Context
from app.core.plan.context.frontier import Frontier
from app.core.plan.context.projection import project
from app.core.plan.context.summary_blocks import summary_blocks
from app.core.policy.policy import Policy
from app.core.render.arrange import arrange
from app.core.render.formats.fit import PREPARED_BY, prepare
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.layers import Content, Layer
from app.core.render.request import Request, ephemeral_content, write
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.images import AREA

NO_COUNT: Final = Counter(HEURISTIC, AREA)
"""Rendering counts nothing, but a context holds a counter."""


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """What a call's record names.

    `events` are those that the frontier lets be read up to the call's head, `summaries` those that it names, in its
    order; one whose text was erased has none. `notice` and `injections` (name, content) were for this call only,
    `layers` are the versions that it showed.
    """

    events: Sequence[Event]
    frontier: Frontier
    policy: Policy
    summaries: tuple[Summary, ...]
    format: str
    render_version: int
    breakpoints: tuple[Breakpoint, ...]
    notice: str | None = None
    injections: tuple[tuple[str, Content], ...] = ()
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """A call rendered again: its layout, and the request in its format."""

    context: Context
    layout: Layout
    request: Request


def replay_call(inputs: ReplayInputs) -> ReplayedCall:
    """The call as its version rendered it. Raises UnknownVersion."""
    version = inputs.render_version
    if version not in PREPARED_BY:
        known = ", ".join(map(str, PREPARED_BY))
        raise UnknownVersion(f"rendered by version {version}; known here: {known}")
    context, arranged = _arranged(inputs)
    layout = prepare(arranged, inputs.format, version).layout
    return ReplayedCall(context, layout, write(inputs.format, layout, inputs.breakpoints))


def _arranged(inputs: ReplayInputs) -> tuple[Context, Layout]:
    policy, state = inputs.policy, inputs.frontier
    context = project(
        inputs.events,
        state,
        NO_COUNT,
        turn=0,
        shows=policy.shows,
        summaries=summary_blocks(_texts(inputs.summaries), state.folds, policy.summarize),
    )
    return context, arrange(context, state, ephemeral_content(inputs.notice, inputs.injections, inputs.layers))


def _texts(summaries: tuple[Summary, ...]) -> tuple[Summary, ...]:
    """The summaries; one that was erased says so."""
    return tuple(one if one.text else replace(one, text=ERASED) for one in summaries)


def told_of(seqs: Iterable[int], context: Context, state: Frontier) -> list[int]:
    """Of `seqs` those that a call's bytes tell of: shown, quoted by a stub or by the note, or within a summary that is
    shown. What was redacted is known to have been quoted by the note from what is left of it there."""
    shown = {item.event.seq for item in context.items if item.shown} | {event.seq for event in context.prefix}
    shown |= {seq for seq, path in state.left_out.files if path == ERASED}
    spans = [(fold.from_seq, fold.to_seq) for fold in state.folds if fold.shown]
    return [seq for seq in seqs if seq in shown or any(first <= seq <= last for first, last in spans)]


def breakpoints_of(seqs: Sequence[int], manifest: CallManifest) -> tuple[Breakpoint, ...]:
    """A call's cache breakpoints: where they stand is a column of its row, what they are is in its manifest."""
    pairs = zip(seqs, manifest.breakpoints, strict=True)
    return tuple(Breakpoint(seq, point.kind, manifest.hour) for seq, point in pairs)
