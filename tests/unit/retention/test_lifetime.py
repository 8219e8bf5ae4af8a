"""Expiry of sessions by an operator's rules."""

from datetime import UTC, datetime, timedelta

import pytest

from app.core.errors import InvalidRequest
from app.wings.retention.rules import DAYS_MAX, Life, RetentionDays, due_sessions, validate

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def life(created: float, used: float, *, busy: bool = False) -> Life:
    return Life(NOW - timedelta(days=created), NOW - timedelta(days=used), busy)


@pytest.mark.parametrize(
    ("rules", "one", "rule"),
    [
        (RetentionDays(), life(9_000, 9_000), None),
        (RetentionDays(session_days=30), life(30, 30), None),  # a session of exactly that age is kept
        (RetentionDays(session_days=30), life(30.1, 0), "age"),
        (RetentionDays(session_days=30), life(30.1, 0, busy=True), "age"),
        (RetentionDays(idle_days=10), life(90, 10), None),
        (RetentionDays(idle_days=10), life(90, 10.1), "idle"),
        (RetentionDays(idle_days=10), life(90, 10.1, busy=True), None),
        (RetentionDays(session_days=30, idle_days=10), life(40, 20), "age"),
        (RetentionDays(session_days=30, idle_days=10), life(20, 11), "idle"),
        (RetentionDays(call_days=1, change_days=1), life(9_000, 9_000), None),
    ],
)
def test_a_sessions_time_is_over_by_one_rule_at_most(rules: RetentionDays, one: Life, rule: str | None) -> None:
    assert rules.expired_rule(one, NOW) == rule
    before = rules.created_before(NOW)
    assert rule is None or (before is not None and one.created_at < before)


def test_a_session_expires_only_with_its_whole_family() -> None:
    lives = {"a": life(90, 90), "b": life(90, 1), "c": life(90, 90), "d": life(50, 50)}
    families = {"a": {"a", "b", "c"}, "b": {"b", "c"}, "c": {"c"}, "d": {"d", "gone"}}
    found = due_sessions(RetentionDays(idle_days=10), NOW, lives, families)
    assert [(one.id, one.rule, one.used_at) for one in found] == [("c", "idle", lives["c"].used_at)]


def test_0_days_mean_no_expiry() -> None:
    assert validate(RetentionDays(session_days=0, idle_days=0, delivery_days=0)) == RetentionDays()
    longest = RetentionDays(session_days=DAYS_MAX, call_days=1)
    assert validate(longest) == longest


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (RetentionDays(idle_days=-1), "idle_days"),
        (RetentionDays(session_days=DAYS_MAX + 1), "session_days"),
        (RetentionDays(delivery_days=31), "delivery_days"),
    ],
)
def test_a_rule_out_of_bounds_is_named(rules: RetentionDays, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        validate(rules)
