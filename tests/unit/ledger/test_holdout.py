"""The comparison of the prices of held-out sessions with those of the others."""

import random
from collections.abc import Sequence

import pytest

from app.wings.ledger.totals import SESSIONS_LEAST, Group, Holdout, SessionBill


def _holdout(held_out: Sequence[SessionBill], enforced: Sequence[SessionBill]) -> Holdout:
    return Holdout(Group(held_out), Group(enforced))


def _sessions(draw: random.Random, count: int, price: float) -> list[SessionBill]:
    """Return sessions of very different lengths, whose calls cost more the longer the session is."""
    found = []
    for _ in range(count):
        calls = 1 + int(draw.expovariate(0.1))
        found.append(SessionBill(calls, price * calls * (10 + calls) * draw.uniform(0.5, 1.5)))
    return found


def test_an_interval_contains_the_true_saving_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    per_call = per_session = 0
    for _ in range(400):
        held_out, enforced = _sessions(draw, 40, 1.0), _sessions(draw, 160, 0.7)
        both = _holdout(held_out, enforced)
        call, session = both.saved_per_call, both.saved_per_session
        assert call is not None and session is not None
        assert call.low < call.share < call.high and session.low < session.share < session.high
        per_call += call.low <= 0.3 <= call.high
        per_session += session.low <= 0.3 <= session.high
    assert 0.88 <= per_call / 400 <= 0.98
    assert 0.88 <= per_session / 400 <= 0.98


def test_calls_made_in_addition_cost_what_they_cost() -> None:
    held_out = [SessionBill(10, 1_000.0 + number) for number in range(SESSIONS_LEAST)]
    enforced = [SessionBill(20, 1_000.0 + number) for number in range(SESSIONS_LEAST)]
    both = _holdout(held_out, enforced)
    call, session = both.saved_per_call, both.saved_per_session
    assert call is not None and call.share == pytest.approx(0.5)
    assert session is not None and session.share == pytest.approx(0.0)
    assert session.low < 0 < session.high


@pytest.mark.parametrize("few", [0, SESSIONS_LEAST - 1])
def test_few_sessions_give_no_difference(few: int) -> None:
    enough = [SessionBill(1, 1.0)] * SESSIONS_LEAST
    assert _holdout(enough[:few], enough).saved_per_call is None
    assert _holdout(enough, enough[:few]).saved_per_session is None


def test_sessions_that_cost_nothing_give_no_difference() -> None:
    free = [SessionBill(1, 0.0)] * SESSIONS_LEAST
    assert _holdout(free, free).saved_per_call is None
    assert _holdout([SessionBill(1, 1.0)] * SESSIONS_LEAST, free).saved_per_session is None
    assert _holdout([*free, SessionBill(1, 0.3)], [SessionBill(1, 1.0)] * SESSIONS_LEAST).saved_per_call is None
