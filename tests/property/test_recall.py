"""A recall stays within its bound, returns originals, and orders them by the log alone."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.lexicon.words import terms
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import TextKind
from app.wings.recall.answer import (
    LIMIT,
    SHARE_MIN,
    SHORT_LIMIT,
    SHORT_SCORE,
    SHORT_SHARE,
    SHORT_TOKENS,
    SeenCall,
    best_position,
    excerpt,
    fill,
    pick,
    portions,
    short_ones,
    verbatim_seqs,
)
from app.wings.recall.search import Corpus, Hit, entry, query_terms, rank
from tests.property.builders import COUNTER, words

texts = st.one_of(words, st.text(st.characters(exclude_categories=["Cs"]), max_size=400))
logs = st.lists(texts, min_size=1, max_size=12).map(
    lambda some: [
        Event(n, EventType.USER_MESSAGE, 1, COUNTER.message(text), body={"content": text})
        for n, text in enumerate(some, start=1)
    ]
)


@given(st.lists(st.integers(0, 5_000), max_size=20), st.integers(100, 20_000))
def test_portions_fit_and_share_equally(costs: list[int], room: int) -> None:
    got = portions(costs, room)
    assert sum(got) <= room
    assert len(got) == len(costs) if sum(costs) <= room else len(got) >= min(1, len(costs))
    cut = {most for cost, most in zip(costs, got, strict=False) if most < cost}
    assert len(cut) <= 1
    assert all(most <= cost for cost, most in zip(costs, got, strict=False))
    if len(got) > 1 and cut:
        assert cut.pop() >= SHARE_MIN


@given(logs, st.integers(100, 3_000), st.sets(st.integers(1, 12)), st.text(max_size=20))
def test_recalled_text_is_original_and_within_the_bound(
    events: list[Event], room: int, shown: set[int], query: str
) -> None:
    weights = dict.fromkeys(query_terms(query), 1.0)
    answer = fill(events, shown, weights, room, COUNTER)
    assert answer.tokens <= room
    assert len(answer.given) + answer.left_out == len(events)
    taken = 0
    for one in answer.given:
        text = one.event.text
        assert one.visible == (one.event.seq in shown)
        assert (one.content is None) == one.visible
        if one.content is not None:
            assert one.content == text[one.start : one.end]
            taken += COUNTER.estimator.count(one.content, TextKind.PROSE)
    assert taken <= room


@given(texts, st.integers(1, 50))
def test_reading_on_gives_the_whole_text(text: str, tokens: int) -> None:
    def count(piece: str) -> int:
        return COUNTER.estimator.count(piece, TextKind.PROSE)

    read, at = "", 0
    for _ in range(len(text) + 1):
        part = excerpt(text, at, max(tokens, 2), count)
        assert part.start == at and count(part.text) <= max(tokens, 2)
        read, at = read + part.text, part.end
        if at == len(text):
            break
    assert read == text


@given(st.lists(st.integers(1, 50), unique=True), st.sets(st.integers(1, 50)), st.integers(1, 10))
def test_picking_keeps_the_order_and_the_limit(seqs: list[int], shown: set[int], limit: int) -> None:
    picked = pick(seqs, shown, limit)
    ranks = [(seq in shown, seqs.index(seq)) for seq in picked]
    assert ranks == sorted(ranks)
    bare = [seq for seq in picked if seq not in shown]
    assert bare == [seq for seq in seqs if seq not in shown][:limit]
    assert len(picked) - len(bare) <= limit


@given(
    st.dictionaries(st.integers(1, 60), st.tuples(st.floats(0.01, 9), st.integers(0, 400)), min_size=1),
    st.sets(st.integers(1, 60)),
    st.integers(1, 10),
    st.integers(100, 9_000),
)
def test_results_beyond_the_limit_are_short_and_leave_tokens(
    found: dict[int, tuple[float, int]], shown: set[int], first: int, room: int
) -> None:
    ranked = sorted(found, key=lambda seq: -found[seq][0])
    scores = {seq: score for seq, (score, _) in found.items()}
    sizes = {seq: size for seq, (_, size) in found.items() if seq not in shown}
    taken = pick(ranked, shown, first)
    more = short_ones(ranked, scores, sizes, taken, room)
    assert more == sorted(more, key=ranked.index) and not {*more} & {*taken, *shown}
    assert len(more) <= SHORT_LIMIT - LIMIT
    if more:
        assert sum(sizes.get(seq, 0) for seq in (*taken, *more)) <= SHORT_SHARE * room
        assert max(sizes[seq] for seq in more) <= SHORT_TOKENS
        assert min(scores[seq] for seq in more) >= SHORT_SCORE * max(scores.values())


@given(st.data())
def test_ranking_is_a_function_of_the_hits_as_a_set(data: Any) -> None:
    counts = st.lists(st.integers(0, 9), min_size=3, max_size=3)
    hits = data.draw(
        st.lists(st.builds(Hit, st.integers(1, 40), st.integers(1, 99), counts), unique_by=lambda hit: hit.seq)
    )
    held = [sum(hit.counts[n] > 0 for hit in hits) for n in range(3)]
    corpus = Corpus(40, 2_000, held)
    ranked = rank(hits, corpus)
    assert rank(data.draw(st.permutations(hits)), corpus) == ranked
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert all(one.score > 0 and one.seq > 0 for one in ranked)
    assert {hit.seq for hit in hits if any(hit.counts)} <= {one.seq for one in ranked}


@given(st.data())
def test_a_question_ranks_last_and_lends_its_score_to_nothing(data: Any) -> None:
    counts = st.lists(st.integers(0, 9), min_size=2, max_size=2)
    hits = data.draw(
        st.lists(st.builds(Hit, st.integers(1, 20), st.integers(1, 99), counts), unique_by=lambda hit: hit.seq)
    )
    question = data.draw(st.sets(st.integers(1, 20), max_size=2))
    corpus = Corpus(20, 1_000, [sum(hit.counts[n] > 0 for hit in hits) for n in range(2)])
    ranked = rank(hits, corpus, current=question)
    others = [one for one in ranked if one.seq not in question]
    assert ranked[: len(others)] == others
    without = rank([hit for hit in hits if hit.seq not in question], corpus)
    assert others == [one for one in without if one.seq not in question]
    assert {hit.seq for hit in hits if any(hit.counts)} <= {one.seq for one in ranked}


@given(texts)
def test_a_text_is_found_by_any_of_its_terms(text: str) -> None:
    event = Event(1, EventType.USER_MESSAGE, 1, 1, body={"content": text})
    found = entry(event)
    assert found is not None
    assert set(terms(event.text)) <= found.terms.keys()
    assert found.length == sum(1 for _ in terms(event.text))


@given(logs, st.text(max_size=30))
def test_the_matching_place_lies_in_the_text(events: list[Event], query: str) -> None:
    weights = dict.fromkeys(query_terms(query), 1.0)
    for event in events:
        assert 0 <= best_position(event.text, weights) <= len(event.text)


@given(logs, st.integers(0, 12))
def test_nothing_after_a_calls_head_is_visible(events: list[Event], head: int) -> None:
    assert verbatim_seqs(events, SeenCall(head), COUNTER) == {event.seq for event in events if event.seq <= head}
