"""The messages of a conversation that are worth quoting, because their words suggest that they state a fact.

Measured on dialogues over months with questions about them: the answers are in statements about oneself, in the past
tense, with a time, a number or a name, and in words that are rare in the conversation; not in questions and courtesies.
Leaving out any one cue costs little; all of them together find twice as many answers as the newest messages hold.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.digest.sentences import own_words, sentences, shorten
from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import DIALOGUE, EventType

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


@dataclass(frozen=True, slots=True)
class Quote:
    """One message on one line with its speaker, and the seq of its event."""

    text: str
    seq: int


def quotes(events: Sequence[Event], earlier: Sequence[str] = ()) -> Sequence[Quote]:
    """Return the messages of users and assistants, shortened, the most telling for their length first.

    `earlier` are lines that an earlier summary quoted; they compete with the messages and have seq 0.
    """
    messages = [e for e in events if e.type in DIALOGUE and e.text.strip()]
    texts = [(text, Quote(text, 0)) for text in earlier]
    texts += [(text, Quote(_line(event, text), event.seq)) for event in messages if (text := own_words(event.text))]
    texts = texts[-MESSAGES_MAX:]
    holding: dict[str, int] = {}
    for text, _ in texts:
        for word in content_words(text):
            holding[word] = holding.get(word, 0) + 1
    rarity = {word: math.log(len(texts) / count) for word, count in holding.items()}
    ranked = [(_worth(text, rarity) / (len(text) + FRAME_CHARS) ** LENGTH_COUNTS, quote) for text, quote in texts]
    ranked.sort(key=lambda item: (-item[0], item[1].seq))
    return [quote for worth, quote in ranked if worth > 0]


def _line(event: Event, text: str) -> str:
    line = shorten(" ".join(text.split()), QUOTE_CHARS_MAX)
    if _SPEAKER.match(line):
        return line
    speaker = event.author or ("User" if event.type is EventType.USER_MESSAGE else "Assistant")
    return f"{speaker}: {line}"


def _worth(text: str, rarity: Mapping[str, float]) -> float:
    worths = [_sentence_worth(sentence, rarity) for sentence in sentences(text)]
    return max(worths, default=0.0) + SECOND_BEST * math.fsum(worths)


def _sentence_worth(sentence: str, rarity: Mapping[str, float]) -> float:
    words = content_words(sentence)
    worth = math.fsum(sorted(rarity.get(word, 0.0) for word in words)) / (6 + len(words))
    for cue, factor in _CUES:
        if cue.search(sentence):
            worth *= factor
    return worth * _QUESTION if sentence.endswith("?") else worth
