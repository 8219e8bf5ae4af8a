"""Index terms of an event: words, identifiers and paths; and the ranking of results."""

import pytest

from app.core.lexicon.words import stem, terms
from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest import digest_of
from app.wings.recall.search import (
    ASKS_MARK,
    NEARBY,
    Corpus,
    Hit,
    author_marks,
    endings,
    entry,
    keys,
    path_term,
    query_terms,
    rank,
)


def user_event(text: str, **fields: object) -> Event:
    about = {name: fields.pop(name) for name in ("path", "arguments", "redacted") if name in fields}
    values = {"seq": 7, "type": EventType.USER_MESSAGE, "turn": 1, "tokens": 5} | fields
    return Event(**values, body={"content": text} | about)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logged", "asked"),
    [
        ("see app/store/views.py.", "app/store/views.py"),
        ("see `app/store/views.py:31`", "views.py"),
        ("see app/store/views.py", "store"),
        ("the row with order_id=8841 failed", "order_id=8841"),
        ("the row with order_id=8841 failed", "8841"),
        ("the row with order_id=8841 failed", "order_id"),
        ("docker build --no-cache .", "--no-cache"),
        ("docker build --no-cache .", "no-cache"),
        ("set CANDIDATES_MAX here", "candidates max"),
        ("def getUserName(self):", "getUserName"),
        ("def getUserName(self):", "user name"),
        ("class HTTPServer:", "server"),
        ('{"retryLimit":17}', "retryLimit"),
        ("https://example.org/a/b?c=1", "example.org"),
        ("v2.3.1 is out", "v2.3.1"),
        ("Überprüfung der Maße", "überprüfung"),
        ("会議は京都で行われます", "京都"),
        ("She painted a sunrise", "paint"),
        ("Caroline’s stories", "story caroline"),
        ("error E1234 in worker-3", "E1234"),
        (r"C:\Users\x\notes.txt", "notes.txt"),
    ],
)
def test_logged_text_is_found_by_a_query(logged: str, asked: str) -> None:
    assert set(terms(asked)) & set(terms(logged))
    assert not set(terms(asked)) & set(terms("nothing of the kind"))


@pytest.mark.parametrize("name", ["app/store/views.py", "order_id=8841", "--no-cache", "getUserName", "v2.3.1"])
def test_a_whole_name_distinguishes_names_with_shared_parts(name: str) -> None:
    parts = " ".join(piece for piece in terms(name) if piece != name.lower())
    assert name.lower() in set(terms(name)) - set(terms(parts))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("painted", "painting"),
        ("stories", "story"),
        ("stopped", "stopping"),
        ("hopes", "hoping"),
        ("files", "file"),
        ("bought", "buys"),
        ("went", "going"),
        ("children", "child"),
        ("happiness", "happy"),
        ("nationally", "national"),
    ],
)
def test_forms_of_a_word_are_one_term(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_words_with_digits_or_of_other_scripts_are_not_stemmed() -> None:
    assert [stem(word) for word in ("e1234s", "naïves", "8841")] == ["e1234s", "naïves", "8841"]


def test_the_letters_of_escape_sequences_belong_to_no_term() -> None:
    assert {"todo", "row"} <= set(terms(r"print('a\nTodo\trows')")) and "ntodo" not in set(terms(r"a\nTodo"))


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Where did you buy it?", True),
        ("Lovely! Where is it? [shares image: a photo of a pier]", True),
        ("Was it far? I walked there.", False),
        ("See https://example.org/a?b=1", False),
    ],
)
def test_an_event_that_ends_with_a_question_is_marked(text: str, asks: bool) -> None:
    found = entry(user_event(text))
    assert found is not None and (ASKS_MARK in found.terms) == asks
    result = entry(user_event(text, type=EventType.TOOL_RESULT, tool="read"))
    assert result is not None and ASKS_MARK not in result.terms


def test_the_speaker_is_marked_by_author_or_leading_name() -> None:
    by, named, nobody = (
        entry(user_event("hi", author="Ann Lee")),
        entry(user_event("[s 1] Ann: hi")),
        entry(user_event("hi Ann")),
    )
    assert by is not None and named is not None and nobody is not None
    assert set(author_marks(query_terms("What did Ann paint?"))) & by.terms.keys() & named.terms.keys()
    assert not set(author_marks(query_terms("What did Ann paint?"))) & nobody.terms.keys()
    assert not set(query_terms(" ".join([ASKS_MARK, *author_marks(["ann"])]))) & {
        ASKS_MARK,
        *author_marks(["ann"]),
    }


def test_stop_words_are_no_terms() -> None:
    assert list(terms("What is it that they have, and why?")) == []
    assert query_terms("the the the") == ()
    assert len(query_terms(" ".join(f"word{n}" for n in range(500)))) == 64


@pytest.mark.parametrize("blob", ["A" * 300_000, "ab/" * 100_000, "a_" * 100_000, "x." * 100_000, "漢" * 100_000])
def test_data_is_no_name(blob: str) -> None:
    found = entry(user_event(blob))
    assert found is not None
    assert all(len(term) < 300 for term in found.terms)
    assert len(found.terms) < 1_000


