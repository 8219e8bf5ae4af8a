"""The choice of the most central sentences of a text, by the words that they share with the others."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.digest.sentences import SENTENCE_CHARS_MAX, own_words, sentences, shorten
from app.core.lexicon.words import content_words

CANDIDATES_MAX: Final = 600
"""The number of newest sentences that are considered."""
PER_TEXT_MAX: Final = 40
ALIKE: Final = 0.7
"""The share of words in common with one better sentence from which a sentence counts as a repeat."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of the log, the seq of its event, and its content words."""

    text: str
    seq: int
    words: frozenset[str]


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
    shared: dict[str, int] = {}
    for candidate in candidates:
        for word in candidate.words:
            shared[word] = shared.get(word, 0) + 1
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
