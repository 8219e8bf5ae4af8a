"""The last context of an epoch, which the next one continues."""

from dataclasses import dataclass

from app.core.audit.evictions import Eviction
from app.core.plan.update import EarlierPlan
from app.core.render.text import Settled


@dataclass(frozen=True, slots=True)
class LastContext:
    """The last context of an epoch: its plan, the settled part of its text, and its evictions.

    `chars` is the number of characters in the events read for it.
    """

    plan: EarlierPlan
    settled: Settled
    evictions: tuple[Eviction, ...]
    chars: int
