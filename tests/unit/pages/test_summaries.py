"""Pieces and spans of summaries."""

from app.wings.pages.log import sections, tree


def test_extracted_sections_are_told_from_a_models_words() -> None:
    kept, files = "<requests>\n- use port 5432\n</requests>", "<modified-files>\na.py\n</modified-files>"
    text = f"The model's words.\n\n{kept}\n\n{files}\nand more"
    pieces = sections(text)
    assert [piece for piece, extracted in pieces if extracted] == [kept, files]
    assert "".join(piece for piece, _ in pieces) == text


def test_other_tags_and_unclosed_ones_are_the_models_words() -> None:
    text = "<script>\nalert(1)\n</script> <requests>\n- open"
    assert sections(text) == [(text, False)] and sections("") == []


def test_spans_lie_within_the_drawing() -> None:
    spans = tree([{"from_seq": 1, "to_seq": 50}, {"from_seq": 51, "to_seq": 100}], 100)
    assert [(x, width) for x, width, _ in spans] == [(0, 500), (500, 500)]
