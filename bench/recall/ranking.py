"""All evidence of a question among the first results: this search, its steps one by one, and a public library."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from rank_bm25 import BM25Okapi

from app.core.lexicon.words import terms
from app.core.log.event import Event
from app.wings.recall.search import (
    ASKS_MARK,
    NEARBY,
    Corpus,
    Hit,
    IndexEntry,
    Ranked,
    author_marks,
    entry,
    query_terms,
    rank,
)
from bench.retention import dialogue
from bench.retention.points import message_of

FIRST: Final = 10
_WORD: Final = re.compile(r"\w+")

Search: TypeAlias = Callable[[str], Sequence[int]]
"""A search from a question to messages, best first."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the messages that hold its answer, and its category."""

    text: str
    evidence: tuple[int, ...]
    category: str


@dataclass(frozen=True, slots=True)
class QuestionedDialogue:
    """A dialogue and its questions."""

    one: dialogue.Dialogue
    questions: tuple[Question, ...]


def load(file: Path) -> Iterator[QuestionedDialogue]:
    """Load the dialogues of a neutral JSONL file, with their questions."""
    for one in dialogue.load(file):
        yield QuestionedDialogue(one, tuple(map(Question, one.questions, one.evidence, one.categories)))


class Index:
    """An in-memory version of the store's index: entries, and a query's hits with the statistics to score them by."""

    def __init__(self, entries: Sequence[IndexEntry]) -> None:
        self._entries = entries
        self._seqs = {one.seq for one in entries}
        self._length = sum(one.length for one in entries)

    def find(self, query: str, nearby: Sequence[float] = NEARBY) -> list[Ranked]:
        """Return the entries that match or are near a match, best first."""
        words = query_terms(query)
        counts = [[one.terms.get(word, 0) for word in words] for one in self._entries]
        holding = [sum(row[n] > 0 for row in counts) for n in range(len(words))]
        pairs = zip(self._entries, counts, strict=True)
        speakers = list(author_marks(words))
        hits = [
            Hit(one.seq, one.length, row, ASKS_MARK in one.terms, any(mark in one.terms for mark in speakers))
            for one, row in pairs
            if any(row)
        ]
        found = rank(hits, Corpus(len(self._entries), self._length, holding), nearby)
        return [one for one in found if one.seq in self._seqs]

    def holding(self, query: str) -> list[int]:
        """Return for each term of a query the number of entries that hold it."""
        return [sum(word in one.terms for one in self._entries) for word in query_terms(query)]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def entries(events: Sequence[Event], make: Callable[[Event], IndexEntry | None] = entry) -> list[IndexEntry]:
    """Return the index entries of the events that have one."""
    return [made for made in map(make, events) if made is not None]


def _of_text(event: Event) -> IndexEntry:
    counts: dict[str, int] = {}
    for term in terms(event.text):
        counts[term] = counts.get(term, 0) + 1
    return IndexEntry(event.seq, counts, sum(counts.values()))


def _ours(make: Callable[[Event], IndexEntry | None], nearby: Sequence[float]) -> Callable[[Sequence[Event]], Search]:
    def over(events: Sequence[Event]) -> Search:
        index = Index(entries(events, make))
        message = {event.seq: message_of(event) for event in events}
        return lambda query: [message[one.seq] for one in index.find(query, nearby)]

    return over


def _library(words: Callable[[str], Sequence[str]]) -> Callable[[Sequence[Event]], Search]:
    def over(events: Sequence[Event]) -> Search:
        scorer = BM25Okapi([words(event.text) for event in events])

        def search(query: str) -> list[int]:
            scores = scorer.get_scores(words(query))
            order = sorted(range(len(events)), key=lambda at: (-scores[at], -at))
            return [message_of(events[at]) for at in order]

        return search

    return over


METHODS: Final[Mapping[str, Callable[[Sequence[Event]], Search]]] = {
    "rank-bm25, words in lower case": _library(words),
    "rank-bm25, the terms of this search": _library(lambda text: list(terms(text))),
    "this search, terms alone": _ours(_of_text, ()),
    "... and the day, author and tool": _ours(entry, ()),
    "... and what is nearby and around (as served)": _ours(entry, NEARBY),
}


def table(dialogues: Sequence[QuestionedDialogue]) -> str:
    """Return Markdown: by method, the share of questions with all and any of their evidence among the first results."""
    total = sum(len(asked.questions) for asked in dialogues)
    lines = [
        f"{total} questions, asked in their own words; evidence among the first {FIRST} results.\n",
        "| search | all evidence | any evidence | all, worst dialogue | all, best dialogue |",
        "|---|---|---|---|---|",
    ]
    for name, over in METHODS.items():
        found = [(asked, over(asked.one.events)) for asked in dialogues]
        every = [[_held(search, q, all) for q in asked.questions] for asked, search in found]
        some = [_held(search, q, any) for asked, search in found for q in asked.questions]
        shares = [sum(row) / len(row) for row in every if row]
        share = sum(map(sum, every)) / total
        lines.append(f"| {name} | {share:.1%} | {sum(some) / total:.1%} | {min(shares):.1%} | {max(shares):.1%} |")
    return "\n".join(lines)


def _held(search: Search, question: Question, how: Callable[[Sequence[bool]], bool]) -> bool:
    first = set(search(question.text)[:FIRST])
    return how([index in first for index in question.evidence])
