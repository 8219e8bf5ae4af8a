"""Callers that are authenticated from memory, by the clock."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from app.tenants import CALLERS_MAX, DEFAULT_CALLER, DEFAULT_TENANT, RECENT_SECONDS, Caller, RecentCallers

START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass
class Clock:
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def today(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


def make_callers() -> tuple[Clock, RecentCallers]:
    clock = Clock()
    return clock, RecentCallers(clock.monotonic, clock.today)


def holder(expires_at: datetime | None = None) -> Caller:
    return Caller(DEFAULT_TENANT, frozenset({"ingest", "read"}), uuid4(), "a:", expires_at)


def test_a_key_is_cached_for_minutes_with_its_access() -> None:
    clock, callers = make_callers()
    caller = holder()
    callers.admit(b"k", caller)
    clock.seconds = RECENT_SECONDS
    assert callers.find(b"k") is caller
    clock.seconds += 1
    assert callers.find(b"k") is None
    callers.admit(b"k", caller)
    assert callers.find(b"k") is caller


def test_a_key_that_expires_meanwhile_is_refused() -> None:
    clock, callers = make_callers()
    callers.admit(b"k", holder(START + timedelta(seconds=10)))
    clock.seconds = 9
    assert callers.find(b"k")
    clock.seconds = 10
    assert callers.find(b"k") is None


def test_a_refusal_counts_until_the_key_is_let_in_again() -> None:
    _, callers = make_callers()
    callers.admit(b"k", holder())
    callers.refuse(b"k")
    callers.refuse(b"other")
    assert callers.find(b"k") is None
    callers.admit(b"k", holder())
    assert callers.find(b"k")


def test_a_caller_without_a_tenants_key_has_no_limit() -> None:
    clock, callers = make_callers()
    callers.admit(b"", DEFAULT_CALLER)
    clock.seconds = 100 * RECENT_SECONDS
    assert callers.find(b"") is DEFAULT_CALLER


def test_the_oldest_are_forgotten() -> None:
    _, callers = make_callers()
    for number in range(CALLERS_MAX + 1):
        callers.admit(str(number).encode(), DEFAULT_CALLER)
    assert callers.find(b"0") is None
    assert callers.find(b"1") is DEFAULT_CALLER
