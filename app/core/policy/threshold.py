"""The threshold of a context, by a share of the window, a number of tokens, or the window less a reserve."""

from typing import Final

from app.core.errors import InvalidPolicy
from app.core.policy.evictions import Trigger

# The defaults that one published design (a threshold module) computes from the window's size.
RESERVE_MOST: Final = 16_384
RESERVE_LEAST: Final = 2_048
RESERVE_SHARE: Final = 0.25
KEEP_MOST: Final = 20_000
KEEP_LEAST: Final = 4_096
KEEP_SHARE: Final = 0.35
SUMMARY_LEAST: Final = 1_024
SUMMARY_SHARE: Final = 0.8


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


def auto_reserve(window: int | None) -> int:
    """Return the tokens left free for `auto`: a quarter of the window, from 2,048 to 16,384.

    It is 16,384 without a window, and half of a window of at most 2,048 tokens.
    """
    if window is None:
        return RESERVE_MOST
    reserve = min(RESERVE_MOST, max(RESERVE_LEAST, int(window * RESERVE_SHARE)))
    return reserve if reserve < window else window // 2


def auto_keep(window: int | None) -> int:
    """Return the tokens kept for `auto`: 35 % of the window, 4,096 to 20,000, and no more than `auto_reserve`
    leaves."""
    if window is None:
        return KEEP_MOST
    keep = min(KEEP_MOST, max(KEEP_LEAST, int(window * KEEP_SHARE)))
    return min(keep, window - auto_reserve(window))


def summary_tokens(reserve: int) -> int:
    """Return the maximum tokens of a summary: four fifths of the reserve, at least 1,024."""
    return max(SUMMARY_LEAST, int(reserve * SUMMARY_SHARE))
