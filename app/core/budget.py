"""How much a rendered context may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import InvalidPolicy
from app.core.policy import RESERVE_RATIO, RESERVE_TOKENS_MAX, Policy
from app.core.threshold import threshold


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens, by our estimate.

    `target` is the most a context may take, `threshold` what it may take before it is reduced, `goal` what a reduction
    aims for: `low_water` of the threshold. `caps` are targets of their own for a kind of content.
    """

    window: int
    reserve: int
    injection_reserve: int
    target: int
    goal: int
    threshold: int = 0
    low_water: float = 1.0
    caps: Mapping[str, int] = field(default_factory=dict)

    def cap(self, tier: str) -> int:
        """The target of one kind of content; without a cap of its own it is the whole."""
        return self.caps.get(tier, self.target)


def budget_for(policy: Policy, window: int, margin: float) -> Budget:
    """target = (window - reserve - injection reserve), less the estimator's `margin`.

    Raises InvalidPolicy when the reserves, or the trigger's, leave nothing of the window.
    """
    reserve = policy.reserve_tokens
    if reserve is None:
        reserve = min(RESERVE_TOKENS_MAX, int(window * RESERVE_RATIO))
    room = window - reserve - policy.injection_reserve_tokens
    if room <= 0:
        raise InvalidPolicy(
            f"reserves of {window - room} tokens leave nothing of a window of {window}", knob="reserve_tokens"
        )
    target = int(room / (1 + margin))
    limit = threshold(policy.trigger, window, target)
    share = policy.caps.tool_results
    return Budget(
        window=window,
        reserve=reserve,
        injection_reserve=policy.injection_reserve_tokens,
        target=target,
        goal=int(limit * policy.low_water),
        threshold=limit,
        low_water=policy.low_water,
        caps={} if share is None else {"tool_results": int(target * share)},
    )
