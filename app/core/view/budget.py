"""The budget of one context by what providers have reported: for its model, for its own view, for a retry; and what is
sent beside it."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from app.core.log.event import Event
from app.core.log.events import PREFIX
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.calibration import RATIO_LEAST, Calibration, Reported, Sample, local_ratio, retry_target
from app.core.tokens.counter import Counter
from app.core.tokens.learned import Learned, applied
from app.core.view.request import ContextRequest, Retry, ViewSettings

LEARNED_SHARE: Final = 0.5
"""Of the window: what was only learnt to be outside takes no more of it."""


class Known(Protocol):
    """What a view's budget goes by, whoever has read it: a context, a compaction, or a report."""

    @property
    def epoch(self) -> int:
        """The view's current one; 0 while none is written."""

    @property
    def outside_tokens(self) -> int | None:
        """What the session says is sent beside its requests."""

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """Those of the model that is asked for."""

    @property
    def reported(self) -> Reported | None:
        """What the view's last call came to of which that is known."""

    @property
    def learned(self) -> Learned | None:
        """What the view's own calls have taught."""


class Outside(NamedTuple):
    """What is sent beside a request, in the provider's tokens, and who says so (call, policy, session, learned)."""

    tokens: int
    said_by: str | None

    @property
    def said(self) -> int | None:
        """The tokens, if anybody said so; None for what was only learnt, or is not known."""
        return None if self.said_by in (None, "learned") else self.tokens


def outside_of(view: Known, settings: ViewSettings, request: ContextRequest) -> Outside:
    """What the call says, else the policy, else the session, else what the view's own calls do; 0 while nobody does."""
    for said, by in (
        (request.outside_tokens, "call"),
        (settings.policy.outside_tokens, "policy"),
        (view.outside_tokens, "session"),
    ):
        if said is not None:
            return Outside(said, by)
    own = view.learned
    if own is None or own.model != settings.model or own.outside is None:
        return Outside(0, None)
    return Outside(min(own.outside, int(settings.window_tokens * LEARNED_SHARE)), "learned")


def calibration_of(view: Known, model: str | None, counter: Counter) -> Calibration | None:
    """What is known of the model that was read for, by the estimator that counts for it: unless the view's own calls
    say otherwise."""
    known = next((known for known in view.calibrations if known.estimator == counter.estimator.name), None)
    return applied(known, _own(view, model, counter))


def _own(view: Known, model: str | None, counter: Counter) -> Learned | None:
    own = view.learned
    return own if own and (own.model, own.known.estimator) == (model, counter.estimator.name) else None


def real_window(view: Known, model: str | None, asked: int, now: float) -> int:
    """The window to plan for: smaller than asked where a provider has named a smaller one."""
    own = view.learned
    known = (*view.calibrations, own.known) if own is not None and own.model == model else view.calibrations
    return min((one.window(asked, now) for one in known), default=asked)


def measured_from(view: Known, request: ContextRequest, counter: Counter, *, fresh: bool) -> Reported | None:
    """The last call that the budget of the view's next context is measured from: one of its current epoch that was
    counted as the next one is, unless that is disregarded (`fresh`)."""
    reported, own = view.reported, view.learned
    if own is not None and own.known.estimator != counter.estimator.name:
        return None
    if reported is None or fresh or request.at is not None or reported.epoch != view.epoch:
        return None
    return reported


def budget_of(
    view: Known,
    settings: ViewSettings,
    request: ContextRequest,
    counter: Counter,
    events: Sequence[Event],
    *,
    fresh: bool,
    injected: int = 0,
) -> Budget:
    """The budget for a context of these events, with what is `injected` beside them. Raises InvalidPolicy, or CannotFit
    for what is outside."""
    outside = outside_of(view, settings, request)
    known = calibration_of(view, settings.model, counter)
    if request.retry is not None and known is not None and not known.samples:
        known = None  # nothing but that this call was refused, which is what the retry starts from anyway
    ratio, margin = (1.0, counter.estimator.margin) if known is None else (known.ratio, known.margin)
    reported = measured_from(view, request, counter, fresh=fresh)
    if reported is not None:
        beside = _beside(reported, outside)
        if reported.tokens - beside >= RATIO_LEAST * reported.counted:
            growth = _growth(events, reported.head, settings)
            ratio = local_ratio(_of_growth(view, counter, ratio), reported, growth, beside)
    if request.retry is not None:
        return _tight(settings, margin, ratio, request.retry, known, outside, injected)
    return budget_for(settings.policy, settings.window_tokens, margin, ratio, outside=outside.tokens, injected=injected)


def _of_growth(view: Known, counter: Counter, ratio: float) -> float:
    """The ratio of what has been added since a view's last report: its model's, if that is known. The view's own may be
    high because of something that does not grow."""
    name = counter.estimator.name
    return next((one.ratio for one in view.calibrations if one.estimator == name and one.version), ratio)


def _beside(reported: Reported, outside: Outside) -> int:
    """What of a view's last report was beside the request: as was said then, else as is known now."""
    return outside.tokens if reported.outside is None else reported.outside


def _tight(
    settings: ViewSettings,
    margin: float,
    ratio: float,
    retry: Retry,
    known: Calibration | None,
    outside: Outside,
    injected: int,
) -> Budget:
    """The budget of a call that must fit where an earlier one did not."""
    policy, window = settings.policy, settings.window_tokens
    refused = Sample(retry.counted, (retry.tokens or 0) - outside.tokens)
    if refused.sensible:
        budget = budget_for(policy, window, margin, refused.ratio, outside=outside.tokens, injected=injected)
        return budget.tightened(budget.target if budget.target < retry.counted else max(1, retry.counted // 2))
    budget = budget_for(policy, window, margin, ratio, outside=outside.tokens, injected=injected)
    return budget.tightened(retry_target(budget.limit, retry.counted, window, known))


def _growth(events: Sequence[Event], head: int, settings: ViewSettings) -> int:
    """What has been added to a view since `head`."""
    shows, total = settings.policy.shows, 0
    for event in reversed(events):
        if event.seq <= head:
            break
        hidden = shows.leaves_out(event.type, event.author)
        if event.rendered and event.type not in PREFIX and not hidden:
            total += event.tokens
    return total
