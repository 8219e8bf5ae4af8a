"""Differences between texts, within bounds."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.record.reading import EDITS_MAX, Piece, compare_texts

TEXTS = st.text(st.sampled_from("ab \n.é"), max_size=60) | st.text(max_size=40)


def side(pieces: list[Piece], left_out: str) -> str:
    """Return one of the two texts from their difference."""
    return "".join(piece.text for piece in pieces if piece.edit != left_out)


@given(TEXTS, TEXTS)
def test_a_difference_has_both_texts(a: str, b: str) -> None:
    pieces = compare_texts(a, b)
    assert (side(pieces, "ins"), side(pieces, "del")) == (a, b)
    assert a != b or {piece.edit for piece in pieces} <= {"same"}


def test_words_are_compared_before_lines_and_whole_texts() -> None:
    assert compare_texts("read the old file", "read the new file") == [
        Piece("same", "read the "),
        Piece("del", "old"),
        Piece("ins", "new"),
        Piece("same", " file"),
    ]


def test_texts_with_many_edits_are_compared_by_lines_and_then_as_a_whole() -> None:
    a = "".join(f"{n}\n" for n in range(EDITS_MAX))
    lines = compare_texts(f"same\n{'a b ' * EDITS_MAX}\nsame too\n", f"same\n{'c d ' * EDITS_MAX}\nsame too\n")
    assert [piece.edit for piece in lines] == ["same", "del", "ins", "same"]
    b = "".join(f"{n}\n" for n in range(EDITS_MAX, 2 * EDITS_MAX))
    assert compare_texts(f"-{a}", f"+{b}") == [Piece("del", f"-{a}"), Piece("ins", f"+{b}")]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x" * 2_000_000, "y" * 2_000_000),
        ("." * 2_000_000, "," * 2_000_000),
        ("ab " * 700_000, "ba " * 700_000),
        ("a\n" * 1_000_000, "a\nb\n" * 500_000),
        ("a.b." * 6_000, ".a.c" * 6_000),
    ],
    ids=["one word", "marks", "words", "lines", "at the limit of words"],
)
def test_large_texts_take_bounded_work(a: str, b: str) -> None:
    start = time.process_time()
    pieces = compare_texts(a, b)
    assert time.process_time() - start < 3
    assert (side(pieces, "ins"), side(pieces, "del")) == (a, b)
