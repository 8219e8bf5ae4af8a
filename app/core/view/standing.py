"""What an epoch's last context leaves for the next one to begin with."""

from dataclasses import dataclass

from app.core.audit.evictions import Eviction
from app.core.plan.update import EarlierPlan
from app.core.render.text import Settled


@dataclass(frozen=True, slots=True)
class Standing:
    """The last context of an epoch: as it was planned, what later ones repeat of its bytes, and what it left out.

    `chars` is how much the events that were read for it hold.
    """

    plan: EarlierPlan
    settled: Settled
    evictions: tuple[Eviction, ...]
    chars: int
