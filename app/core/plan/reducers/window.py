"""The dialogue window: only the newest turns are shown, up to a number of turns or of tokens."""

from dataclasses import dataclass

from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.drops import drop_units
from app.core.plan.state.frontier import Frontier
from app.core.policy.groups import DialogueWindow
from app.core.tokens.budget import Budget

REDUCER = "dialogue_window"


@dataclass(frozen=True, slots=True)
class WindowReducer:
    """Drops whole turns outside the window; events before the first turn and protected events (I9) stay.

    Once events have left the view, the window is cut down to `low_water` of its size, so that it then stays the same
    for some turns.
    """

    window: DialogueWindow

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Drop the turns outside the window; the running turn always stays."""
        cut, reason = self._cut(context, budget, budget.low_water if state.floor else 1.0)
        if cut is None:
            return Reduced(context, state)
        stays = context.protected
        gone = [unit for unit in context.units if 1 <= unit.turn < cut and unit.items[0].event.seq not in stays]
        return drop_units(context, state, gone, REDUCER, reason)

    def _cut(self, context: Context, budget: Budget, share: float) -> tuple[int | None, str]:
        """Return the first turn that stays if `share` of the window is kept, and the reason; None if all turns stay."""
        cuts: list[tuple[int, str]] = []
        turns, tokens = self.window.turns, self.window.tokens
        first = min((unit.turn for unit in context.units if unit.turn), default=context.turn)
        if turns is not None and context.turn - turns + 1 > first:
            kept = turns - int(turns * (1 - share))
            cuts.append((context.turn - kept + 1, f"older_than_{turns}_turns"))
        if tokens is not None and _cut_by_tokens(context.units, context.turn, budget, tokens) > first:
            cut = _cut_by_tokens(context.units, context.turn, budget, int(tokens * share))
            cuts.append((cut, f"over_{tokens}_tokens"))
        return max(cuts, default=(None, ""))


def _cut_by_tokens(all_units: tuple[Unit, ...], turn: int, budget: Budget, most: int) -> int:
    """Return the first turn of those that together have at most `most` tokens; the running turn always counts."""
    per_turn: dict[int, int] = {}
    for unit in all_units:
        per_turn[unit.turn] = per_turn.get(unit.turn, 0) + sum(i.tokens for i in unit.all_items)
    total, cut = per_turn.get(turn, 0), turn
    for number in sorted((t for t in per_turn if t < turn), reverse=True):
        total += per_turn[number]
        if budget.provider_tokens(total) > most:
            break
        cut = number
    return cut
