"""What a view's own calls have taught about it: how its provider counts, its real window, what its client sends beside
the request.

It holds for this view at once, whatever is known of its model, and for nobody else. Of a session without a model it is
all there is to know.

What is sent beside the request (`outside`) takes the same at every call, so it is what remains of the reported input
when the request is taken to nothing. It is read off the last calls: the slope is the median of the slopes between calls
of different size (Theil and Sen), `outside` the least that any of them leaves over it. The error of that is the spread
of what they leave: content whose ratio differs from the rest's, or tools that came and went. It is believed only where
the calls differ in size enough and the spread is a small part of it. Guessed too small, it is part of the ratio as
before; guessed too large, the ratio is too small by as much, and since both are fitted to the same reports, what was
reported is met by both and covered by the margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from app.core.tokens.calibration import AGREE, MANY, RECENT, Calibration, Sample, learn, sizeable

POINTS_MAX: Final = 16
POINTS_LEAST: Final = 4
"""So many calls of different size must have reported."""
GROWTH_LEAST: Final = 1.5
"""The largest must be so many times the smallest,"""
GROWN_LEAST: Final = 500
"""and larger by so many tokens."""
APART: Final = 0.25
"""Slopes are taken between calls whose sizes differ by this share of all that they differ by."""
SLOPE_LEAST: Final = 0.25
SLOPE_MOST: Final = 4.4
OUTSIDE_LEAST: Final = 256
"""Less is what a provider wraps a request in, and part of the ratio."""
SPREAD_SHARE: Final = 0.25
"""What the calls leave over the slope may differ by this share of `outside`."""


@dataclass(frozen=True, slots=True)
class Point:
    """One call: what the estimator counted, what the provider did for all that was sent (`least`: that many or more),
    and when. `outside`: how much of that was beside the request, where the caller had said so."""

    counted: int
    reported: int
    outside: int | None = None
    least: bool = False
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What the last calls of one view to one `model` say by one estimator; `points` are these, oldest first.

    `known` is a calibration of its own, from nothing but them. `outside` is None while they do not tell.
    """

    model: str | None
    known: Calibration
    points: tuple[Point, ...] = ()
    outside: int | None = None

    def samples(self, source: str = "") -> tuple[Sample, ...]:
        """The calls without what was sent beside them."""
        made = (Sample(p.counted, p.reported - self.beside(p), p.least, p.at, source) for p in self.points)
        return tuple(sample for sample in made if sample.sensible)

    def beside(self, point: Point) -> int:
        """What was sent beside a call, as far as is known."""
        return point.outside if point.outside is not None else self.outside or 0


def started(model: str | None, estimator: str, own_margin: float) -> Learned:
    """Before anything is known: a ratio of 1 and the estimator's own margin."""
    return Learned(model, Calibration(estimator, 1.0, own_margin))


def with_point(before: Learned, point: Point, own_margin: float) -> Learned:
    """What is known with one more call; a refusal that says no count tells something only until a call has reported."""
    told = [one for one in before.points if point.least or not one.least]
    if point.least and any(not one.least for one in told):
        return before
    points = (*told, point)[-POINTS_MAX:]
    after = replace(before, points=points, outside=outside_of(points))
    samples = after.samples()
    if not samples:
        return after
    fresh = replace(before.known, ratio=1.0, margin=own_margin) if after.outside != before.outside else before.known
    known = learn(fresh, samples, own_margin)
    return replace(after, known=replace(known, samples=sum(not one.least for one in samples)))


def outside_of(points: Sequence[Point]) -> int | None:
    """What the calls that nobody has said it of had beside them; None where they do not tell."""
    told = [(p.counted, p.reported) for p in points if p.outside is None and not p.least]
    sizes = sorted({counted for counted, _ in told})
    if len(sizes) < POINTS_LEAST or sizes[-1] < max(GROWTH_LEAST * sizes[0], sizes[0] + GROWN_LEAST):
        return None
    apart = APART * (sizes[-1] - sizes[0])
    slope = median(
        (more - less) / (large - small) for small, less in told for large, more in told if large - small >= apart
    )
    if not SLOPE_LEAST <= slope <= SLOPE_MOST:
        return None
    left = [reported - slope * counted for counted, reported in told]
    outside = int(min(left))
    return outside if outside >= OUTSIDE_LEAST and max(left) - outside <= SPREAD_SHARE * outside else None


def applied(model: Calibration | None, own: Learned | None) -> Calibration | None:
    """What a view's contexts are planned by: what is known of its model, unless that is contradicted by the view's own
    calls, which came out above all that it allows for, or, many of them, far below."""
    mine = None if own is None or not own.known.version else own.known
    if model is None or not model.version:
        return mine or model
    if own is None or mine is None:
        return model
    ratios = [sample.ratio for sample in sizeable(own.samples())[-RECENT:]]
    if not ratios:
        return model
    above = max(ratios) > model.ratio * (1 + model.margin)
    below = len(ratios) >= MANY and mine.ratio * AGREE < model.ratio
    return replace(mine, samples=max(mine.samples, model.samples)) if above or below else model
