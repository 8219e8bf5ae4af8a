"""The beginnings of turns."""

import pytest

from app.core.log.appends import FIRST, TurnMark, TurnState, changes_turn_state, count_turns, depends_on_state, turn_of
from app.core.log.events import Draft, EventType

U, A, S = EventType.USER_MESSAGE, EventType.ASSISTANT_MESSAGE, EventType.TURN_START
E = EventType.TURN_END


def numbers(*drafts: Draft, state: TurnState = FIRST) -> tuple[int, ...]:
    return count_turns(state, drafts)[1]


def test_each_user_message_begins_a_turn() -> None:
    assert numbers(Draft(A), Draft(U), Draft(A), Draft(U)) == (0, 1, 1, 2)


def test_a_turn_start_and_its_user_message_are_one_turn() -> None:
    assert numbers(Draft(S), Draft(A), Draft(U), Draft(U), Draft(S), Draft(S)) == (1, 1, 1, 2, 3, 4)


def test_a_user_speaking_into_a_running_turn_stays_in_it() -> None:
    assert numbers(Draft(U, turn_id="t1"), Draft(U, turn_id="t1"), Draft(U, turn_id="t2"), Draft(U)) == (1, 1, 2, 3)


def test_the_state_carries_over_batches() -> None:
    drafts = (Draft(S, turn_id="t"), Draft(U), Draft(A), Draft(U, turn_id="t"), Draft(U))
    whole_state, whole = count_turns(FIRST, drafts)
    for cut in range(len(drafts) + 1):
        state, head = count_turns(FIRST, drafts[:cut])
        state, tail = count_turns(state, drafts[cut:])
        begun = head[-1] if head else 0
        assert (*head, *(begun + n for n in tail)) == whole
        assert state == whole_state


def test_only_a_leading_user_message_depends_on_the_state() -> None:
    assert depends_on_state([Draft(A), Draft(U)])
    assert not depends_on_state([Draft(S), Draft(U)])
    assert not depends_on_state([Draft(A)])


def test_an_end_lets_the_next_message_begin_a_turn() -> None:
    assert numbers(Draft(U, turn_id="t"), Draft(E), Draft(A), Draft(U, turn_id="t")) == (1, 1, 1, 2)
    assert numbers(Draft(S), Draft(E), Draft(U), Draft(U)) == (1, 1, 2, 3)


def test_an_end_of_another_turn_ends_nothing() -> None:
    assert numbers(Draft(U, turn_id="t"), Draft(E, turn_id="u"), Draft(U, turn_id="t")) == (1, 1, 1)
    assert numbers(Draft(U, turn_id="t"), Draft(E, turn_id="t"), Draft(U, turn_id="t")) == (1, 1, 2)


def test_only_an_end_that_names_its_turn_depends_on_the_state() -> None:
    assert depends_on_state([Draft(A), Draft(E, turn_id="t")])
    assert not depends_on_state([Draft(E), Draft(U)])


@pytest.mark.parametrize("drafts", [(Draft(U),), (Draft(A), Draft(S)), (Draft(E),)])
def test_drafts_that_may_change_the_state(drafts: tuple[Draft, ...]) -> None:
    assert changes_turn_state(drafts)
    assert not changes_turn_state([Draft(A)])


def marks(*drafts: Draft) -> list[TurnMark]:
    return [TurnMark(seq, draft.type, draft.turn_id) for seq, draft in enumerate(drafts, start=3)]


def test_the_state_of_a_turn_follows_from_its_marks() -> None:
    started = turn_of(marks(Draft(S), Draft(U, turn_id="t"), Draft(U, turn_id="t")))
    assert (started.from_seq, started.turn_id, started.explicit, started.ended) == (3, "t", True, False)
    assert (started.state(running=True), started.state(running=False)) == ("running", "interrupted")
    implied = turn_of(marks(Draft(U)))
    assert (implied.state(running=True), implied.state(running=False)) == ("running", "ended")
    for last, state in ((Draft(E), "ended"), (Draft(E, turn_id="t"), "ended"), (Draft(E, turn_id="u"), "running")):
        assert turn_of(marks(Draft(S, turn_id="t"), Draft(U), last)).state(running=True) == state
