"""What reported usage teaches about an estimator: how many tokens a provider counts for one of its own, and how surely.

One thing is learnt for each tenant, named model and estimator, from the last calls that reported. A sample is what we
counted for a whole request and what the provider counted for it, less what was sent beside it. What one call alone says
holds for its own view only (`core/tokens/learned`): for a model it counts once another one agrees with it
(`corroborated`). Nothing counts for ever: samples for SAMPLE_DAYS, a window that was named for WINDOW_DAYS.

The ratio is the median, weighted by tokens, so that the few calls that are mostly a fixed overhead (a provider's own
words for tools, say) and any single oddity move nothing. The margin covers the spread: the upper twentieth of all
samples, and every recent one, since a context that was undercounted as much as one before it must still fit. Samples
far smaller than the largest are left out of both, since large contexts are what must fit.

A sample outside RATIO_LEAST to RATIO_MOST says nothing of tokens (a usage of 0, or of another request altogether) and
is not taken: the published tokenizers differ by less than half of that range. What a refusal tells without a count,
that there were at least so many, counts only as long as no call has reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

SAMPLES_MAX: Final = 64
"""The last so many are looked at: enough for a median, few enough to follow a changed mix of content."""
RECENT: Final = 16
MANY: Final = 8
"""From so many samples on the margin may go below the estimator's own."""
COUNTED_MIN: Final = 500
"""All samples together must be of this many tokens before anything is concluded."""
SMALL_SHARE: Final = 0.125
"""Samples below this share of the largest one are left out."""
RATIO_LEAST: Final = 0.1
RATIO_MOST: Final = 10.0
MARGIN_LEAST: Final = 0.02
UPPER: Final = 0.95
HEADROOM: Final = 1.1
"""What the spread was so far is multiplied by this."""
AGREE: Final = 1.25
"""Two samples whose ratios differ by no more than this say the same."""
SAMPLE_DAYS: Final = 30
WINDOW_DAYS: Final = 7
DAY: Final = 86_400.0
WINDOW_LEAST: Final = 256
"""No window is believed to be smaller than this."""
WINDOW_SHARE: Final = 64
"""Nor to be smaller than this part of what a call that was refused for it was counted."""
CLAIMS_MAX: Final = 8
STEP: Final = 0.01
"""A ratio or a margin that is off by no more than this stays, so that what is planned by it changes rarely."""

PESSIMIST: Final = 4.0
"""The most that a published tokenizer counts over a common estimate (docs/decisions/0011)."""
DOUBT: Final = 1.5
"""With many samples behind it, a ratio that proved too low is taken to be off by no more than this."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: what the estimator counted, what the provider did; `least`: that many or more.

    `at` is when it was reported, in epoch seconds (0: not known), `source` whose it was: a session's view.
    """

    counted: int
    reported: int
    least: bool = False
    at: float = 0.0
    source: str = ""

    @property
    def ratio(self) -> float:
        """The provider's tokens to one of ours."""
        return self.reported / max(1, self.counted)

    @property
    def sensible(self) -> bool:
        """Whether it can be about tokens at all."""
        return self.counted > 0 and RATIO_LEAST <= self.ratio <= RATIO_MOST


