"""Expiry of sessions by an operator's rules."""

from datetime import UTC, datetime, timedelta

import pytest

from app.core.errors import InvalidRequest
from app.wings.retention.rules import DAYS_MAX, Life, Lifetimes, due_sessions, validate

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def life(created: float, used: float, *, busy: bool = False) -> Life:
    return Life(NOW - timedelta(days=created), NOW - timedelta(days=used), busy)


@pytest.mark.parametrize(
    ("rules", "one", "rule"),
    [
        (Lifetimes(), life(9_000, 9_000), None),
        (Lifetimes(session_days=30), life(30, 30), None),  # a session of exactly that age is kept
        (Lifetimes(session_days=30), life(30.1, 0), "age"),
        (Lifetimes(session_days=30), life(30.1, 0, busy=True), "age"),
        (Lifetimes(idle_days=10), life(90, 10), None),
        (Lifetimes(idle_days=10), life(90, 10.1), "idle"),
        (Lifetimes(idle_days=10), life(90, 10.1, busy=True), None),
        (Lifetimes(session_days=30, idle_days=10), life(40, 20), "age"),
        (Lifetimes(session_days=30, idle_days=10), life(20, 11), "idle"),
        (Lifetimes(call_days=1, change_days=1), life(9_000, 9_000), None),
    ],
)
def test_a_sessions_time_is_over_by_one_rule_at_most(rules: Lifetimes, one: Life, rule: str | None) -> None:
    assert rules.expired_rule(one, NOW) == rule
    before = rules.created_before(NOW)
    assert rule is None or (before is not None and one.created_at < before)


def test_a_session_expires_only_with_its_whole_family() -> None:
    lives = {"a": life(90, 90), "b": life(90, 1), "c": life(90, 90), "d": life(50, 50)}
    families = {"a": {"a", "b", "c"}, "b": {"b", "c"}, "c": {"c"}, "d": {"d", "gone"}}
    found = due_sessions(Lifetimes(idle_days=10), NOW, lives, families)
    assert [(one.id, one.rule, one.used_at) for one in found] == [("c", "idle", lives["c"].used_at)]


def test_0_days_mean_no_expiry() -> None:
    assert validate(Lifetimes(session_days=0, idle_days=0, delivery_days=0)) == Lifetimes()
    assert validate(Lifetimes(session_days=DAYS_MAX, call_days=1)) == Lifetimes(session_days=DAYS_MAX, call_days=1)


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (Lifetimes(idle_days=-1), "idle_days"),
        (Lifetimes(session_days=DAYS_MAX + 1), "session_days"),
        (Lifetimes(delivery_days=31), "delivery_days"),
    ],
)
def test_a_rule_out_of_bounds_is_named(rules: Lifetimes, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        validate(rules)
