"""Short answers of users in a context, and whether the questions that they answer are shown with them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.core.log.event import Event
from app.core.memory.digest.answers import user_lines
from app.core.memory.digest.sentences import own_words

PART_CHARS: Final = 60
"""Letters and digits that identify a part of a question, which may be shown shortened."""
_PARTS: Final = re.compile(r"(?<=[.?!…:]) |; ")
_WITH_QUESTION: Final = re.compile(r' \(asked: ".*$')
_NOT_READ: Final = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class ShortAnswer:
    """A user's message on one line, and the sentences and options that it answers."""

    words: str
    question: tuple[str, ...]


def short_answers(events: Sequence[Event]) -> tuple[ShortAnswer, ...]:
    """Return all short answers, oldest first."""
    return tuple(ShortAnswer(words, tuple(_parts(question))) for _, words, question in user_lines(events) if question)


def with_questions(answers: Sequence[ShortAnswer], request: Any, text: str) -> tuple[int, int]:
    """Return how many answers are shown in a request together with their question, and how many are shown.

    `text` is all text of the request. Of equal answers the newest are taken to be shown.
    """
    lines = Counter(line for own_text in _user_texts(request) for line in _lines(own_text))
    letters = _letters(text)
    shown = found = 0
    for answer in reversed(answers):
        if lines[answer.words]:
            lines[answer.words] -= 1
            shown += 1
            found += all(part in letters for part in answer.question)
    return found, shown


def _parts(question: str) -> Iterator[str]:
    for part in _PARTS.split(question):
        letters = _letters(part)[:PART_CHARS]
        if letters:
            yield letters


def _letters(text: str) -> str:
    return _NOT_READ.sub("", text).lower()


def _user_texts(request: Any) -> Iterator[str]:
    """Yield the texts of a request in the user's role, summaries included."""
    messages = request["messages"] if isinstance(request, Mapping) else request
    for message in messages:
        if isinstance(message, str):
            yield message
        elif message["role"] == "user":
            content = message["content"]
            yield from [content] if isinstance(content, str) else (part.get("text", "") for part in content)


def _lines(text: str) -> Sequence[str]:
    """Return the lines of a text without list marks and questions, and the user's own words as one line."""
    lines = [_WITH_QUESTION.sub("", " ".join(line.split()).removeprefix("- ")) for line in text.split("\n")]
    whole = " ".join(own_words(text).split())
    return lines if whole in lines else [*lines, whole]
