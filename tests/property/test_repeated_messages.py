"""The messages that a client repeats after a compaction."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.log.conversation import canonical, count_repeated

kinds = st.sampled_from(["user.message", "assistant.message", "agent.note"])
events = st.builds(lambda kind, text: {"type": kind, "content": text}, kinds, st.sampled_from(["", "a", "b"]))
lists = st.lists(events, max_size=6)


def _chained(found: Sequence[dict[str, Any]]) -> list[bytes]:
    return [text for one in found if (text := canonical(one)) is not None]


@given(lists, lists, lists)
def test_the_longest_repetition_is_counted(before: Any, repeated: Any, after: Any) -> None:
    logged, sent = [*before, *repeated], [*repeated, *after]
    count = count_repeated(logged, sent)
    found = _chained(sent[:count])
    assert len(found) >= len(_chained(repeated))
    assert not found or _chained(logged)[-len(found) :] == found
    assert not count or canonical(sent[count - 1]) is not None


def test_nothing_is_repeated() -> None:
    one, other = ({"type": "user.message", "content": text} for text in "ab")
    assert count_repeated([one], [other]) == count_repeated([], [one]) == count_repeated([one], []) == 0
    assert count_repeated([one, other], [one, other, one]) == 2
