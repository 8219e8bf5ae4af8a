"""The manifest of a call: the settings and figures of its record, as one JSON document that is written only here.

The store copies values that its statements read into columns of `model_calls`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, get_origin, get_type_hints

from app.core.lexicon.times import parse_time
from app.core.log.events import Json
from app.core.record.evictions import Eviction, eviction_of, eviction_row
from app.core.render.layers import Content

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
