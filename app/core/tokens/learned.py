"""The calibration, real window and tokens outside the requests that are learned from a view's own calls.

They apply to this view immediately, whatever is known about its model, and to no other view. For a session without a
model nothing else is known.

The tokens outside the request (`outside`) are the same at every call, so they are the intercept of the reported input
over our count. They are fitted to the last calls: the slope is the median of the slopes between calls of different size
(the Theil-Sen estimator), `outside` the least remainder of any call. The remainders spread because of content with
another ratio, or tools that were added and removed. The fit is used only if the calls differ enough in size and the
spread is a small part of `outside`. While the calls are too similar, an `outside` learned from earlier ones is kept if
the rest of each call is a plausible count. The part of `outside` that the fit misses becomes part of the ratio; an
`outside` that is too large makes the ratio too small. Since both are fitted to the same reports, these are met either
way and covered by the margin.
"""

from collections.abc import Sequence
from functools import lru_cache
from statistics import median
from typing import Final, NamedTuple

from app.core import dataclass, replace
from app.core.tokens.calibration import AGREE, MANY, RECENT, Calibration, Sample, learn, sizeable

POINTS_MAX: Final = 16
POINTS_LEAST: Final = 4
"""The number of calls of different size that must have reported."""
GROWTH_LEAST: Final = 1.5
"""The least factor between the largest and the smallest call."""
GROWN_LEAST: Final = 500
"""The least difference between them, in tokens."""
APART: Final = 0.25
"""Slopes are taken between calls whose sizes differ by at least this share of the whole range."""
SLOPE_LEAST: Final = 0.25
SLOPE_MOST: Final = 4.4
OUTSIDE_LEAST: Final = 256
"""Fewer tokens are attributed to the provider's wrapping of a request, and are part of the ratio."""
SPREAD_SHARE: Final = 0.25
"""The largest spread of the calls' remainders, as a share of `outside`."""

SAMPLES_CACHED: Final = 256
"""Views whose samples are remembered: three kilobytes each."""


class Point(NamedTuple):
    """One call: the estimator's count, and the provider's of everything that was sent (a lower bound if `least`).

    `outside` is the part sent outside the request; None unless the caller had stated it. `at` is in epoch seconds.
    """

    counted: int
    reported: int
    outside: int | None = None
    least: bool = False
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Learned:
    """The facts learned from the last calls of one view to one `model`, for one estimator.

    `points` are these calls in order. `known` is the calibration from them alone. `outside` is None while they do not
    determine it. `caches` is whether the provider reports cache reads; None until it has reported usage.
    """

    model: str | None
    known: Calibration
    points: tuple[Point, ...] = ()
    outside: int | None = None
    caches: bool | None = None

    def samples(self, source: str = "") -> tuple[Sample, ...]:
        """Return the calls as samples, less the tokens sent outside the requests."""
        return _samples(self.points, self.outside, source)

    def tokens_outside(self, point: Point) -> int:
        """Return the tokens sent outside a call's request, as far as known."""
        return point.outside if point.outside is not None else self.outside or 0


@lru_cache(SAMPLES_CACHED)
def _samples(points: Sequence[Point], outside: int | None, source: str) -> tuple[Sample, ...]:
    """Return calls as samples; a report needs those of the same points three times."""
    learned = outside or 0
    samples = [
        Sample(p.counted, p.reported - (learned if p.outside is None else p.outside), p.least, p.at, source)
        for p in points
    ]
    return tuple([sample for sample in samples if sample.sensible])


def initial_state(model: str | None, estimator: str, own_margin: float) -> Learned:
    """Return the initial state: a ratio of 1 and the estimator's own margin."""
    return Learned(model, Calibration(estimator, 1.0, own_margin))


def with_cache(before: Learned, tokens: int | None, read: int | None, written: int | None, *, known: bool) -> Learned:
    """Return the state after one more report of usage, of `tokens` in total; None means not reported, not zero.

    `known`: the model's cache is in the table, so that zeros mean a cold cache, not a missing one.
    """
    if tokens is None or before.caches:
        return before
    named = read is not None or written is not None
    return replace(before, caches=bool(read or written) or (known and named))


def with_point(before: Learned, point: Point, own_margin: float) -> Learned:
    """Return the state after one more call; a refusal without a count is used only until a call has reported."""
    others = [other for other in before.points if point.least or not other.least]
    if point.least and any(not other.least for other in others):
        return before
    points = (*others, point)[-POINTS_MAX:]
    outside = fit_outside(points)
    if outside is None and before.outside is not None and _fits(before.outside, points):
        outside = before.outside
    samples, known = _samples(points, outside, ""), before.known
    if samples:
        fresh = known if outside == before.outside else replace(known, ratio=1.0, margin=own_margin)
        known, reports = learn(fresh, samples, own_margin), len([one for one in samples if not one.least])
        known = known if known.reports == reports else replace(known, reports=reports)
    return replace(before, points=points, outside=outside, known=known)


def fit_outside(points: Sequence[Point]) -> int | None:
    """Return the tokens outside the requests, fitted to the calls that state none; None if they do not fit."""
    counts = _counts(points)
    if not _differ(counts):
        return None
    sizes = sorted({counted for counted, _ in counts})
    apart = APART * (sizes[-1] - sizes[0])
    slope = median(
        (more - less) / (large - small) for small, less in counts for large, more in counts if large - small >= apart
    )
    if not SLOPE_LEAST <= slope <= SLOPE_MOST:
        return None
    remainders = [reported - slope * counted for counted, reported in counts]
    outside = int(min(remainders))
    return outside if outside >= OUTSIDE_LEAST and max(remainders) - outside <= SPREAD_SHARE * outside else None


def _counts(points: Sequence[Point]) -> list[tuple[int, int]]:
    return [(p.counted, p.reported) for p in points if p.outside is None and not p.least]


def _differ(counts: Sequence[tuple[int, int]]) -> bool:
    """Return whether there are calls of sizes that a line can be fitted to."""
    sizes = sorted({counted for counted, _ in counts})
    return len(sizes) >= POINTS_LEAST and sizes[-1] >= max(GROWTH_LEAST * sizes[0], sizes[0] + GROWN_LEAST)


def _fits(outside: int, points: Sequence[Point]) -> bool:
    """Return whether calls that are too similar to fit a line agree with this many tokens outside the request."""
    counts = _counts(points)
    if not counts or _differ(counts):
        return False
    return all(SLOPE_LEAST * counted <= reported - outside <= SLOPE_MOST * counted for counted, reported in counts)


def applied_calibration(model: Calibration | None, own: Learned) -> Calibration | None:
    """Return the calibration for a view's contexts: its model's, unless the view's own calls contradict that.

    They do if a recent one exceeded the model's margin, or if there are many and they are far below its ratio.
    """
    if not own.known.version:
        return model
    if model is None or not model.version:
        return own.known
    ratios = [sample.ratio for sample in sizeable(own.samples())[-RECENT:]]
    if not ratios:
        return model
    above = max(ratios) > model.ratio * (1 + model.margin)
    below = len(ratios) >= MANY and own.known.ratio * AGREE < model.ratio
    return replace(own.known, reports=max(own.known.reports, model.reports)) if above or below else model
