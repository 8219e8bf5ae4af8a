"""Quotations from the log: whole messages, notes, and sentences."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import DIALOGUE, EventType
from app.core.memory.digest.sentences import SENTENCE_CHARS_MAX, own_words, sentences, shorten
from app.core.memory.extractive.sections import SectionLine

CANDIDATES_MAX: Final = 600
"""The number of newest sentences that are considered."""
PER_TEXT_MAX: Final = 40
ALIKE: Final = 0.7
"""The share of words in common with one better sentence from which a sentence counts as a repeat."""


@dataclass(frozen=True, slots=True)
class Sentence(SectionLine):
    """A sentence as a line, with its content words."""

    words: frozenset[str] = field(compare=False)


def sentences_of(texts: Iterable[tuple[int, str]]) -> Sequence[Sentence]:
    """Return the newest CANDIDATES_MAX sentences, in order, of texts that are given with their seqs, oldest first."""
    found: list[Sentence] = []
    for seq, text in texts:
        for sentence in list(sentences(own_words(text)))[:PER_TEXT_MAX]:
            words = content_words(sentence)
            if len(words) > 2 and sentence[0] not in "|#{}<" and sentence[-1] != ":":
                found.append(Sentence(shorten(sentence, SENTENCE_CHARS_MAX), seq, words))
    return found[-CANDIDATES_MAX:]


def central(candidates: Sequence[Sentence], focus: frozenset[str] = frozenset()) -> Sequence[Sentence]:
    """Return the distinct candidates, the most central first; of equals the oldest first.

    A word weighs by the number of sentences that share it, a sentence by the mean of its words, and newer sentences
    weigh more. Words of `focus` count five times.
    """
    shared = Counter(word for candidate in candidates for word in candidate.words)
    many = max(1, len(candidates))
    worth = {
        word: math.log1p(count) * math.log1p(many / count) * (5 if word in focus else 1)
        for word, count in shared.items()
        if count > 1 or word in focus
    }
    ranked = sorted(
        enumerate(candidates), key=lambda item: (-_worth(item[1], worth) * (1 + item[0] / (2 * many)), item[0])
    )
    return distinct(sentence for _, sentence in ranked)


def _worth(sentence: Sentence, worth: Mapping[str, float]) -> float:
    return math.fsum(sorted(worth.get(word, 0.0) for word in sentence.words)) / (4 + len(sentence.words))


def distinct(ranked: Iterable[Sentence]) -> Sequence[Sentence]:
    """Return the sentences in order, without those that share ALIKE of their words with an earlier one."""
    chosen: list[Sentence] = []
    by_word: dict[str, list[int]] = {}
    for sentence in ranked:
        common: dict[int, int] = {}
        for word in sentence.words:
            for index in by_word.get(word, ()):
                common[index] = common.get(index, 0) + 1
        if max(common.values(), default=0) >= ALIKE * len(sentence.words):
            continue
        for word in sentence.words:
            by_word.setdefault(word, []).append(len(chosen))
        chosen.append(sentence)
    return chosen


NOTE_CHARS_MAX: Final = 300

_TAG: Final = re.compile(r"^[ \t]{0,8}\[([PDS])\][ \t]{0,8}", re.M)


@dataclass(slots=True)
class Notes:
    """Notes, the newest first: preferences ([P]), decisions ([D]), structure of the work ([S]), and others."""

    preferences: list[SectionLine] = field(default_factory=list)
    decisions: list[SectionLine] = field(default_factory=list)
    structure: list[SectionLine] = field(default_factory=list)
    others: list[SectionLine] = field(default_factory=list)


def notes_of(events: Iterable[Event]) -> Notes:
    """Return the notes among the events. A tag begins a line and holds for the text up to the next tag."""
    found = Notes()
    tagged = {"P": found.preferences, "D": found.decisions, "S": found.structure}
    for event in events:
        if event.type is EventType.AGENT_NOTE:
            before, *rest = _TAG.split(event.text)
            _add(found.others, before, event.seq)
            for tag, text in zip(rest[::2], rest[1::2], strict=True):
                _add(tagged[tag], text, event.seq)
    for lines in (*tagged.values(), found.others):
        lines.reverse()
    return found


def _add(lines: list[SectionLine], text: str, seq: int) -> None:
    if words := " ".join(text.split()):
        lines.append(SectionLine(shorten(words, NOTE_CHARS_MAX), seq))


QUOTE_CHARS_MAX: Final = 600
MESSAGES_MAX: Final = 4000
"""The number of newest messages that are considered."""
FRAME_CHARS: Final = 30
"""The approximate characters that a quoted line takes in addition to its text."""
LENGTH_COUNTS: Final = 0.75
"""The power of the length by which worth is divided."""
SECOND_BEST: Final = 0.3
"""The weight of all sentences of a message relative to its best one."""

_TIME: Final = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last|ago|next|weeks?|weekends?|months?|years?|recently|since"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|january|february|march|april|june|july|august|september|october"
    r"|november|december)\b",
    re.I,
)
_NUMBER: Final = re.compile(r"\d")
_FIRST_PERSON: Final = re.compile(r"\b(?:I|I'[a-z]{1,2}|my|we|our|we'[a-z]{1,2})\b")
_PAST: Final = re.compile(
    r"\b(?:went|got|did|was|were|had|made|took|started|bought|saw|won|found|gave|met|\w{2,20}ed)\b"
)
_NAMED: Final = re.compile(r"(?<=[a-z,'] )[A-Z][a-z]")
_CUES: Final = ((_TIME, 1.6), (_NUMBER, 1.4), (_FIRST_PERSON, 1.3), (_PAST, 1.3), (_NAMED, 1.2))
_QUESTION: Final = 0.3
_SPEAKER: Final = re.compile(r"(?:\[[^\]\n]{1,80}\] ?)?[A-Z][\w .'-]{0,40}: ")


def quotes(events: Sequence[Event], earlier: Sequence[str] = ()) -> Sequence[SectionLine]:
    """Return the messages of users and assistants, shortened and with their speakers, the most telling first.

    A message is the more telling the shorter it is. `earlier` are lines that an earlier summary quoted; they compete
    with the messages and have seq 0.
    """
    messages = [e for e in events if e.type in DIALOGUE and e.text.strip()]
    texts = [(text, SectionLine(text, 0)) for text in earlier]
    texts += [(text, SectionLine(_line(e, text), e.seq)) for e in messages if (text := own_words(e.text))]
    texts = texts[-MESSAGES_MAX:]
    holding = Counter(word for text, _ in texts for word in content_words(text))
    rarity = {word: math.log(len(texts) / count) for word, count in holding.items()}
    ranked = [(_text_worth(text, rarity) / (len(text) + FRAME_CHARS) ** LENGTH_COUNTS, quote) for text, quote in texts]
    ranked.sort(key=lambda item: (-item[0], item[1].seq))
    return [quote for worth, quote in ranked if worth > 0]


def _line(event: Event, text: str) -> str:
    line = shorten(" ".join(text.split()), QUOTE_CHARS_MAX)
    if _SPEAKER.match(line):
        return line
    speaker = event.author or ("User" if event.type is EventType.USER_MESSAGE else "Assistant")
    return f"{speaker}: {line}"


def _text_worth(text: str, rarity: Mapping[str, float]) -> float:
    worths = [_sentence_worth(sentence, rarity) for sentence in sentences(text)]
    return max(worths, default=0.0) + SECOND_BEST * math.fsum(worths)


def _sentence_worth(sentence: str, rarity: Mapping[str, float]) -> float:
    words = content_words(sentence)
    worth = math.fsum(sorted(rarity.get(word, 0.0) for word in words)) / (6 + len(words))
    for cue, factor in _CUES:
        if cue.search(sentence):
            worth *= factor
    return worth * _QUESTION if sentence.endswith("?") else worth
