"""Costs of policies where the client keeps tools and system prompt outside of the log.

The planner sees the log alone. It either knows the size outside, or learns it from the usage that each call reports.
Its markers are those of its own requests; a careful client would set another after the tools.
"""

from collections.abc import Iterator
from typing import Final

from app.core.plan.pipeline import Plan, plan
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import START, Frontier, first_changed
from app.core.plan.update import EarlierPlan, PlanInputs
from app.core.policy.policy import PRESETS, Policy
from app.core.render.breakpoints import Marking, choose_breakpoints
from app.core.render.formats import anthropic
from app.core.render.request import write_text
from app.core.tokens.budget import budget_for
from app.core.tokens.learned import Learned, Point, initial_state, with_point
from app.core.tokens.models import CacheProfile
from bench.cost.rivals import shown_of
from bench.cost.sessions import COUNTER, MODEL
from palimpsest_tools.bench import rivals
from palimpsest_tools.bench.rivals import Player, Sent, Shown
from palimpsest_tools.bench.sessions import LoggedSession

OWN_MARGIN: Final = COUNTER.estimator.margin


def players(window: int) -> dict[str, Player]:
    """Return the policies by their names in the table, append-only first."""
    found: dict[str, Player] = {
        "append-only": rivals.append_only,
        "`default`, no marker on a log below the minimum": policy_player(
            PRESETS["default"], window, needs_minimum=True
        ),
        "`default`, `outside_tokens` not given": policy_player(PRESETS["default"], window),
    }
    named = ("default", "timeline", "clip", "threshold")  # `pipeline` marks the system prompt, which this log lacks
    return found | {
        f"`{name}`, `outside_tokens` given": policy_player(PRESETS[name], window, knows_size=True) for name in named
    }


def policy_player(policy: Policy, window: int, *, knows_size: bool = False, needs_minimum: bool = False) -> Player:
    """Return a policy's player: it `knows_size` of what is outside the log, or learns it from reported usage.

    With `needs_minimum` it sets no marker while the log is smaller than the provider's minimum for a cache entry.
    """

    def play(session: LoggedSession, cache: CacheProfile) -> Iterator[Sent]:
        state: Frontier = START
        before: EarlierPlan | None = None
        used_at: float | None = None
        last: tuple[int, ...] = ()
        own = initial_state(MODEL, COUNTER.estimator.name, OWN_MARGIN)
        for call in session.calls:
            events = session.events[: call.events]
            outside = session.prefix_tokens if knows_size else own.outside or 0
            read = PlanInputs(
                events,
                events[-1].turn,
                COUNTER,
                earlier=before,
                now=call.at,
                used_at=used_at,
                cache=cache,
                outside_tokens=outside,
            )
            planned = plan(read, budget_for(policy, window, OWN_MARGIN, outside=outside), policy, state)
            is_small = planned.context.tokens < cache.minimum_tokens
            last = () if needs_minimum and is_small else _marks(planned, state, last, cache)
            state, used_at = planned.state, call.at
            before = EarlierPlan(planned.context, state, len(events))
            yield _sent(planned, session, call.at, last)
            own = _reported(own, planned.context, session, knows_size=knows_size)

    return play


def _reported(own: Learned, context: Context, session: LoggedSession, *, knows_size: bool) -> Learned:
    stated = session.prefix_tokens if knows_size else None
    return with_point(own, Point(context.tokens, context.tokens + session.prefix_tokens, stated), OWN_MARGIN)


def _marks(planned: Plan, before: Frontier, last: tuple[int, ...], cache: CacheProfile) -> tuple[int, ...]:
    same = planned.cause is None
    changed = 0 if same else first_changed(before, planned.state)
    marking = Marking(markers_max=cache.markers, changed_seq=changed, uncached_from=planned.once_from)
    text = write_text(anthropic.NAME, planned.context, planned.state)
    return tuple(point.seq for point in choose_breakpoints(text.layout, text.places, last if same else (), marking))


def _sent(planned: Plan, session: LoggedSession, at: float, marks: tuple[int, ...]) -> Sent:
    note = [Shown(0, planned.context.note_tokens, planned.state.note)] if planned.state.note else []
    shown = (*note, *map(shown_of, planned.context.items))
    wrapping = planned.context.tokens - sum(one.tokens for one in shown)
    return Sent(shown, wrapping + session.prefix_tokens, at, planned.cause, marks)
