"""Long texts cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.lexicon.identifiers import PIECE_CHARS, identifiers, pieces
from app.core.lexicon.words import terms

BIT = st.sampled_from(["a" * 20_000, "word " * 9_000, "line\n" * 7_000, "x", "\n", "src/app/views.py ", "é" * 40_000])


@given(st.lists(BIT, max_size=12))
def test_pieces_are_the_text_and_none_is_long(bits: list[str]) -> None:
    text = "".join(bits)
    found = list(pieces(text))
    assert "".join(found) == text
    assert max(map(len, found)) <= PIECE_CHARS


def test_nothing_is_cut_through_where_there_are_spaces() -> None:
    lines = [f"def function_{number}(path): return open('/srv/data/file_{number}.json')" for number in range(9_000)]
    text = "\n".join(lines)
    assert len(text) > 8 * PIECE_CHARS
    names = identifiers(text)
    assert [n for n in range(9_000) if not {f"/srv/data/file_{n}.json", f"function_{n}"} <= names.keys()] == []
    found = set(terms(text))
    assert [n for n in range(9_000) if f"/srv/data/file_{n}.json" not in found] == []
