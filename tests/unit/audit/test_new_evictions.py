"""The evictions that one context has in addition to another."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.record.evictions import Eviction, new_evictions


def eviction(first: int, last: int, saved: int, reason: str = "old") -> Eviction:
    return Eviction(first, last, "stubbed", "economics", reason, saved)


def test_only_new_evictions_and_new_parts_of_longer_ones_are_new() -> None:
    before = [eviction(1, 9, 100), eviction(10, 12, 30), eviction(14, 16, 20)]
    after = [eviction(1, 9, 100), eviction(10, 20, 100), eviction(30, 30, 500, "superseded")]
    assert new_evictions(before, after) == (
        eviction(13, 13, 10),
        eviction(17, 20, 40),
        eviction(30, 30, 500, "superseded"),
    )


def test_an_event_that_was_shown_within_a_summary_is_new_once_it_goes() -> None:
    def fold(first: int, last: int, saved: int) -> Eviction:
        return Eviction(first, last, "summarized", "fold", "summary a", saved)

    assert new_evictions([fold(1, 10, 0), fold(12, 20, 900)], [fold(1, 20, 1_000)]) == (fold(11, 11, 100),)


RUNS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 99)), max_size=12)


def runs(given: list[tuple[int, int, int]]) -> list[Eviction]:
    """Return evictions that do not overlap, in order."""
    found: list[Eviction] = []
    for first, size, saved in sorted(given):
        if not found or first > found[-1].to_seq:
            found.append(eviction(first, first + size - 1, saved))
    return found


def events(rows: list[Eviction] | tuple[Eviction, ...]) -> set[int]:
    return {seq for row in rows for seq in range(row.from_seq, row.to_seq + 1)}


@given(RUNS, RUNS)
def test_new_evictions_are_exactly_the_events_that_the_earlier_ones_lack(
    given_before: list[tuple[int, int, int]], given_after: list[tuple[int, int, int]]
) -> None:
    before, after = runs(given_before), runs(given_after)
    new = new_evictions(before, after)
    assert events(new) == events(after) - events(before)
    assert sum(row.tokens_saved for row in new) <= sum(row.tokens_saved for row in after)
