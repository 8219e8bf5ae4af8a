"""Where turns begin."""

from app.core.events import Draft, EventType
from app.core.turns import FIRST, TurnState, count_turns, depends_on_state

U, A, S = EventType.USER_MESSAGE, EventType.ASSISTANT_MESSAGE, EventType.TURN_START


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
