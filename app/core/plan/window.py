"""The dialogue window: at most so many turns, or so many tokens of whole turns, the newest first."""

from dataclasses import dataclass

from app.core.budget import Budget
from app.core.plan.context import Context, Reduced, Unit
from app.core.plan.drop import drop_units
from app.core.plan.frontier import Frontier
from app.core.plan.settle import must_stay
from app.core.policy import DialogueWindow

REDUCER = "dialogue_window"


@dataclass(frozen=True, slots=True)
class WindowReducer:
    """Drops whole turns outside the window; what comes before the first turn stays, and so does what must (I9)."""

    window: DialogueWindow
    name: str = REDUCER

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Drops only; the running turn always stays."""
        cut, reason = self._cut(context, budget)
        if cut is None:
            return Reduced(context, state)
        stays = must_stay(context.items, context.turn)
        gone = [unit for unit in context.units if 1 <= unit.turn < cut and unit.items[0].event.seq not in stays]
        return drop_units(context, state, gone, self.name, reason)

    def _cut(self, context: Context, budget: Budget) -> tuple[int | None, str]:
        """The first turn that stays."""
        cuts: list[tuple[int, str]] = []
        if self.window.turns is not None:
            cuts.append((context.turn - self.window.turns + 1, f"older_than_{self.window.turns}_turns"))
        if self.window.tokens is not None:
            cuts.append((self._cut_by_tokens(context.units, context.turn, budget), f"over_{self.window.tokens}_tokens"))
        return max(cuts, default=(None, ""))

    def _cut_by_tokens(self, all_units: tuple[Unit, ...], turn: int, budget: Budget) -> int:
        per_turn: dict[int, int] = {}
        for unit in all_units:
            per_turn[unit.turn] = per_turn.get(unit.turn, 0) + sum(i.tokens for i in unit.all_items)
        total, cut = per_turn.get(turn, 0), turn
        for number in sorted((t for t in per_turn if t < turn), reverse=True):
            total += per_turn[number]
            if budget.shown(total) > (self.window.tokens or 0):
                break
            cut = number
        return cut
