"""The tokens of a call's injections, checked against their reserve."""

from collections.abc import Sequence

from app.core.errors import InjectionOverReserve
from app.core.log.events import Draft, EventType
from app.core.render.request import enclose_injection
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.core.view.request import Injection


def injections_counted(injections: tuple[Injection, ...], counter: Counter) -> list[int]:
    """Return the tokens of each injection, by the counter's estimator."""
    drafts = (Draft(EventType.ANNOUNCE, content=enclose_injection(one.name, one.content)) for one in injections)
    return [counter.event(draft) for draft in drafts]


def injected_tokens(injections: tuple[Injection, ...], counts: Sequence[int], budget: Budget) -> int:
    """Return the total of `counts`. Raises InjectionOverReserve, naming the first injection that is too large."""
    total, reserve = 0, budget.injection_reserve
    for injection, counted in zip(injections, counts, strict=True):
        total += counted
        tokens, taken = budget.shown(counted), budget.shown(total)
        ceiling = min(reserve, injection.max_tokens) if injection.max_tokens is not None else reserve
        if tokens > ceiling or taken > reserve:
            raise InjectionOverReserve(
                f"injection {injection.name!r} takes {tokens} of {ceiling} reserved tokens, all up to it {taken}",
                name=injection.name,
                tokens=tokens,
                reserve=ceiling,
            )
    return total
