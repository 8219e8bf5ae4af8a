"""The rules that a user's messages state, with the words by which a later message takes one back."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from app.core.digest.sentences import constraints_of, own_words, sentences, shorten

MESSAGES_BACK: Final = 3
"""The number of preceding messages that a reversal may refer to."""
POINTING_WORDS: Final = 8
"""The number of words below which a reversal refers to the preceding message, without naming its subject."""
SHARED_WORDS: Final = 2
REVERSAL_CHARS_MAX: Final = 120

_POINTS: Final = re.compile(
    r"\bnever ?mind\b|\bnvm\b|\bw?[oh]{1,2}ps\b|\bput (?:it|that|this|them) back\b"
    r"|\bchanged my mind\b|\bon second thought\b"
    r"|\b(?:undo|revert|scratch|forget|ignore) (?:that|it|this|those|them|my|the last)\b|\bactually,? no\b",
    re.I,
)
"""Words that may take back the preceding message without naming its subject."""
_BACK: Final = re.compile(
    rf"{_POINTS.pattern}|\bactually,? (?:let'?s|do\b|don'?t|keep|use|leave|we (?:do|don'?t|can|should))"
    r"|\b(?:no longer|not|n'?t) (?:necessary|needed|required|relevant) (?:any ?more|after all)\b",
    re.I,
)
_OVER: Final = re.compile(r"\bno longer (?:necessary|needed|required|relevant|applies|used)\b", re.I)
"""Words of a sentence about a rule's end, which is not a rule."""
_WORD: Final = re.compile(r"[^\W\d_]{4,}")


def rules_with_reversals(messages: Sequence[str]) -> Iterator[str]:
    """Yield the rules in a user's messages, oldest first; one that was taken back quotes the words that did so."""
    found: list[tuple[int, str]] = []
    reversals: dict[int, str] = {}
    for number, text in enumerate(messages):
        for sentence in sentences(own_words(text)):
            if _BACK.search(sentence) or _OVER.search(sentence):
                for at in _matching_rules(sentence, number, found):
                    reversals.setdefault(at, shorten(sentence, REVERSAL_CHARS_MAX))
        found += [(number, rule) for rule in constraints_of(text) if not _OVER.search(rule)]
    for at, (_, rule) in enumerate(found):
        yield f'{rule} (taken back later: "{reversals[at]}")' if at in reversals else rule


def _matching_rules(sentence: str, number: int, found: Sequence[tuple[int, str]]) -> Iterator[int]:
    """Yield the places of the rules that a reversal in message `number` refers to."""
    near = [at for at, (said, _) in enumerate(found) if number - MESSAGES_BACK <= said]
    if len(sentence.split()) < POINTING_WORDS and _POINTS.search(sentence):
        last = max((found[at][0] for at in near), default=-1)
        yield from (at for at in near if found[at][0] == last == number - 1)
        return
    words = _words(sentence)
    yield from (at for at in near if len(words & _words(found[at][1])) >= SHARED_WORDS)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
