"""tiktoken from local files: counts as tiktoken does, never fetches, never deletes."""

import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app import tokenizers
from app.core.tokens.counter import CALL_TOKENS, Counter, TextKind, estimator_named
from app.core.tokens.scales import AREA, Tokenizer
from app.runtime.settings import Settings
from app.tokenizers import RUN_CHARS_MAX, InParts, TiktokenTokenizer, load, parts, pieces
from app.vocabulary import FILES

INSTALLED = Settings().tiktoken_cache_dir
CL100K, O200K = FILES["cl100k_base"][0], FILES["o200k_base"][0]

# tiktoken's own loader deletes a missing or broken file and fetches another: any network access or removal of a file
# ends the program.
WATCHED = """
import sys
from pathlib import Path

def watch(event, arguments):
    if event.startswith("socket.") or event in ("os.remove", "os.rename"):
        print("forbidden:", event, arguments)
        sys.exit(3)

from app import tokenizers
sys.addaudithook(watch)
print(sorted(tokenizers.load(Path(sys.argv[1]))))
"""


@pytest.fixture(scope="module", params=sorted(FILES))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return load(INSTALLED)[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INSTALLED, tmp_path / "tiktoken"))


def test_counts_are_tiktokens_own() -> None:
    loaded = load(INSTALLED)
    assert {name: tokenizer.name for name, tokenizer in loaded.items()} == {name: name for name in FILES}
    assert [loaded[name].count("tiktoken is great!") for name in sorted(FILES)] == [6, 6]
    assert [loaded[name].count("お誕生日おめでとう") for name in sorted(FILES)] == [9, 8]
    assert [loaded[name].count("") for name in sorted(FILES)] == [0, 0]


def test_a_vocabulary_is_held_once_and_not_by_python_too(folder: Path) -> None:
    tracemalloc.start()
    try:
        loaded = load(folder)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(loaded) == set(FILES)
    assert held < 2_000_000 < 20_000_000 < most


def test_special_tokens_are_ordinary_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.count("<|endoftext|>") > 1


def test_odd_unicode_is_counted(tokenizer: Tokenizer) -> None:
    assert tokenizer.count("\ud800 half of a pair, a NUL \x00 and \U0010ffff") > 0


def test_a_long_run_leaves_the_text_around_it_exact(tokenizer: Tokenizer) -> None:
    prose = "the quick brown fox jumps over the lazy dog " * 200
    run = "x" * 5 * RUN_CHARS_MAX
    alone = tokenizer.count(prose)
    assert alone + tokenizer.count(run) <= tokenizer.count(prose + run) + 1
    assert tokenizer.count(prose + run + " " + prose) <= 2 * alone + tokenizer.count(run) + 2


@given(st.text())
def test_text_without_long_runs_is_not_cut(text: str) -> None:
    assert list(pieces(text)) == [text]
    encoding = tiktoken.get_encoding("o200k_base")
    assert load(INSTALLED)["o200k_base"].count(text) == len(encoding.encode_ordinary(text))


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "!", " ", "\n", "\x1c", "漢", "\u3000"]), st.integers(0, 2500)), max_size=6
    )
)
def test_pieces_are_the_text_and_none_has_a_long_run(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * length for character, length in runs)
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert max(map(longest_run, cut)) <= RUN_CHARS_MAX


@given(
    st.sampled_from(sorted(FILES)),
    st.lists(
        st.sampled_from(
            [*"\n \t\x1c\u3000a.é漢🙂/[<#", "\r\n", "Word", "I's", "2026", "\n\nWord", "\n\n[", ". Word", "- - x"]
        ),
        min_size=10,
        max_size=60,
    ),
)
@settings(max_examples=400)
def test_a_texts_parts_have_its_tokens(encoding: str, words: list[str]) -> None:
    tokenizer, text = load(INSTALLED)[encoding], "".join(words)
    with mock.patch.object(tokenizers, "PART_CHARS", 4):
        cut = list(parts(text))
        assert "".join(cut) == text
        assert sum(map(tokenizer.count, cut)) == tokenizer.count(text) == tokenizer.in_parts.count(text)


@given(st.lists(st.sampled_from([*"\n .é漢🙂/[<#", "Word", "zqxj", "\n\nWord", "0x1f3a"]), min_size=10, max_size=60))
def test_every_estimator_counts_the_same_in_parts(words: list[str]) -> None:
    text = "".join(words)
    with mock.patch.object(tokenizers, "PART_CHARS", 4):
        for name in ("heuristic:o200k_base", "ceil4", "tiktoken:o200k_base", "claude-4.7:o200k_base"):
            estimator = estimator_named(name, load(INSTALLED))
            assert Counter(estimator, AREA).result(text) == estimator.count(text, TextKind.RESULT) + CALL_TOKENS


def test_texts_with_a_part_in_common_count_it_once(tokenizer: Tokenizer) -> None:
    counted: list[str] = []
    with mock.patch.object(TiktokenTokenizer, "count", lambda _, text: counted.append(text) or 1):
        caching = InParts(tokenizer)
        summary = "They renamed the parser.\n\nThey ran its tests."
        assert caching.count(f"With a hint.\n\n{summary}") == caching.count(f"Without.\n\n{summary}") == 3
    assert counted == ["With a hint.\n\n", "They renamed the parser.\n\n", "They ran its tests.", "Without.\n\n"]


def longest_run(text: str) -> int:
    longest = length = 0
    before = None
    for character in text:
        blank = character.isspace() and character not in "\x1c\x1d\x1e\x1f"
        length = length + 1 if blank == before else 1
        longest, before = max(longest, length), blank
    return longest


def test_a_missing_vocabulary_is_left_out_and_logged(folder: Path) -> None:
    (folder / CL100K).unlink()
    with capture_logs() as logs:
        assert set(load(folder)) == {"o200k_base"}
    assert [(line["log_level"], line["event"], line["encoding"]) for line in logs] == [
        ("warning", "vocabulary missing", "cl100k_base")
    ]


def test_a_corrupt_vocabulary_is_left_out_and_left_alone(folder: Path) -> None:
    with (folder / O200K).open("ab") as handle:
        handle.write(b"!")
    before = (folder / O200K).read_bytes()
    with capture_logs() as logs:
        assert set(load(folder)) == {"cl100k_base"}
    assert [line["event"] for line in logs] == ["vocabulary corrupt"]
    assert (folder / O200K).read_bytes() == before


def test_an_unreadable_vocabulary_is_left_out(folder: Path) -> None:
    (folder / O200K).unlink()
    (folder / O200K).mkdir()
    with capture_logs() as logs:
        assert set(load(folder)) == {"cl100k_base"}
    assert [line["event"] for line in logs] == ["vocabulary unreadable"]


@pytest.mark.parametrize(("damage", "left"), [(None, ["cl100k_base", "o200k_base"]), (O200K, ["cl100k_base"])])
def test_nothing_is_fetched_or_deleted(folder: Path, damage: str | None, left: list[str]) -> None:
    if damage is not None:
        (folder / damage).write_text("broken")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [str(left)]), done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} == {CL100K, O200K}
