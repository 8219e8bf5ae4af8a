"""Properties: the parts of a summary do not depend on earlier calls of the objects that write them."""

from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from app.core.memory.digest import digest_of
from app.core.memory.digest.appendix import Appendix, Packing, prose_measure
from app.core.memory.digest.calls import PlanStep
from app.core.memory.digest.record import Command, Digest, Search
from app.core.memory.extractive.body import SpanBody
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import appendix, extract

FOLDERS: Final = st.lists(st.sampled_from("abcd"), max_size=3).map("/".join)
NAMES: Final = st.builds("{}/{}".format, FOLDERS, st.sampled_from(["gauge.py", "load_row", "Tide", "row"]))
WORTH: Final = st.dictionaries(NAMES, st.floats(0.001, 40), max_size=25)
WORDS: Final = st.sampled_from(["tide", "gauge", "harbour", "the", "is", "wrong.", "I", "will", "fix", "Never", "push"])
TEXTS: Final = st.lists(WORDS, min_size=1, max_size=20).map(" ".join)
MANY: Final = st.lists(TEXTS, max_size=4).map(tuple)
ROOMS: Final = st.lists(st.integers(0, 700), min_size=1, max_size=6)
DIGESTS: Final = st.builds(
    Digest,
    files_read=st.lists(NAMES, max_size=5, unique=True).map(tuple),
    files_modified=st.lists(NAMES, max_size=5, unique=True).map(tuple),
    searches=st.lists(st.builds(Search, st.just("grep"), TEXTS, st.just(2), st.just(())), max_size=3).map(tuple),
    commands=st.lists(st.builds(Command, TEXTS, st.sampled_from(["ok", "error"])), max_size=4).map(tuple),
    errors=MANY,
    hidden=st.lists(st.tuples(st.integers(1, 9), TEXTS), max_size=2).map(tuple),
    identifiers=WORTH.map(lambda worth: tuple(worth.items())),
    constraints=MANY,
    asks=MANY,
    requests=MANY,
    plan=st.lists(st.builds(PlanStep, TEXTS, st.sampled_from(["pending", "done"])), max_size=3).map(tuple),
    made=MANY,
)


@given(WORTH, ROOMS)
def test_names_are_packed_the_same_after_others_were(worth: dict[str, float], rooms: list[int]) -> None:
    packing = Packing(worth)
    assert [packing.best(room) for room in rooms] == [Packing(worth).best(room) for room in rooms]


@given(DIGESTS, ROOMS, TEXTS)
def test_an_appendix_is_the_same_after_others_of_its_digest(digest: Digest, rooms: list[int], body: str) -> None:
    used = Appendix(digest, prose_measure(COUNTER))
    written = [used.write(room, beside) for room in rooms for beside in ("", body)]
    assert written == [appendix(digest, COUNTER, room, beside) for room in rooms for beside in ("", body)]


@given(DIGESTS, st.integers(0, 700), st.integers(1, 2_000), TEXTS)
@example(Digest(identifiers=tuple((f"tide/gauge_{number}.py", 1.0) for number in range(40))), 60, 900, "")
@example(Digest(requests=("Fix the tide gauge of the northern harbour. " * 20,)), 200, 900, "")
def test_a_whole_appendix_is_the_same_with_more_room(digest: Digest, tokens: int, more: int, body: str) -> None:
    written = Appendix(digest, prose_measure(COUNTER))
    page = written.page(tokens, body)
    if page.is_whole:
        assert written.page(tokens + more, body).text == page.text


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "call"]), TEXTS), max_size=12), ROOMS, TEXTS)
def test_a_body_is_the_same_after_others_of_its_span(said: list[tuple[str, str]], rooms: list[int], goal: str) -> None:
    log = Log()
    for author, text in said:
        match author:
            case "user":
                log.user(body={"content": text})
            case "assistant":
                log.assistant(body={"content": text})
            case _:
                log.result(log.call("bash", body={"arguments": {"command": text}}), body={"content": text})
    digest, previous = digest_of(log.events), f"## Goal\n- {goal}"
    body = SpanBody(log.events, previous, digest, prose_measure(COUNTER))
    assert [body.write(room) for room in rooms] == [
        extract(log.events, previous, digest, room, COUNTER) for room in rooms
    ]
