"""The calibration of an estimator by reported usage: the provider's tokens per token of ours, and a safety margin.

There is one calibration for each tenant, named model and estimator, from the last calls that reported usage. A sample
is our count for a whole request and the provider's, less the tokens sent outside it. A single call's sample applies to
its own view only (`core/tokens/learned`); it counts for the model once another sample agrees with it (`corroborated`).
Samples expire after SAMPLE_DAYS, a window that a provider reported after WINDOW_DAYS.

The ratio is the median, weighted by tokens, so that small calls with mostly fixed overhead (such as a provider's own
words for tools) and single outliers do not move it. The margin covers the spread: the upper twentieth of all samples,
and every recent sample, since a context that is undercounted as much as a recent one must still fit. Samples far
smaller than the largest are left out of both, since large contexts are the ones that must fit.

A sample with a ratio outside RATIO_LEAST to RATIO_MOST is discarded, for it cannot be a token count of this request:
the published tokenizers differ by less than half of that range. A refusal without a count is a lower bound, which is
used only until a call has reported.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple
from uuid import UUID

from app.core import dataclass, replace

SAMPLES_MAX: Final = 64
"""Number of the last samples that are used: enough for a median, few enough to follow a changed mix of content."""
RECENT: Final = 16
MANY: Final = 8
"""The number of samples from which the margin may go below the estimator's own."""
COUNTED_MIN: Final = 500
"""The tokens that all samples together must count before anything is concluded."""
SMALL_SHARE: Final = 0.125
"""Samples below this share of the largest one are left out."""
RATIO_LEAST: Final = 0.1
RATIO_MOST: Final = 10.0
MARGIN_LEAST: Final = 0.02
UPPER: Final = 0.95
HEADROOM: Final = 1.1
"""The factor on the spread seen so far."""
AGREE: Final = 1.25
"""Two samples agree if their ratios differ by no more than this factor."""
SAMPLE_DAYS: Final = 30
WINDOW_DAYS: Final = 7
DAY: Final = 86_400.0
WINDOW_LEAST: Final = 256
"""The smallest window that is believed."""
WINDOW_SHARE: Final = 64
"""A window is not believed if the call that it refused was counted as more than this many times the window."""
CLAIMS_MAX: Final = 8
STEP: Final = 0.01
"""A ratio or margin that is off by no more than this is kept, so that budgets change rarely."""

PESSIMIST: Final = 4.0
"""The largest factor of a published tokenizer's count over a common estimate (docs/decisions/0011)."""
DOUBT: Final = 1.5
"""The largest factor by which a ratio from many samples is assumed to be too low, once a call was refused."""


class Sample(NamedTuple):
    """One request: the estimator's count and the provider's; `least`: the provider's is a lower bound.

    `at` is the time of the report in epoch seconds (0: unknown), `source` names the session's view that it came from.
    """

    counted: int
    reported: int
    least: bool = False
    at: float = 0.0
    source: str = ""

    @property
    def ratio(self) -> float:
        """The provider's tokens per token of ours."""
        return self.reported / (self.counted or 1)

    @property
    def sensible(self) -> bool:
        """Whether the two counts can be about the same request."""
        return self.counted > 0 and RATIO_LEAST <= self.reported / self.counted <= RATIO_MOST


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a `source` that a window assumed to be `asked` tokens is only `window` tokens, made at `at`."""

    asked: int
    window: int
    source: str
    at: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A ratio and a margin for an estimator; initially a ratio of 1 and the estimator's own margin.

    `reports` is the number of calls that have reported; `version` grows when anything else changes and is 0 initially.
    `window_tokens` is the real window that a provider reported where `window_asked` was assumed, last at `window_at`,
    in epoch seconds (0: unknown). `accepted` is the largest input that it accepted recently, at `accepted_at`. `claims`
    are reported windows that are not believed yet.
    """

    estimator: str
    ratio: float
    margin: float
    reports: int = 0
    window_tokens: int | None = None
    window_asked: int | None = None
    version: int = 0
    window_at: float = 0.0
    accepted: int = 0
    accepted_at: float = 0.0
    claims: tuple[Claim, ...] = ()

    def window(self, asked: int, now: float = 0.0) -> int:
        """Return the window to plan for: the real one, unless it is outdated or was for less than `asked`."""
        if self.window_tokens is None or self.window_asked is None or asked > self.window_asked:
            return asked
        return asked if _is_old(self.window_at, now, WINDOW_DAYS) else min(asked, self.window_tokens)


