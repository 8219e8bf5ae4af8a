"""The manifest of a call, and the rendering of a recorded call from its record alone.

The manifest is the settings and figures of the record, as one JSON document that is written only here. The store copies
values that its statements read into columns of `model_calls`.

All inputs of a rendering are immutable: the events up to the call's head, the frontier of its epoch, the policy's
version, the summaries that the frontier names (even if superseded since), and the content that the manifest holds of
this call only. Nothing is counted again, so a tokenizer that is missing now does not matter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, get_origin, get_type_hints

from app.core import dataclass, field, replace
from app.core.lexicon.times import parse_time
from app.core.log.event import ERASED, Event
from app.core.log.events import Json
from app.core.memory.cover import Summary
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.projection import project, summary_blocks
from app.core.policy.policy import Policy
from app.core.record.evictions import Eviction, eviction_of, eviction_row
from app.core.render.formats.fit import PREPARED_BY, Loss, prepare
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.layers import Content, Layer
from app.core.render.request import Request, arrange, ephemeral_content, write
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA

VERSION: Final = 1
"""Version of the JSON. The oldest records have none; fields that a record lacks have their defaults."""


class UnknownVersion(Exception):
    """A record was written by a version that this process does not know."""


@dataclass(frozen=True, slots=True)
class RecordedBreakpoint:
    """A cache breakpoint: its kind, and the tokens and blocks up to it, which old records lack."""

    kind: str
    tokens: int | None = None
    blocks: int | None = None


@dataclass(frozen=True, slots=True)
class AppliedCalibration:
    """The ratio of the provider's tokens to the estimator's, the margin, and the number of calls behind both."""

    ratio: float
    margin: float
    samples: int


def calibration_json(applied: AppliedCalibration) -> dict[str, Json]:
    """Return a calibration as it is stored and as the API returns it."""
    return {name: getattr(applied, name) for name in applied.__slots__}


class _Codec(NamedTuple):
    """The conversion of a field to JSON and back; None: the value is JSON already."""

    write: Callable[[Any], Json] | None = None
    read: Callable[[Any], Any] | None = None


_TIME: Final = _Codec(datetime.isoformat, parse_time)
_COUNTS: Final = _Codec(dict, dict)
_EVICTIONS: Final = _Codec(
    lambda rows: [eviction_row(row) for row in rows], lambda stored: tuple(map(eviction_of, stored))
)
_CALIBRATION: Final = _Codec(calibration_json, lambda stored: AppliedCalibration(**stored))
_SUMMARIES: Final = _Codec(read=lambda stored: len(stored) if isinstance(stored, list) else stored)
"""The oldest records list the summaries."""
_INJECTIONS: Final = _Codec(
    lambda pairs: [{"name": name, "content": content} for name, content in pairs],
    lambda stored: tuple((one["name"], one["content"]) for one in stored),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallManifest:
    """The settings and figures of a call, with the codecs of fields that are not JSON. Tokens are the provider's.

    `window_stated`: the call or its policy stated the window. `breakpoints` are in the order of the record's seqs; with
    `hour` their entries live for an hour. `cached_tokens` are expected in the provider's cache until
    `cache_expires_at`. `outside` is sent outside the request, as stated by `outside_by` (call, policy, session,
    learned). `unfit` is content that the format cannot express. `evictions` are the call's; None: they are those of its
    epoch. `summaries` counts the ones shown, `redactions` the events erased before the call. `moment` is the one that
    was planned for (warm, cold or pressed; None in earlier records), `caching` is false if the provider was known to
    report no cache use. `now` is the clock that the caller set. `layers` are versions by kind, `injections` names and
    contents. `cache_last`: the end was marked for the next call.
    """

    window: int = 0
    window_stated: bool = False
    reserve: int = 0
    injection_reserve: int = 0
    estimator: str = ""
    outside: int = 0
    outside_by: str | None = None
    by_source: Annotated[Mapping[str, int], _COUNTS] = field(default_factory=dict)
    prefix_sha256: Annotated[bytes, _Codec(bytes.hex, bytes.fromhex)] = b""
    breakpoints: tuple[RecordedBreakpoint, ...] = ()
    hour: bool = False
    cached_tokens: int = 0
    cache_expires_at: Annotated[datetime | None, _TIME] = None
    unfit: Annotated[tuple[Eviction, ...], _EVICTIONS] = ()
    evictions: Annotated[tuple[Eviction, ...] | None, _EVICTIONS] = None
    summaries: Annotated[int, _SUMMARIES] = 0
    calibration: Annotated[AppliedCalibration | None, _CALIBRATION] = None
    redactions: int = 0
    ttl_pruning: str = "disabled"
    notice: str | None = None
    stalled: str | None = None
    moment: str | None = None
    caching: bool = True
    now: Annotated[datetime | None, _TIME] = None
    layers: Annotated[Mapping[str, int], _COUNTS] = field(default_factory=dict)
    recall: bool = False
    cache_last: bool = True
    injections: Annotated[tuple[tuple[str, Content], ...], _INJECTIONS] = ()

    @property
    def stated_outside(self) -> int | None:
        """The tokens outside the request as the call, its policy or its session stated; None if learned or unknown."""
        return None if self.outside_by in (None, "learned") else self.outside


def _codec(hint: Any) -> _Codec:
    return hint.__metadata__[0] if get_origin(hint) is Annotated else _Codec()


_HINTS: Final = get_type_hints(CallManifest, include_extras=True)
_FIELDS: Final = tuple(
    (name, _codec(hint), getattr(CallManifest(), name)) for name, hint in _HINTS.items() if name != "breakpoints"
)
"""Each field that is stored under its own name: its name, codec and default, which is not stored."""
_POINTS: Final = {"breakpoint_kinds": "kind", "breakpoint_tokens": "tokens", "breakpoint_blocks": "blocks"}
"""The lists that store the breakpoints, and the field in each. The oldest records have only the first list."""


_values: Final = attrgetter(*(name for name, _, _ in _FIELDS))


def to_json(manifest: CallManifest) -> dict[str, Json]:
    """Return the manifest as stored: the fields that differ from their defaults."""
    stored: dict[str, Json] = {"version": VERSION}
    for (name, codec, default), value in zip(_FIELDS, _values(manifest), strict=True):
        if value != default:
            stored[name] = codec.write(value) if codec.write else value
    if manifest.breakpoints:
        stored |= {key: [getattr(point, name) for point in manifest.breakpoints] for key, name in _POINTS.items()}
    return stored


def from_json(document: Mapping[str, Any]) -> CallManifest:
    """Return a stored manifest of any version as a value. Raises UnknownVersion if it is newer than VERSION."""
    version = document.get("version")
    if version not in (None, VERSION):
        raise UnknownVersion(
            f"its manifest has version {version}, but this process knows only versions up to {VERSION}"
        )
    stated = {
        name: codec.read(document[name]) if codec.read else document[name]
        for name, codec, _ in _FIELDS
        if document.get(name) is not None
    }
    unknown = [None] * len(document.get("breakpoint_kinds", ()))
    lists = zip(*(document.get(key, unknown) for key in _POINTS), strict=True)
    return CallManifest(**stated, breakpoints=tuple(RecordedBreakpoint(*point) for point in lists))


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
