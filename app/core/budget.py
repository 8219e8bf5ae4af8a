"""How much a rendered context may take."""

from dataclasses import dataclass

from app.core.errors import InvalidPolicy
from app.core.policy import RESERVE_RATIO, RESERVE_TOKENS_MAX, Policy


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens, by our estimate. `target` is the most a context may take; `goal` what a reduction aims for."""

    window: int
    reserve: int
    injection_reserve: int
    target: int
    goal: int


def budget_for(policy: Policy, window: int, margin: float) -> Budget:
    """target = (window - reserve - injection reserve), less the estimator's `margin`.

    Raises InvalidPolicy when the reserves leave nothing of the window.
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
    return Budget(window, reserve, policy.injection_reserve_tokens, target, int(target * policy.low_water))
