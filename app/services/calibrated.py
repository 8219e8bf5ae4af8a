"""The budget of one context by what providers have reported: for its model, for its view's last call, for a retry."""

from collections.abc import Sequence

from app.core.budget import Budget, budget_for
from app.core.calibration import Calibration, Sample, local_ratio, retry_target
from app.core.events import PREFIX
from app.core.log import Event
from app.core.policy import leaves_out
from app.core.tokens import Counter
from app.services.rendering import ContextRequest, Retry, Settings
from app.store.views import Loaded


def calibration_of(loaded: Loaded, counter: Counter) -> Calibration | None:
    """What is known of the model that was read for, by the estimator that counts for it."""
    return next((known for known in loaded.calibrations if known.estimator == counter.estimator.name), None)


def real_window(loaded: Loaded, asked: int) -> int:
    """The window to plan for: smaller than asked where a provider has named a smaller one."""
    return min((known.window(asked) for known in loaded.calibrations), default=asked)


def budget_of(
    loaded: Loaded,
    settings: Settings,
    request: ContextRequest,
    counter: Counter,
    events: Sequence[Event],
    *,
    fresh: bool,
) -> Budget:
    """The budget for a context of these events. Raises InvalidPolicy."""
    known = calibration_of(loaded, counter)
    if request.retry is not None and known is not None and not known.samples:
        known = None  # nothing but that this call was refused, which is what the retry starts from anyway
    ratio, margin = (1.0, counter.estimator.margin) if known is None else (known.ratio, known.margin)
    reported = loaded.reported
    if reported is not None and not fresh and request.at is None and reported.epoch == loaded.epoch:
        ratio = local_ratio(ratio, reported, _growth(events, reported.head, settings))
    if request.retry is not None:
        return _tight(settings, margin, ratio, request.retry, known)
    return budget_for(settings.policy, settings.window_tokens, margin, ratio)


def _tight(settings: Settings, margin: float, ratio: float, retry: Retry, known: Calibration | None) -> Budget:
    """The budget of a call that must fit where an earlier one did not."""
    refused = Sample(retry.counted, retry.tokens or 0)
    if refused.sensible:
        budget = budget_for(settings.policy, settings.window_tokens, margin, refused.ratio)
        return budget.tightened(budget.target if budget.target < retry.counted else max(1, retry.counted // 2))
    budget = budget_for(settings.policy, settings.window_tokens, margin, ratio)
    return budget.tightened(retry_target(budget.limit, retry.counted, settings.window_tokens, known))


def _growth(events: Sequence[Event], head: int, settings: Settings) -> int:
    """What has been added to a view since `head`."""
    authors, total = settings.policy.authors, 0
    for event in reversed(events):
        if event.seq <= head:
            break
        hidden = leaves_out(authors, event.author)
        if event.rendered and event.type not in PREFIX and not hidden:
            total += event.tokens
    return total
