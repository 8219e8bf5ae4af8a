"""A call's blocks compared with another's, and its evictions by reason."""

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.record.reading import BlockChange, compare, expected_read, first_difference, left_out, shorten

SEQS = st.lists(st.integers(1, 30), unique=True, max_size=20)


def block(seq: int, text: str = "x", *, mark: str = "verbatim", kind: str = "user", **more: Any) -> dict[str, Any]:
    """Return a block of a request."""
    about = {"seq": seq, "kind": kind, "mark": mark, "name": None, "text": text, "chars": len(text), "tokens": 10}
    return about | {"index": 0, "breakpoint": None, "reducer": None, "reason": None} | more


def eviction(first: int, last: int, reducer: str, reason: str, saved: int = 5, form: str = "dropped") -> dict[str, Any]:
    """Return a range of events that a call does not show whole."""
    return dict(from_seq=first, to_seq=last, reducer=reducer, reason=reason, tokens_saved=saved, disposition=form)


@given(SEQS, SEQS)
def test_pairs_of_blocks_are_those_of_both_requests_in_order(a: list[int], b: list[int]) -> None:
    ours, theirs = [block(seq) for seq in a], [block(seq, mark="stub") for seq in b]
    changes = compare(ours, theirs, ())
    assert [change.before for change in changes if change.before] == ours
    assert [change.after for change in changes if change.after] == theirs
    assert all(one.before["seq"] == one.after["seq"] for one in changes if one.before and one.after)


@given(SEQS, st.sets(st.integers(1, 30)))
def test_blocks_of_one_event_are_always_a_pair_if_the_order_is_the_same(a: list[int], gone: set[int]) -> None:
    changes = compare([block(seq) for seq in a], [block(seq) for seq in a if seq not in gone], ())
    assert [change.kind for change in changes] == ["removed" if seq in gone else "same" for seq in a]


def test_texts_of_the_server_are_pairs_by_purpose() -> None:
    before = [block(1, kind="system"), block(9, mark="summary", kind="note"), block(12)]
    after = [block(10, "y", kind="system"), block(14, "longer", mark="summary", kind="note", tokens=30), block(12)]
    changes = compare(before, after, ())
    assert [(change.kind, change.tokens) for change in changes] == [("changed", 0), ("changed", 20), ("same", 0)]
    assert BlockChange(before[2], None).tokens == -10


def test_a_block_that_is_gone_has_the_eviction_of_its_event() -> None:
    rows = [eviction(1, 9, "retention", "not_among_last_2", form="stubbed"), eviction(3, 5, "fold", "summary 7")]
    (change,) = compare([block(4)], [], rows)
    assert change.why == rows[1]
    (other,) = compare([block(8)], [], rows)
    assert other.why is None


def test_words_are_compared_but_not_with_a_stub() -> None:
    changed, stubbed = compare(
        [block(1, "the old file"), block(2, "the old file")],
        [block(1, "the new file"), block(2, "[-]", mark="stub")],
        (),
    )
    assert [tuple(piece) for piece in changed.pieces] == [
        ("same", "the "),
        ("del", "old"),
        ("ins", "new"),
        ("same", " file"),
    ]
    assert [piece.edit for piece in stubbed.pieces] == ["del", "ins"]


def test_long_pieces_have_their_beginning_and_end() -> None:
    (change,) = compare([block(1, "a" * 5_000 + "b")], [block(1, "c" + "a" * 9_000)], ())
    assert all(len(piece.text) < 600 and "characters…" in piece.text for piece in change.pieces)
    assert shorten([]) == []


def test_a_request_differs_first_where_a_block_does_or_where_it_ends() -> None:
    blocks = [block(1), block(2)]
    assert first_difference(blocks, [*blocks, block(3)]) == 2
    assert first_difference(blocks, [block(1), block(2, "z")]) == 1
    assert first_difference(blocks, blocks) == 2


def test_thousands_of_blocks_in_reverse_order_take_bounded_work() -> None:
    blocks = [block(seq) for seq in range(10_000)]
    start = time.process_time()
    assert len(compare(blocks, blocks[::-1], ())) == 2 * len(blocks) - 1
    assert time.process_time() - start < 3


def test_evictions_are_grouped_by_reason_and_summaries_are_one() -> None:
    rows = [eviction(1, 4, "fold", "summary a"), eviction(5, 6, "fold", "summary b"), eviction(9, 9, "caps", "cap", 30)]
    assert [(one.reducer, one.reason, list(one.ranges), one.tokens) for one in left_out(rows)] == [
        ("caps", "cap", [(9, 9)], 30),
        ("fold", "summary", [(1, 4), (5, 6)], 10),
    ]


def test_expected_reads_end_at_the_last_marker_of_an_earlier_call() -> None:
    kinds = ("system", "previous", None, "tail")
    blocks = [block(n, index=n, breakpoint=kind) for n, kind in enumerate(kinds)]
    assert expected_read(blocks) == 20
    assert expected_read([block(1, breakpoint="tail")]) is None
