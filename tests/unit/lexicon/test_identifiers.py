"""The names in a text: their choice, their order, and the time of finding them."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.lexicon.identifiers import (
    DEFINITION,
    NAME,
    NAME_OR_CODE,
    SPACES,
    Pattern,
    choose,
    identifiers,
    ranked,
    unescaped,
)
from app.core.memory.digest.names import names_in
from tests.support.examples import examples


def test_paths_come_before_definitions_before_what_is_repeated() -> None:
    text = (
        "total_sum = 1\nretry_count retry_count\ndef load_rows(): see app/store/log.py, https://example.org/a?b=1,\n"
        "commit 3f2a9c1, port 8700, theValue, tide.rows.load, and some plain words"
    )
    names = identifiers(text)
    assert names["retry_count"] == 2
    assert set(names.values()) == {1, 2}
    assert tuple(ranked(names, text)) == (
        "app/store/log.py",
        "https://example.org/a?b=1,",
        "load_rows",
        "retry_count",
        "total_sum",
        "3f2a9c1",
        "8700",
        "theValue",
        "tide.rows.load",
    )


def test_the_best_unseen_names_are_chosen_up_to_the_limit() -> None:
    names = ("a/first.py", "a/a_very_long_name_indeed.py", "b_c", "d_e")
    assert choose(names, {"d_e"}, 15) == ("a/first.py", "b_c")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r'print("done\nPleaseWait\tTotalSum")', ["PleaseWait", "TotalSum"]),
        (r'{"content": "see \"load_rows\"\\nToBe\\u0041ndThis_one"}', ["load_rows", "ToBe", "ndThis_one"]),
        ("\x1b[31mload_rows\x1b[0m \\033[1mstoreRows", ["load_rows", "storeRows"]),
        ('git log --format="%an%nDateOf: %ad"', ["DateOf"]),
        (r"a C:\new\table_one\rows.py and tide\new", ["table_one", "rows.py"]),
        (r"\d+ app\Http\UserStore", ["UserStore"]),
    ],
)
def test_the_letters_of_escape_sequences_belong_to_no_name(text: str, names: list[str]) -> None:
    assert list(identifiers(text)) == names
    assert list(names_in(text)) == names


@pytest.mark.parametrize("text", ["plain words", r"C:\new\table", r"D:\\rows\\n.py", "100%nothing"])
def test_text_without_escape_sequences_is_unchanged(text: str) -> None:
    assert unescaped(text) == text


SNIPPETS = (
    *"aBfx_./-@~ :\n\t1\"'()é→٣²\x1c\x85\u2003",
    *("https://", "http://h.de/a", "://", "plain", "words", "camelCase", "snake_case", "os.path", "a/b.py", "./x"),
    *("2026-11-22", "T10:30", "1234", "12", "v1.2", "AB-123", "deadbeef", "effaced", "3f2a9c1", "func (", "def "),
    *("class\t", "type", "0123abcd-0123-0123-0123-0123456789ab", "\\n", "\\\\n", "\x1b[31m", "%n", "C:\\new"),
)
texts = st.lists(st.sampled_from(SNIPPETS), max_size=12).map("".join)


@given(texts)
@settings(max_examples=examples(1_500))
def test_a_search_from_word_boundaries_finds_the_same_as_one_everywhere(text: str) -> None:
    for names in (NAME, NAME_OR_CODE):
        assert names.findall(text) == names.anywhere.findall(text)


@given(texts)
@settings(max_examples=examples(1_500))
def test_a_pattern_finds_the_same_in_ascii_text_as_in_any_other(text: str) -> None:
    spaces = Pattern(f"[{SPACES}]"), Pattern(f"[^{SPACES}]+")
    for pattern in (NAME.anywhere, NAME_OR_CODE.anywhere, DEFINITION, *spaces):
        assert pattern.findall(text) == re.findall(pattern.pattern, text)


@given(st.characters())
def test_spaces_are_those_of_a_unicode_pattern(char: str) -> None:
    assert Pattern(f"[{SPACES}]").findall(char) == re.findall(r"\s", char)


@pytest.mark.parametrize(
    "nasty", ["\\", "\\n", "C:\\", "\x1b[", "-", "@", "a.", "a/", "aB3_", "12345678", "https://", "func (", "~/", "_"]
)
def test_time_grows_with_the_text_and_not_with_its_square(nasty: str) -> None:
    def seconds(chars: int) -> float:
        text = nasty * (chars // len(nasty))
        started = time.thread_time()
        identifiers(text)
        return time.thread_time() - started

    short = min(seconds(4_000) for _ in range(5))
    assert min(seconds(128_000) for _ in range(3)) < 32 * short * 8