@dataclass(frozen=True, slots=True)
class Claim:
    """That what was taken for a window of `asked` is one of `window` only, by whom and when."""

    asked: int
    window: int
    source: str
    at: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is applied of it: at first a ratio of 1 and the estimator's own margin.

    `samples`: how many calls have reported; `version` grows when anything else changes, 0 before anything is known.

    `window_tokens` is the real window that a provider has named for what was taken to be `window_asked`, last at
    `window_at`, in epoch seconds (0: not known); `accepted` is the largest input that it took lately, at `accepted_at`.
    `claims` are windows that were named and are not believed yet.
    """

    estimator: str
    ratio: float
    margin: float
    samples: int = 0
    window_tokens: int | None = None
    window_asked: int | None = None
    version: int = 0
    window_at: float = 0.0
    accepted: int = 0
    accepted_at: float = 0.0
    claims: tuple[Claim, ...] = ()

    def window(self, asked: int, now: float = 0.0) -> int:
        """The window to plan for: the real one, unless more is asked for than what it was found under, or that was
        long ago."""
        if self.window_tokens is None or self.window_asked is None or asked > self.window_asked:
            return asked
        return asked if _old(self.window_at, now, WINDOW_DAYS) else min(asked, self.window_tokens)


@dataclass(frozen=True, slots=True)
class Reported:
    """What a view's last call that reported came to: in which epoch, at which head, what both counted.

    `outside`: how much of `tokens` was beside the request, where the caller or its policy had said so.
    """

    call_id: UUID
    epoch: int
    head: int
    tokens: int
    counted: int
    outside: int | None = None


def learn(before: Calibration, samples: Sequence[Sample], own_margin: float) -> Calibration:
    """What is applied after `samples`, oldest first, the last of them new. `own_margin` is the estimator's.

    The same ratio and margin as before where they still do.
    """
    used = sizeable(samples)
    if sum(sample.counted for sample in used) < COUNTED_MIN:
        return before
    if used[0].least:
        ratio, margin = max(1.0, max(sample.ratio for sample in used)), own_margin
    else:
        ratio = _quantile(used, 0.5)
        margin = _margin(used, ratio, own_margin)
    if _still_do(before, used, ratio, margin):
        return before
    ratio = round(ratio, 3)
    evidence = max(sample.ratio for sample in used[-RECENT:])
    margin = math.ceil(max(margin, evidence / ratio - 1) * 1_000) / 1_000
    return replace(before, ratio=ratio, margin=margin, version=before.version + 1)


def kept(samples: Sequence[Sample], new: Sample) -> tuple[Sample, ...]:
    """The samples with one more: the last ones, and refusals only until a call has reported."""
    if not new.sensible:
        return tuple(samples)
    known = [sample for sample in samples if new.least or not sample.least]
    if new.least and any(not sample.least for sample in known):
        return tuple(samples)
    return (*known, new)[-SAMPLES_MAX:]


def relearn(before: Calibration, samples: Sequence[Sample], own_margin: float, now: float) -> Calibration:
    """What is known of a model after `samples`, of which only those count that are `corroborated`; without enough of
    these, what was known at first."""
    good = corroborated(samples, now)
    if sum(sample.counted for sample in sizeable(good)) >= COUNTED_MIN:
        known = learn(before, good, own_margin)
        return replace(known, version=known.version or 1)  # known to be as it was taken to be
    if (before.ratio, before.margin) == (1.0, own_margin):
        return before
    return replace(before, ratio=1.0, margin=own_margin, version=before.version + 1)


def corroborated(samples: Sequence[Sample], now: float) -> tuple[Sample, ...]:
    """Of the samples those that still count, and that another one agrees with; for a refusal, one of another source."""
    fresh = [sample for sample in samples if not _old(sample.at, now, SAMPLE_DAYS)]
    return tuple(one for one in fresh if any(_agree(one, other) for other in fresh if other is not one))


def _agree(one: Sample, other: Sample) -> bool:
    if one.least and one.source == other.source:
        return False
    return max(one.ratio, other.ratio) <= AGREE * min(one.ratio, other.ratio)


def _old(at: float, now: float, days: int) -> bool:
    return bool(at) and now - at > days * DAY


def believable(window: int, asked: int, counted: int, accepted: int, sent: int | None = None) -> bool:
    """Whether a window that an error names can be one: smaller than what was `asked`, larger than what was `accepted`,
    of some size beside what the call was `counted`, and exceeded by what was `sent`, if the error says."""
    least = max(WINDOW_LEAST, counted // WINDOW_SHARE, accepted)
    return least <= window < asked and (sent is None or sent > window)


def consistent(window: int, expected: float, sent: int | None) -> bool:
    """Whether what a call was `expected` to take bears out by itself that it was larger than `window`: near what the
    error says was `sent`, or else above the window, but not far."""
    doubt = PESSIMIST * HEADROOM
    if sent is not None:
        return expected / doubt <= sent <= expected * doubt
    return window <= expected * HEADROOM and expected <= doubt * window


def claimed(before: Calibration, claim: Claim, *, believed: bool) -> Calibration:
    """With a window that an error named: applied where it is `believed`, or where one of another source agrees."""
    if before.window_tokens is not None and before.window(claim.asked, claim.at) <= claim.window:
        return replace(before, window_at=max(before.window_at, claim.at))
    claims = [one for one in before.claims if not _old(one.at, claim.at, WINDOW_DAYS) and one.source != claim.source]
    agreeing = [one for one in claims if max(one.window, claim.window) <= AGREE * min(one.window, claim.window)]
    if believed or agreeing:
        window = max([claim.window, *(one.window for one in agreeing)])
        return with_window(replace(before, claims=()), claim.asked, window, claim.at)
    return replace(before, claims=(*claims, claim)[-CLAIMS_MAX:])


def with_window(before: Calibration, asked: int, window: int, at: float = 0.0) -> Calibration:
    """With the knowledge that what was taken for a window of `asked` is one of `window` only."""
    if window <= 0 or before.window(asked, at) <= window:
        return before
    asked = max(asked, before.window_asked or 0)
    return replace(before, window_tokens=window, window_asked=asked, window_at=at, version=before.version + 1)


def accepting(before: Calibration, reported: int, now: float = 0.0) -> Calibration:
    """With an input that a provider took: no window is smaller, and no claim of one either. What it took long ago says
    nothing of the model as it is served now."""
    known = before
    if reported >= before.accepted or _old(before.accepted_at, now, WINDOW_DAYS):
        claims = tuple(one for one in before.claims if one.window >= reported)
        known = replace(before, accepted=reported, accepted_at=now, claims=claims)
    if before.window_tokens is None or reported <= before.window_tokens:
        return known
    return replace(known, window_tokens=None, window_asked=None, version=before.version + 1)


def accepted_lately(known: Calibration, now: float) -> int:
    """The largest input that the provider has taken, if that was not long ago."""
    return 0 if _old(known.accepted_at, now, WINDOW_DAYS) else known.accepted


def local_ratio(ratio: float, reported: Reported, growth: int, outside: int = 0) -> float:
    """The ratio for a context that has grown by `growth` of our tokens since the view's last report.

    What was reported is known, `outside` of which was sent beside the request; only what has been added since is
    guessed.
    """
    return (reported.tokens - outside + ratio * growth) / (reported.counted + growth)


def retry_target(limit: int, counted: int, window: int, known: Calibration | None) -> int:
    """For a call of `counted` of our tokens that was refused without a count: what is to fit whoever counts, in ours.

    `limit` and `window` are in the provider's tokens. Whatever they say, it is at most half of what was refused.
    """
    most = PESSIMIST
    if known is not None and known.samples >= MANY:
        proven = max(known.ratio * (1 + known.margin), window / max(1, counted))
        most = min(PESSIMIST, proven * DOUBT)
    return max(1, min(int(limit / most), counted // 2))


def sizeable(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that are not far smaller than the largest."""
    largest = max((sample.counted for sample in samples), default=0)
    return [sample for sample in samples if sample.counted >= SMALL_SHARE * largest]


def _quantile(samples: Sequence[Sample], share: float) -> float:
    """The ratio below which `share` of all counted tokens lie."""
    ordered = sorted(samples, key=lambda sample: sample.ratio)
    rest = share * sum(sample.counted for sample in ordered)
    for sample in ordered:
        rest -= sample.counted
        if rest <= 0:
            return sample.ratio
    return ordered[-1].ratio


def _margin(samples: Sequence[Sample], ratio: float, own: float) -> float:
    recent = max(sample.ratio for sample in samples[-RECENT:])
    spread = (max(recent, _quantile(samples, UPPER)) / ratio - 1) * HEADROOM
    return max(spread, MARGIN_LEAST if len(samples) >= MANY else own)


def _still_do(before: Calibration, used: Sequence[Sample], ratio: float, margin: float) -> bool:
    if abs(before.ratio / ratio - 1) > STEP:
        return False
    evidence = max(sample.ratio for sample in used[-RECENT:])
    return evidence <= before.ratio * (1 + before.margin) and -STEP / 10 <= before.margin - margin <= STEP