@dataclass(frozen=True, slots=True)
class Reported:
    """The last call of a view that reported usage: its epoch and head, the provider's `tokens` and our `counted`.

    `outside` is the part of `tokens` sent outside the request; None unless the caller or its policy had stated it.
    """

    call_id: UUID
    epoch: int
    head: int
    tokens: int
    counted: int
    outside: int | None = None


def learn(before: Calibration, samples: Sequence[Sample], own_margin: float) -> Calibration:
    """Return the calibration after `samples`, oldest first, of which the last is new. `own_margin` is the estimator's.

    The previous ratio and margin are kept if they still hold.
    """
    large = sizeable(samples)
    return _learn(before, large, own_margin) if _are_enough(large) else before


def _are_enough(large: Sequence[Sample]) -> bool:
    return sum([sample.counted for sample in large]) >= COUNTED_MIN


def _learn(before: Calibration, large: Sequence[Sample], own_margin: float) -> Calibration:
    rated = [(sample.reported / (sample.counted or 1), sample.counted) for sample in large]
    evidence = max(rated[-RECENT:])[0]
    if large[0].least:
        ratio, margin = max(1.0, max(rated)[0]), own_margin
    else:
        ordered = sorted(rated)
        through = list(accumulate([counted for _, counted in ordered]))
        ratio, upper = (ordered[bisect_left(through, share * through[-1])][0] for share in (0.5, UPPER))
        spread = (max(evidence, upper) / ratio - 1) * HEADROOM
        margin = max(spread, MARGIN_LEAST if len(large) >= MANY else own_margin)
    if (
        abs(before.ratio / ratio - 1) <= STEP
        and evidence <= before.ratio * (1 + before.margin)
        and -STEP / 10 <= before.margin - margin <= STEP
    ):
        return before
    ratio = round(ratio, 3)
    margin = math.ceil(max(margin, evidence / ratio - 1) * 1_000) / 1_000
    return replace(before, ratio=ratio, margin=margin, version=before.version + 1)


def with_sample(samples: Sequence[Sample], new: Sample) -> tuple[Sample, ...]:
    """Return the last SAMPLES_MAX samples with a new one; refusals are kept only until a call has reported."""
    if not new.sensible:
        return tuple(samples)
    known = [sample for sample in samples if new.least or not sample.least]
    if new.least and any(not sample.least for sample in known):
        return tuple(samples)
    return (*known, new)[-SAMPLES_MAX:]


def relearn(before: Calibration, samples: Sequence[Sample], own_margin: float, now: float) -> Calibration:
    """Return the calibration of a model after `samples`, of which only the `corroborated` ones count; the initial
    calibration if these are too few."""
    large = sizeable(corroborated(samples, now))
    if _are_enough(large):
        known = _learn(before, large, own_margin)
        return known if known.version else replace(known, version=1)  # even if the initial values are confirmed
    if (before.ratio, before.margin) == (1.0, own_margin):
        return before
    return replace(before, ratio=1.0, margin=own_margin, version=before.version + 1)


def corroborated(samples: Sequence[Sample], now: float) -> tuple[Sample, ...]:
    """Return the samples that are not too old and that another agrees with, for a refusal one of another source."""
    age = SAMPLE_DAYS * DAY
    fresh = [sample for sample in samples if not sample.at or now - sample.at <= age]
    ratios = [sample.reported / (sample.counted or 1) for sample in fresh]
    refused = any([sample.least for sample in fresh])
    if len(fresh) > 1 and not refused and max(ratios) <= AGREE * min(ratios):
        return tuple(fresh)  # as most often: each agrees with any other
    confirmed = set[int]()  # whoever agrees with any agrees with the next in order
    for pair in pairwise(sorted(range(len(fresh)), key=ratios.__getitem__)):
        if ratios[pair[1]] <= AGREE * ratios[pair[0]]:
            confirmed.update(pair)
    return tuple(
        sample
        for index, sample in enumerate(fresh)
        if (any(_agrees(sample, other) for other in fresh) if sample.least else index in confirmed)
    )


def _agrees(refusal: Sample, other: Sample) -> bool:
    if refusal.source == other.source:
        return False
    return max(refusal.ratio, other.ratio) <= AGREE * min(refusal.ratio, other.ratio)


