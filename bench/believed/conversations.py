"""Conversations with questions, and whether a text holds the source messages of a question."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from app.core.lexicon.words import terms
from app.core.log.event import Event
from bench.cost.sessions import session
from bench.retention.points import message_of

_WORD: Final = re.compile(r"\w+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")


def flat(text: str) -> str:
    """Return a text's words in lower case, each between single spaces."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


@dataclass(frozen=True, slots=True)
class Source:
    """A source message as flat text, and of its sentences those that share the most words with the answer."""

    text: str
    sentences: tuple[str, ...]

    def has_all(self, shown: str) -> bool:
        """Return whether flat text holds the message word for word."""
        return self.text in shown

    def by_sentence(self, shown: str) -> bool:
        """Return whether flat text holds one of the sentences."""
        return any(sentence in shown for sentence in self.sentences)


@dataclass(frozen=True, slots=True)
class Question:
    """A question in its own words, its kind, and its source messages."""

    text: str
    kind: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Conversation:
    """A conversation's events and questions; `events[n]` is message n."""

    id: str
    events: tuple[Event, ...]
    questions: tuple[Question, ...]

    @cached_property
    def by_seq(self) -> Mapping[int, str]:
        """The text of each event."""
        return {event.seq: event.text for event in self.events}


def conversation(value: dict[str, Any], line: int) -> Conversation:
    """Return a neutral session with questions; those without source messages are left out."""
    events = tuple(event for event in session(value, line).events if message_of(event) >= 0)
    if [event.seq for event in events] != list(range(1, len(value["messages"]) + 1)):
        raise AssertionError("each message is one event, from the first on")
    asked = [
        Question(
            one["question"],
            one["category"],
            tuple(source(events[index].text, one["answer"]) for index in one["evidence_idx"]),
        )
        for one in value["meta"]["qa"]
        if one["evidence_idx"]
    ]
    return Conversation(value["id"], events, tuple(asked))


def source(text: str, answer: str) -> Source:
    """Return a source message of a question with this answer."""
    wanted = frozenset(terms(answer))
    scored = [(len(wanted & frozenset(terms(one))), one) for one in _SENTENCE_END.split(text) if one.strip()]
    best = max((score for score, _ in scored), default=0)
    sentences = [one for score, one in scored if score == best] if best else [text]
    return Source(flat(text), tuple(map(flat, sentences)))


def joined(texts: Iterable[str]) -> str:
    """Return several texts as flat text in which no run of words reaches from one into the next."""
    return "\n".join(map(flat, texts))


def texts_of(events: Sequence[Event]) -> list[str]:
    """Return the texts of events."""
    return [event.text for event in events]
