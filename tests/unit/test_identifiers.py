"""The names in a text: which, in what order, and in what time."""

import time

import pytest

from app.core.digest.names import names_in
from app.core.lexicon.escapes import unescaped
from app.core.lexicon.identifiers import choose, identifiers


def test_paths_come_before_definitions_before_what_is_repeated() -> None:
    text = (
        "total_sum = 1\nretry_count retry_count\ndef load_rows(): see app/store/log.py, https://example.org/a?b=1,\n"
        "commit 3f2a9c1, port 8700, theValue, os.path.join, and some plain words"
    )
    assert identifiers(text) == {
        "app/store/log.py": 0,
        "https://example.org/a?b=1,": 0,
        "load_rows": 1,
        "retry_count": 2,
        "total_sum": 3,
        "3f2a9c1": 3,
        "8700": 3,
        "theValue": 3,
        "os.path.join": 3,
    }
    assert list(identifiers(text))[:4] == ["app/store/log.py", "https://example.org/a?b=1,", "load_rows", "retry_count"]


def test_the_best_that_are_not_seen_are_chosen_as_far_as_there_is_room() -> None:
    names = {"a/first.py": 0, "a/a_very_long_name_indeed.py": 0, "b_c": 3, "d_e": 3}
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
def test_what_holds_no_escape_sequence_stays_as_it_is(text: str) -> None:
    assert unescaped(text) == text


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
