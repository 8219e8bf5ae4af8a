"""The budget of a context: window, reserves, injections, and the target."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, NamedTuple

from app.core.assembly.inputs import BudgetFacts, ContextRequest, Injection, Retry, ViewSettings
from app.core.errors import InjectionOverReserve
from app.core.log.event import Event
from app.core.log.events import PREFIX, Draft, EventType
from app.core.render.request import enclose_injection
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.calibration import RATIO_LEAST, Calibration, Reported, Sample, local_ratio, retry_target
from app.core.tokens.counter import Counter
from app.core.tokens.learned import applied_calibration


def count_injections(injections: tuple[Injection, ...], counter: Counter) -> list[int]:
    """Return the tokens of each injection, by the counter's estimator."""
    drafts = (Draft(EventType.ANNOUNCE, content=enclose_injection(one.name, one.content)) for one in injections)
    return [counter.event(draft) for draft in drafts]


def injected_tokens(injections: tuple[Injection, ...], counts: Sequence[int], budget: Budget) -> int:
    """Return the total of `counts`. Raises InjectionOverReserve, naming the first injection that is too large."""
    total, reserve = 0, budget.injection_reserve
    for injection, counted in zip(injections, counts, strict=True):
        total += counted
        tokens, taken = budget.provider_tokens(counted), budget.provider_tokens(total)
        ceiling = min(reserve, injection.max_tokens) if injection.max_tokens is not None else reserve
        if tokens > ceiling or taken > reserve:
            raise InjectionOverReserve(
                f"injection {injection.name!r} takes {tokens} of the {ceiling} tokens allowed for it;"
                f" with those before it, {taken} of the {reserve} reserved",
                name=injection.name,
                tokens=tokens,
                reserve=ceiling,
            )
    return total


LEARNED_SHARE: Final = 0.5
"""The largest share of the window for an `outside` that was only learned."""


class Outside(NamedTuple):
    """The provider's tokens sent outside a request, and their source: call, policy, session, learned or None."""

    tokens: int
    source: str | None


def outside_of(view: BudgetFacts, settings: ViewSettings, request: ContextRequest) -> Outside:
    """Return the tokens stated by the call, else the policy, else the session, else learned from the view; else 0."""
    for stated, source in (
        (request.outside_tokens, "call"),
        (settings.policy.outside_tokens, "policy"),
        (view.outside_tokens, "session"),
    ):
        if stated is not None:
            return Outside(stated, source)
    own = view.learned
    if own is None or own.model != settings.model or own.outside is None:
        return Outside(0, None)
    return Outside(min(own.outside, int(settings.window_tokens * LEARNED_SHARE)), "learned")


def real_window(view: BudgetFacts, model: str | None, asked: int, now: float) -> int:
    """Return the window to plan for: `asked`, or a smaller one that a provider has reported."""
    own = view.learned
    known = (*view.calibrations, own.known) if own is not None and own.model == model else view.calibrations
    return min((calibration.window(asked, now) for calibration in known), default=asked)


def measured_from(
    view: BudgetFacts, request: ContextRequest, counter: Counter, *, ignores_epoch: bool
) -> Reported | None:
    """Return the reported call from which the view's next budget is extrapolated; None if there is none.

    It must be of the current epoch and counted by the same estimator. None too for a context of an earlier seq, and if
    `ignores_epoch`: a context that is planned without the current epoch does not extend that call's.
    """
    reported, own = view.reported, view.learned
    if own is not None and own.known.estimator != counter.estimator.name:
        return None
    if reported is None or ignores_epoch or request.at is not None or reported.epoch != view.epoch:
        return None
    return reported


def budget_of(
    view: BudgetFacts,
    settings: ViewSettings,
    request: ContextRequest,
    counter: Counter,
    events: Sequence[Event],
    *,
    ignores_epoch: bool,
    injected: int = 0,
) -> Budget:
    """Return the budget for `events` and `injected` tokens of injections. Raises the errors of `budget_for`."""
    outside = outside_of(view, settings, request)
    name, own = counter.estimator.name, view.learned
    calibration = next((one for one in view.calibrations if one.estimator == name), None)
    if own is not None and (own.model, own.known.estimator) == (settings.model, name):
        calibration = applied_calibration(calibration, own)
    used = calibration
    if request.retry is not None and calibration is not None and not calibration.reports:
        used = None  # it was learned only from the refused call, which the retry starts from anyway
    ratio, margin = (1.0, counter.estimator.margin) if used is None else (used.ratio, used.margin)
    reported = measured_from(view, request, counter, ignores_epoch=ignores_epoch)
    if reported is not None:
        outside_then = outside.tokens if reported.outside is None else reported.outside
        if reported.tokens - outside_then >= RATIO_LEAST * reported.counted:
            growth = _tokens_since(events, reported.head, settings)
            # The view's own ratio may be high because of content that does not grow.
            growing = next((one.ratio for one in view.calibrations if one.estimator == name and one.version), ratio)
            ratio = local_ratio(growing, reported, growth, outside_then)
    if request.retry is not None:
        budget = _retry_budget(settings, margin, ratio, request.retry, used, outside, injected)
    else:
        window = settings.window_tokens
        budget = budget_for(settings.policy, window, margin, ratio, outside=outside.tokens, injected=injected)
    return replace(budget, outside_by=outside.source, calibration=calibration)


def _retry_budget(
    settings: ViewSettings,
    margin: float,
    ratio: float,
    retry: Retry,
    used: Calibration | None,
    outside: Outside,
    injected: int,
) -> Budget:
    policy, window = settings.policy, settings.window_tokens
    refused = Sample(retry.counted, (retry.tokens or 0) - outside.tokens)
    if refused.sensible:
        budget = budget_for(policy, window, margin, refused.ratio, outside=outside.tokens, injected=injected)
        # A refused size within the target shows that the target is no bound: halve that size.
        return budget.tightened(budget.target if budget.target < retry.counted else max(1, retry.counted // 2))
    budget = budget_for(policy, window, margin, ratio, outside=outside.tokens, injected=injected)
    return budget.tightened(retry_target(budget.limit, retry.counted, window, used))


def _tokens_since(events: Sequence[Event], head: int, settings: ViewSettings) -> int:
    since, leaves_out = takewhile(lambda event: event.seq > head, reversed(events)), settings.policy.shows.leaves_out
    rendered = (event for event in since if event.rendered and event.type not in PREFIX)
    return sum(event.tokens for event in rendered if not leaves_out(event.type, event.author))
