"""The budget of a context.

Two units meet here. Windows and policies are in the provider's tokens, as on its bill. Events are in our estimator's
tokens, which are counted once and never change. A budget converts the former into the latter by the `ratio` of the
calibration, and the planned figures back.
"""

import math
from collections.abc import Mapping
from typing import Final

from app.core import dataclass, field, replace
from app.core.errors import CannotFit, InvalidPolicy
from app.core.policy.groups import Trigger
from app.core.policy.policy import INJECTION_SHARE, RESERVE_RATIO, RESERVE_TOKENS_MAX, Policy
from app.core.tokens.calibration import Calibration
from app.core.tokens.models import profile

SLACK: Final = 0.06
"""The share of the goal that may remain unused because the next unit does not fit."""
ROOM_SHARE: Final = 0.1
"""The share of the trigger that a reduction must free for the next calls."""
ROUND_SHARE: Final = 0.04
"""The approximate share of the trigger that one call and the words around a summary add."""
_ROUNDING: Final = 1e-6
"""The part of a token below which a difference is due to floating point."""

# The defaults that one published design (a threshold module) computes from the window's size.
RESERVE_MOST: Final = 16_384
RESERVE_LEAST: Final = 2_048
RESERVE_SHARE: Final = 0.25
KEEP_MOST: Final = 20_000
KEEP_LEAST: Final = 4_096
KEEP_SHARE: Final = 0.35
SUMMARY_LEAST: Final = 1_024
SUMMARY_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Budget:
    """The bounds of a context.

    `window`, the reserves, `limit` (the target) and `outside` are in the provider's tokens, all others in the
    estimator's; `ratio` is the provider's tokens per token of the estimator. `outside` is sent outside the request and
    is subtracted from the window first. `target` is the most that a context may take, `threshold` the size above which
    it is reduced, and `goal` the size that a reduction aims for: `low_water` of the threshold. `caps` are targets for
    single kinds of content. If no valid context fits the target, one of up to `fallback_target` is accepted.
    `outside_by` is the source of `outside` (call, policy, session or learned), `calibration` the view's; None: there is
    none.
    """

    window: int
    reserve: int
    injection_reserve: int
    target: int
    goal: int
    threshold: int = 0
    low_water: float = 1.0
    caps: Mapping[str, int] = field(default_factory=dict)
    ratio: float = 1.0
    limit: int = 0
    fallback_target: int = 0
    outside: int = 0
    outside_by: str | None = None
    calibration: Calibration | None = None

    @property
    def low(self) -> int:
        """The size to which a context over its target is reduced: `low_water` of the target, at least the goal."""
        return max(self.goal, int(self.target * self.low_water))

    @property
    def trigger(self) -> int:
        """The size above which a context is reduced: the threshold, or the target if there is none."""
        return self.threshold or self.target

    @property
    def refill(self) -> int:
        """The size up to which a forced reduction shows evicted content again, a third of the way to the trigger."""
        return self.goal + max(0, min(self.trigger, self.target) - self.goal) // 3

    def cap(self, tier: str) -> int:
        """Return the target of one kind of content; the whole target if it has no cap."""
        return self.caps.get(tier, self.target)

    def provider_tokens(self, tokens: int) -> int:
        """Convert the estimator's tokens into the provider's, rounded up."""
        return provider_tokens(tokens, self.ratio)

    def own(self, tokens: int) -> int:
        """Convert the provider's tokens into the estimator's, rounded down."""
        return math.floor(tokens / self.ratio + _ROUNDING)

    def parts(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Convert the tokens of parts into the provider's, so that they add up to their converted sum."""
        if self.ratio == 1:
            return dict(tokens)
        exact = {name: count * self.ratio for name, count in tokens.items()}
        parts = {name: math.floor(count + _ROUNDING) for name, count in exact.items()}
        missing = self.provider_tokens(sum(tokens.values())) - sum(parts.values())
        for name in sorted(parts, key=lambda name: parts[name] - exact[name])[: max(0, missing)]:
            parts[name] += 1
        return parts

    def applied_target(self, tokens: int) -> int:
        """Return the target of a context of `tokens`, in the provider's tokens: the tightened one, if it fits that."""
        return self.provider_tokens(self.target) if self.fallback_target and tokens <= self.target else self.limit

    @property
    def used_window(self) -> int:
        """The part of the window that the target uses; `tightened_to_window` is the inverse, whatever the ratio."""
        return max(1, self.window * self.target // max(1, self.limit))

    def tightened_to_window(self, used_window: int) -> "Budget":
        """Return the budget tightened to the target that uses `used_window` tokens of the window."""
        return self.tightened(max(1, self.limit * used_window // self.window))

    def tightened(self, target: int) -> "Budget":
        """Return the budget with a lower target; if no valid context fits that, the former target is accepted.

        The goal is `low_water` of that target, so that a lower trigger does not empty the context further.
        """
        limit = min(self.trigger, target)
        return replace(
            self,
            target=min(self.target, target),
            threshold=limit,
            goal=min(limit, int(min(self.target, target) * self.low_water)),
            caps={tier: min(cap, target) for tier, cap in self.caps.items()},
            fallback_target=self.target,
        )


def provider_tokens(tokens: int, ratio: float) -> int:
    """Convert the estimator's tokens into the provider's, rounded up."""
    return math.ceil(tokens * ratio - _ROUNDING)


def allowed_excess(goal: int, most: int) -> int:
    """Return how far a unit may exceed `goal` if more than SLACK of it were otherwise unused: half way to `most`."""
    return max(0, most - goal) // 2


def budget_for(
    policy: Policy, window: int, margin: float, ratio: float = 1.0, *, outside: int | None = None, injected: int = 0
) -> Budget:
    """Return the budget with target = (window - outside - reserves) / (1 + margin), in the estimator's tokens.

    `outside` is sent outside the request, in the provider's tokens; None means as the policy states. `injected` are the
    tokens of the call's injections, in the estimator's: without a reserve in the policy they get the tokens they need,
    with the margin, up to INJECTION_SHARE of the window. Raises InvalidPolicy if the reserves, or the trigger's, leave
    nothing of the window, and CannotFit if `outside` takes all that the reserves leave.
    """
    outside = (policy.outside_tokens or 0) if outside is None else outside
    reserve = policy.reserve_tokens
    if reserve is None:
        reserve = min(RESERVE_TOKENS_MAX, int(window * RESERVE_RATIO))
    injection_reserve = policy.injection_reserve_tokens
    if injection_reserve is None:
        injection_reserve = min(int(window * INJECTION_SHARE), math.ceil(injected * ratio * (1 + margin) - _ROUNDING))
    reserved = reserve + injection_reserve
    if reserved >= window:
        raise InvalidPolicy(
            f"reserves of {reserved} tokens leave nothing of a window of {window}", knob="reserve_tokens"
        )
    room = window - outside - reserved
    if room <= 0:
        raise CannotFit(
            f"{outside} tokens are sent beside the request, of a window of {window} that leaves {window - reserved}",
            minimum_tokens=outside,
            target=window - reserved,
            by_source={"outside": outside},
        )
    limit = int(room / (1 + margin))
    most = max(1, threshold(policy.trigger, window, limit + outside) - outside)
    target, own_most = max(1, math.floor(limit / ratio + _ROUNDING)), math.floor(most / ratio + _ROUNDING)
    goal, caps = int(own_most * policy.low_water), caps_of(policy, target)
    sizes = (window, reserve, injection_reserve, target, goal, own_most)
    return Budget(*sizes, policy.low_water, caps, ratio, limit, outside=outside)


def threshold(trigger: Trigger, window: int, target: int) -> int:
    """Return the maximum tokens of a context before it is reduced, at most the target.

    Raises InvalidPolicy for a reserve that leaves nothing of the window.
    """
    limits = [target]
    if trigger.ratio is not None:
        limits.append(int(window * trigger.ratio))
    if trigger.tokens is not None:
        limits.append(trigger.tokens)
    if trigger.reserve is not None:
        reserve = auto_reserve(window) if isinstance(trigger.reserve, str) else trigger.reserve
        if reserve >= window:
            raise InvalidPolicy(f"leaves nothing of a window of {window}", knob="trigger.reserve")
        limits.append(window - reserve)
    return min(limits)


def auto_reserve(window: int) -> int:
    """Return the tokens left free for `auto`: a quarter of the window, from 2,048 to 16,384, or half of a window of at
    most 2,048 tokens."""
    reserve = min(RESERVE_MOST, max(RESERVE_LEAST, int(window * RESERVE_SHARE)))
    return reserve if reserve < window else window // 2


def auto_keep(window: int) -> int:
    """Return the tokens kept for `auto`: 35% of the window, 4,096 to 20,000, and no more than `auto_reserve` leaves."""
    keep = min(KEEP_MOST, max(KEEP_LEAST, int(window * KEEP_SHARE)))
    return min(keep, window - auto_reserve(window))


def summary_tokens(reserve: int) -> int:
    """Return the maximum tokens of a summary: four fifths of the reserve, at least 1,024."""
    return max(SUMMARY_LEAST, int(reserve * SUMMARY_SHARE))


def caps_of(policy: Policy, target: int) -> dict[str, int]:
    """Return the caps of a policy in tokens, by kind of content."""
    shares = ((kind, getattr(policy.caps, kind)) for kind in policy.caps.__slots__)
    return {kind: int(target * share) for kind, share in shares if share is not None}


def own_budget(policy: Policy, model: str | None, margin: float, *, outside: int | None = None) -> Budget:
    """Return the budget of a view that has no window yet. `outside` applies if the policy does not state it.

    Raises the errors of `budget_for`.
    """
    stated = policy.outside_tokens if policy.outside_tokens is not None else outside
    return budget_for(policy, own_window(policy, model), margin, outside=stated)


def own_window(policy: Policy, model: str | None) -> int:
    """Return the default window of a view: the policy's, else the model's."""
    return policy.window_tokens or profile(model).window_tokens
