"""The manifest of a call: the part of its record without columns of its own. Stored as JSON, written only here.

Values of a manifest that statements read are also in columns of `model_calls`; those belong to the store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from app.core.lexicon.times import parse_time
from app.core.log.events import Json
from app.core.record.evictions import Eviction, eviction_of, eviction_row
from app.core.render.layers import Content

VERSION: Final = 1
"""Version of the JSON. The oldest records have none, and defaults for the fields that they lack."""


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
    """The ratio of the provider's tokens to the estimator's, the margin, and the number of calls they are from."""

    ratio: float
    margin: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallManifest:
    """The settings and figures of a call. Tokens are the provider's.

    `breakpoints` are in the order of the record's seqs; with `hour` their entries live for an hour. `outside` is sent
    outside the request, as stated by `outside_by` (call, policy, session, learned). `unfit` is content that the format
    cannot express. `evictions` are those of records that hold their own; None if the epoch does. `summaries` counts the
    ones shown, `redactions` the events erased before the call. `now` is the clock that the caller set. `layers` are
    versions by kind, `injections` names and contents. `cache_last`: the end was marked for the next call.
    """

    window: int = 0
    reserve: int = 0
    injection_reserve: int = 0
    estimator: str = ""
    outside: int = 0
    outside_by: str | None = None
    by_source: Mapping[str, int] = field(default_factory=dict)
    prefix_sha256: bytes = b""
    breakpoints: tuple[RecordedBreakpoint, ...] = ()
    hour: bool = False
    unfit: tuple[Eviction, ...] = ()
    evictions: tuple[Eviction, ...] | None = None
    summaries: int = 0
    calibration: AppliedCalibration | None = None
    redactions: int = 0
    ttl_pruning: str = "disabled"
    notice: str | None = None
    stalled: str | None = None
    now: datetime | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    recall: bool = False
    cache_last: bool = True
    injections: tuple[tuple[str, Content], ...] = ()

    @property
    def stated_outside(self) -> int | None:
        """The tokens outside the request as the call, its policy or its session stated; None if learned or unknown."""
        return None if self.outside_by in (None, "learned") else self.outside


_DEFAULTS: Final[tuple[Json, ...]] = (None, False, 0, [], {})
"""Values that are not stored, because they are the defaults."""


def to_json(manifest: CallManifest) -> dict[str, Json]:
    """Return the manifest as stored."""
    points, found = manifest.breakpoints, manifest.calibration
    has_outside = manifest.outside or manifest.outside_by is not None
    optional = {
        "breakpoint_tokens": [point.tokens for point in points],
        "breakpoint_blocks": [point.blocks for point in points],
        "unfit": [eviction_row(row) for row in manifest.unfit],
        "hour": manifest.hour,
        "summaries": manifest.summaries,
        "calibration": found and {"ratio": found.ratio, "margin": found.margin, "samples": found.samples},
        "redactions": manifest.redactions,
        "ttl_pruning": None if manifest.ttl_pruning == "disabled" else manifest.ttl_pruning,
        "notice": manifest.notice,
        "stalled": manifest.stalled,
        "now": manifest.now and manifest.now.isoformat(),
        "layers": dict(manifest.layers),
        "recall": manifest.recall,
        "injections": [{"name": name, "content": content} for name, content in manifest.injections],
    }
    return {
        "version": VERSION,
        "window": manifest.window,
        "reserve": manifest.reserve,
        "injection_reserve": manifest.injection_reserve,
        "estimator": manifest.estimator,
        **({"outside": manifest.outside, "outside_by": manifest.outside_by} if has_outside else {}),
        "by_source": dict(manifest.by_source),
        "prefix_sha256": manifest.prefix_sha256.hex(),
        "breakpoint_kinds": [point.kind for point in points],
        **({} if manifest.cache_last else {"cache_last": False}),
        **({} if manifest.evictions is None else {"evictions": [eviction_row(row) for row in manifest.evictions]}),
        **{name: value for name, value in optional.items() if value not in _DEFAULTS},
    }


def from_json(document: Mapping[str, Any]) -> CallManifest:
    """Return a stored manifest of any version as a value. Raises UnknownVersion if it is newer than VERSION."""
    version = document.get("version")
    if version not in (None, VERSION):
        raise UnknownVersion(f"its manifest is of version {version}; known here: up to {VERSION}")
    kinds = document.get("breakpoint_kinds", ())
    unknown = [None] * len(kinds)
    points = (kinds, document.get("breakpoint_tokens", unknown), document.get("breakpoint_blocks", unknown))
    evictions, calibration, now = (document.get(name) for name in ("evictions", "calibration", "now"))
    summaries = document.get("summaries", 0)  # a list in the oldest records
    return CallManifest(
        window=document.get("window", 0),
        reserve=document.get("reserve", 0),
        injection_reserve=document.get("injection_reserve", 0),
        estimator=document.get("estimator", ""),
        outside=document.get("outside", 0),
        outside_by=document.get("outside_by"),
        by_source=dict(document.get("by_source", {})),
        prefix_sha256=bytes.fromhex(document.get("prefix_sha256", "")),
        breakpoints=tuple(RecordedBreakpoint(*point) for point in zip(*points, strict=True)),
        hour=document.get("hour", False),
        unfit=tuple(map(eviction_of, document.get("unfit", ()))),
        evictions=None if evictions is None else tuple(map(eviction_of, evictions)),
        summaries=summaries if isinstance(summaries, int) else len(summaries),
        calibration=calibration and AppliedCalibration(**calibration),
        redactions=document.get("redactions", 0),
        ttl_pruning=document.get("ttl_pruning", "disabled"),
        notice=document.get("notice"),
        stalled=document.get("stalled"),
        now=now and parse_time(now),
        layers=dict(document.get("layers", {})),
        recall=document.get("recall", False),
        cache_last=document.get("cache_last", True),
        injections=tuple((one["name"], one["content"]) for one in document.get("injections", ())),
    )
