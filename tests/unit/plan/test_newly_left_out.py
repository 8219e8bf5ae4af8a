"""Events newly left out by an epoch, by reducer."""

from app.core.plan.state.frontier import START, Drop, Fold, Frontier, Stub, Superseded
from app.core.record.evictions import newly_left_out


def stub(seq: int, saved: int = 100, reducer: str = "retention") -> Stub:
    return Stub(seq, 0, 10, saved, reducer, "old")


def test_everything_is_new_to_the_first_epoch() -> None:
    first = Frontier(
        drops=(Drop(10, 19, 500, "dialogue_window", "turns"),),
        stubs=(stub(1), stub(2), stub(3, 7, "caps")),
        superseded=(Superseded(4, 30),),
        folds=(Fold("a", 5, 8, 0, 20, 200), Fold("b", 9, 9, 0, 20, 50, shown=False)),
    )
    assert newly_left_out(START, first) == {
        "retention": (2, 200),
        "caps": (1, 7),
        "prefix": (1, 30),
        "fold": (5, 270),
        "dialogue_window": (10, 500),
    }


def test_kept_evictions_are_not_counted_again() -> None:
    before = Frontier(stubs=(stub(1), stub(2)), drops=(Drop(10, 19, 500, "dialogue_window", "turns"),))
    assert newly_left_out(before, before) == {}
    equal = Frontier(stubs=(stub(1), stub(2)), drops=before.drops)  # of other objects, as when it is read again
    assert newly_left_out(before, equal) == {}
    more = Frontier(stubs=(*before.stubs, stub(7, 40)), drops=(Drop(10, 29, 900, "dialogue_window", "turns"),))
    assert newly_left_out(before, more) == {"retention": (1, 40), "dialogue_window": (10, 400)}


def test_a_further_shortened_event_saves_more_and_is_counted_once() -> None:
    assert newly_left_out(Frontier(stubs=(stub(1, 60),)), Frontier(stubs=(stub(1, 100),))) == {"retention": (0, 40)}


def test_restored_events_are_not_counted() -> None:
    assert newly_left_out(Frontier(stubs=(stub(1, 60),), drops=(Drop(2, 3, 9, "caps", ""),)), START) == {}
