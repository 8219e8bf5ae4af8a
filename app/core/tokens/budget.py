"""How much a rendered context may take.

Two units meet here. What a window holds, and what a policy says of it, is in the tokens of whoever counts them for the
bill: the provider's. What events take is in our estimator's own, which are decided once and never change. A budget
brings the first into the second, by the `ratio` that calibration knows, and what is planned by into the first again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.core.errors import CannotFit, InvalidPolicy
from app.core.policy.policy import INJECTION_SHARE, RESERVE_RATIO, RESERVE_TOKENS_MAX, Policy
from app.core.policy.threshold import threshold
from app.core.tokens.model_catalog import profile

SLACK: Final = 0.06
"""Of what is aimed for: what may be left of it because the next unit does not fit."""
ROOM_SHARE: Final = 0.1
"""Of the trigger: what a reduction must win for the calls to come."""
_ROUNDING: Final = 1e-6
"""Less than this of a token is what floating point adds."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`window`, the reserves and `limit` (the target) are in the provider's tokens, all else in the estimator's own.

    `target` is the most a context may take, `threshold` what it may take before it is reduced, `goal` what a reduction
    aims for: `low_water` of the threshold. `caps` are targets of their own for a kind of content. Where nothing legal
    fits the target, up to `most` will do. `ratio`: the provider's tokens to one of the estimator's. `outside` is what
    the client sends beside the request, in the provider's tokens: it is taken off the window first.
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
    most: int = 0
    outside: int = 0

    @property
    def low(self) -> int:
        """What a context is brought down to once it has exceeded its target: `low_water` of that."""
        return max(self.goal, int(self.target * self.low_water))

    @property
    def trigger(self) -> int:
        """What a context may take before it is reduced: the threshold, or the target where there is none."""
        return self.threshold or self.target

    def cap(self, tier: str) -> int:
        """The target of one kind of content; without a cap of its own it is the whole."""
        return self.caps.get(tier, self.target)

    def shown(self, tokens: int) -> int:
        """The estimator's tokens in the provider's, rounded up."""
        return math.ceil(tokens * self.ratio - _ROUNDING)

    def own(self, tokens: int) -> int:
        """The provider's tokens in the estimator's, rounded down."""
        return math.floor(tokens / self.ratio + _ROUNDING)

    def parts(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """What parts take, in the provider's tokens; they add up to what their sum takes."""
        if self.ratio == 1:
            return dict(tokens)
        exact = {name: count * self.ratio for name, count in tokens.items()}
        parts = {name: math.floor(count + _ROUNDING) for name, count in exact.items()}
        missing = self.shown(sum(tokens.values())) - sum(parts.values())
        for name in sorted(parts, key=lambda name: parts[name] - exact[name])[: max(0, missing)]:
            parts[name] += 1
        return parts

    def tightened(self, target: int) -> "Budget":
        """With a lower target; where nothing legal fits that, the target as it was will do."""
        limit = min(self.trigger, target)
        return replace(
            self,
            target=min(self.target, target),
            threshold=limit,
            goal=min(self.goal, int(limit * self.low_water)),
            caps={tier: min(cap, target) for tier, cap in self.caps.items()},
            most=self.target,
        )


def beyond(goal: int, most: int) -> int:
    """By how much a unit may exceed `goal` where without it more than SLACK of that is left: half way to `most`."""
    return max(0, most - goal) // 2


def budget_for(
    policy: Policy, window: int, margin: float, ratio: float = 1.0, *, outside: int | None = None, injected: int = 0
) -> Budget:
    """target = (window - outside - reserves), less the `margin`, brought into the estimator's tokens.

    `outside` is what the client sends beside the request, in the provider's tokens; None: as the policy says.
    `injected` is what the call's injections take, in the estimator's: where the policy sets no reserve for them they
    get what they need, the margin included, up to INJECTION_SHARE of the window.
    Raises InvalidPolicy when the reserves, or the trigger's, leave nothing of the window, and CannotFit when what is
    outside takes what they leave.
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
    known = Budget(window, reserve, injection_reserve, 0, 0, 0, policy.low_water, {}, ratio, limit, outside=outside)
    target = known.own(limit)
    aims = known.own(most)
    share = policy.caps.tool_results
    caps = {} if share is None else {"tool_results": int(target * share)}
    return replace(known, target=target, threshold=aims, goal=int(aims * policy.low_water), caps=caps)


def own_window(policy: Policy, model: str | None) -> int:
    """The window of a view that has none yet: the policy's, else the model's."""
    return policy.window_tokens or profile(model).window_tokens