def test_an_event_is_found_by_its_subject() -> None:
    call = user_event(
        "", type=EventType.TOOL_CALL, tool="read", arguments={"path": "/repo/app/a.py"}, at=1_700_000_000.0
    )
    found = entry(call)
    assert found is not None
    for path in ("/repo/app/a.py", "app/a.py", "./app/a.py", "a.py"):
        assert path_term(path) in found.terms
    assert path_term("b/a.py") not in found.terms
    assert {"read", stem("november"), "2023", "2023-11-14"} <= found.terms.keys()
    by = entry(user_event("hello", author="Ann Lee"))
    assert by is not None and "ann" in by.terms


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"paths": ["src/b.py", "src/a.py"]}),
        ("read", {"files": [{"path": "src/a.py", "lines": 3}]}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** End Patch"}),
        ("bash", {"command": "cd src && echo done > a.py"}),
    ],
)
def test_a_call_is_found_by_every_file_that_its_digest_names(tool: str, arguments: dict[str, Json]) -> None:
    call = user_event("", type=EventType.TOOL_CALL, tool=tool, arguments=arguments)
    found = entry(call)
    assert found is not None
    digest = digest_of([call])
    assert "src/a.py" in (*digest.files_read, *digest.files_modified)
    for path in (*digest.files_read, *digest.files_modified):
        assert path_term(path) in found.terms


@pytest.mark.parametrize("path", ["", "/", "..", "a//b", "/a/"])
def test_odd_paths_can_be_searched(path: str) -> None:
    assert path_term(path).startswith("path ")
    assert all("//" not in ending for ending in endings(path))


@pytest.mark.parametrize(
    "event",
    [
        user_event("x", type=EventType.TURN_END),
        user_event("x", type=EventType.TOOLS),
        user_event("x", type=EventType.SYSTEM_PROMPT),
        user_event("x", redacted=True),
        user_event("x", type=EventType.TOOL_RESULT, tool="recall"),
        user_event("x", type=EventType.TOOL_RESULT, tool="mcp__palimpsest__recall"),
    ],
)
def test_events_that_are_not_indexed(event: Event) -> None:
    assert entry(event) is None


def test_the_rarer_word_counts_more_and_the_nearer_event_gains() -> None:
    corpus = Corpus(entries=100, length=1000, holding=[50, 1])
    ranked = rank([Hit(10, 10, [1, 0]), Hit(50, 10, [0, 1])], corpus)
    assert ranked[0].seq == 50
    seqs = [one.seq for one in ranked]
    assert seqs.index(51) < seqs.index(52) < seqs.index(53)
    assert rank([], corpus) == []
    alone = rank([Hit(1, 10, [1, 0])], corpus, nearby=())
    assert [one.seq for one in alone] == [1]


def test_the_answer_to_a_question_gains_more_than_the_text_before_it() -> None:
    corpus = Corpus(entries=100, length=1000, holding=[3])
    question = Hit(50, 10, [1], asks=True)
    assert [one.seq for one in rank([question], corpus)][:2] == [51, 50]
    before, plain = rank([Hit(50, 10, [1])], corpus), {one.seq: one.score for one in rank([question], corpus)}
    assert [one.seq for one in before][:2] == [50, 51]
    [alone] = rank([Hit(50, 10, [1])], corpus, nearby=())
    assert plain[51] - {one.seq: one.score for one in before}[51] == pytest.approx(NEARBY[0] * alone.score)


def test_a_nearby_event_adds_more_by_a_term_that_is_lacking() -> None:
    corpus = Corpus(entries=1_000, length=10_000, holding=[3, 3])
    lacking = [Hit(10, 10, [1, 0]), Hit(11, 10, [0, 1])]
    repeated = [Hit(500, 10, [1, 0]), Hit(501, 10, [1, 0])]
    assert {one.seq for one in rank(lacking + repeated, corpus)[:2]} == {10, 11}


def test_of_two_equal_events_the_one_near_other_matches_comes_first() -> None:
    corpus = Corpus(entries=1_000, length=10_000, holding=[1, 3])
    ranked = rank([Hit(10, 10, [1, 1]), Hit(18, 10, [0, 1]), Hit(200, 10, [0, 1])], corpus)
    assert [one.seq for one in ranked if one.seq in (10, 18, 200)] == [10, 18, 200]
    ranked = rank([Hit(18, 10, [0, 1]), Hit(200, 10, [0, 1])], corpus)
    assert [one.seq for one in ranked if one.seq in (18, 200)] == [200, 18]


def test_of_two_equal_events_the_one_by_the_named_speaker_comes_first() -> None:
    corpus = Corpus(entries=100, length=1000, holding=[3])
    assert [one.seq for one in rank([Hit(10, 10, [1], speaks=True), Hit(50, 10, [1])], corpus, ())] == [10, 50]


def test_a_shorter_event_with_the_same_matches_weighs_more() -> None:
    corpus = Corpus(entries=10, length=1000, holding=[2])
    short, long = rank([Hit(1, 10, [1]), Hit(9, 500, [1])], corpus, nearby=())
    assert (short.seq, long.seq) == (1, 9)


def test_a_term_has_another_key_in_another_session() -> None:
    assert keys(b"a" * 16, ["word"]) == keys(b"a" * 16, ["word"])
    assert keys(b"a" * 16, ["word"]) != keys(b"b" * 16, ["word"])
    assert len(set(keys(b"a" * 16, map(str, range(10_000))))) == 10_000
    assert all(-(2**63) <= key < 2**63 for key in keys(b"a" * 16, ["word", "", "\ud800"]))


def test_length_counts_from_fifty_terms_on() -> None:
    """A long answer holds many words by chance; among short turns the length says nothing."""
    corpus = Corpus(100, 10_000, (4,))
    hits = [Hit(seq, length, (1,)) for seq, length in ((10, 400), (20, 51), (30, 50), (40, 5))]
    ranked = rank(hits, corpus, nearby=())
    assert [one.seq for one in ranked] == [40, 30, 20, 10]
    scores = [one.score for one in ranked]
    assert scores[0] == scores[1] > scores[2] > 2 * scores[3]
