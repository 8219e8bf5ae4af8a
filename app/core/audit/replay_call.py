"""Rendering of a recorded call from its record alone.

All inputs are immutable: the events up to its head, the frontier of its epoch, the policy's version, the summaries that
the frontier names (even if superseded since), and the content that the manifest holds of this call only. Nothing is
counted again, so a tokenizer that is missing now does not matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import ERASED, Event
from app.core.memory.cover import Summary
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.projection import project, summary_blocks
from app.core.policy.policy import Policy
from app.core.record.manifest import CallManifest, UnknownVersion
from app.core.render.formats.fit import PREPARED_BY, Loss, prepare
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.layers import Content, Layer
from app.core.render.request import Request, arrange, ephemeral_content, write
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA

NO_COUNT: Final = Counter(HEURISTIC, AREA)
"""The counter of a rendered context, which needs one although rendering counts nothing."""


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """The inputs that a call's record names.

    `events` are those that the frontier shows up to the call's head. `summaries` are those that it names, in its order;
    an erased one has no text. `notice` and `injections` (name, content) were for this call only, `layers` are the
    versions that it showed.
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
    """A call rendered again: its layout, the request in its format, and the content that the format cannot express."""

    context: Context
    layout: Layout
    request: Request
    losses: tuple[Loss, ...] = ()


def replay_call(inputs: ReplayInputs) -> ReplayedCall:
    """Render a call as its render version did. Raises UnknownVersion."""
    version = inputs.render_version
    if version not in PREPARED_BY:
        known = ", ".join(map(str, PREPARED_BY))
        raise UnknownVersion(f"rendered by version {version}; known here: {known}")
    policy, state = inputs.policy, inputs.frontier
    summaries = tuple(one if one.text else replace(one, text=ERASED) for one in inputs.summaries)
    context = project(
        inputs.events,
        state,
        NO_COUNT,
        turn=inputs.events[-1].turn if inputs.events else 0,
        shows=policy.shows,
        summaries=summary_blocks(summaries, state.folds, policy.summarize),
    )
    arranged = arrange(context, state, ephemeral_content(inputs.notice, inputs.injections, inputs.layers))
    fitted = prepare(arranged, inputs.format, version)
    request = write(inputs.format, fitted.layout, inputs.breakpoints)
    return ReplayedCall(context, fitted.layout, request, fitted.losses)


def seqs_in_request(seqs: Iterable[int], context: Context, state: Frontier) -> list[int]:
    """Return those of `seqs` whose content a call's bytes hold: shown, quoted by the note, or in a shown summary. A
    redacted event that the note quoted is found by the marker left there."""
    shown = {item.event.seq for item in context.items if item.shown} | {event.seq for event in context.prefix}
    shown |= {seq for seq, path in state.left_out.files if path == ERASED}
    spans = [(fold.from_seq, fold.to_seq) for fold in state.folds if fold.shown]
    return [seq for seq in seqs if seq in shown or any(first <= seq <= last for first, last in spans)]


def breakpoints_of(seqs: Sequence[int], manifest: CallManifest) -> tuple[Breakpoint, ...]:
    """Return a call's cache breakpoints; their seqs are a column of its row, the rest is in its manifest."""
    pairs = zip(seqs, manifest.breakpoints, strict=True)
    return tuple(Breakpoint(seq, point.kind, manifest.hour) for seq, point in pairs)