def _is_old(at: float, now: float, days: int) -> bool:
    return bool(at) and now - at > days * DAY


def believable(window: int, asked: int, counted: int, accepted: int, sent: int | None = None) -> bool:
    """Return whether a window that an error names is plausible.

    It must be smaller than the window `asked` and than the tokens `sent` (None: the error does not say), and no smaller
    than the largest input `accepted` or a small share of our count (`counted`) of the call.
    """
    least = max(WINDOW_LEAST, counted // WINDOW_SHARE, accepted)
    return least <= window < asked and (sent is None or sent > window)


def consistent(window: int, expected: float, sent: int | None) -> bool:
    """Return whether the tokens `expected` of a call confirm that it exceeded `window`.

    They must be near the tokens `sent`; if the error does not say these (None), they must be above the window, but not
    far.
    """
    doubt = PESSIMIST * HEADROOM
    if sent is not None:
        return expected / doubt <= sent <= expected * doubt
    return window <= expected * HEADROOM and expected <= doubt * window


def with_claim(before: Calibration, claim: Claim, *, believed: bool) -> Calibration:
    """Return the calibration after an error's claim: applied if `believed` or confirmed, else kept as a claim."""
    if before.window_tokens is not None and before.window(claim.asked, claim.at) <= claim.window:
        return replace(before, window_at=max(before.window_at, claim.at))
    claims = [old for old in before.claims if not _is_old(old.at, claim.at, WINDOW_DAYS) and old.source != claim.source]
    agreeing = [old for old in claims if max(old.window, claim.window) <= AGREE * min(old.window, claim.window)]
    if believed or agreeing:
        window = max([claim.window, *(old.window for old in agreeing)])
        return with_window(replace(before, claims=()), claim.asked, window, claim.at)
    return replace(before, claims=(*claims, claim)[-CLAIMS_MAX:])


def with_window(before: Calibration, asked: int, window: int, at: float = 0.0) -> Calibration:
    """Return the calibration with the knowledge that a window assumed to be `asked` tokens is only `window` tokens."""
    if window <= 0 or before.window(asked, at) <= window:
        return before
    asked = max(asked, before.window_asked or 0)
    return replace(before, window_tokens=window, window_asked=asked, window_at=at, version=before.version + 1)


def with_accepted(before: Calibration, reported: int, now: float = 0.0) -> Calibration:
    """Return the calibration after a provider accepted an input of `reported` tokens, which refutes smaller windows.

    An input accepted long ago is forgotten: the model may be served with another window now.
    """
    known = before
    if reported >= before.accepted or _is_old(before.accepted_at, now, WINDOW_DAYS):
        claims = tuple(claim for claim in before.claims if claim.window >= reported)
        known = replace(before, accepted=reported, accepted_at=now, claims=claims)
    if before.window_tokens is None or reported <= before.window_tokens:
        return known
    return replace(known, window_tokens=None, window_asked=None, version=before.version + 1)


def accepted_lately(known: Calibration, now: float) -> int:
    """Return the largest input that the provider accepted recently; 0 if there is none."""
    return 0 if _is_old(known.accepted_at, now, WINDOW_DAYS) else known.accepted


def local_ratio(ratio: float, reported: Reported, growth: int, outside: int = 0) -> float:
    """Return the ratio for a context that has grown by `growth` of our tokens since the view's last report.

    The reported part is known, less the `outside` tokens sent outside the request; `ratio` estimates the growth only.
    """
    return (reported.tokens - outside + ratio * growth) / (reported.counted + growth)


def retry_target(limit: int, counted: int, window: int, known: Calibration | None) -> int:
    """Return the target, in our tokens, for the retry of a call of `counted` tokens that was refused without a count.

    It should fit by any tokenizer, and is at most half of `counted`. `limit` and `window` are in the provider's tokens.
    """
    factor = PESSIMIST
    if known is not None and known.reports >= MANY:
        proven = max(known.ratio * (1 + known.margin), window / max(1, counted))
        factor = min(PESSIMIST, proven * DOUBT)
    return max(1, min(int(limit / factor), counted // 2))


def sizeable(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that are not far smaller than the largest."""
    counts = [sample.counted for sample in samples]
    least = SMALL_SHARE * max(counts, default=0)
    return [sample for sample, counted in zip(samples, counts, strict=True) if counted >= least]
