"""The requests that define a span's goal: the first one, and the newest."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from app.core.compaction.extractive.sections import LATEST_REQUEST, SectionLine
from app.core.digest.sentences import shorten
from app.core.lexicon.words import content_words

LATEST_CHARS_MAX: Final = 240
REQUEST_WORDS: Final = 3
"""The number of content words below which a message (`commit this`) says little about the work."""
CORRECTED: Final = 0.6
"""The share of common words from which the next message, if it begins alike, corrects a first one."""

_ASIDE: Final = re.compile(r" \((?:asked|about): \"|\(rejected: |^Rejected: |^/|^(?:[A-H]|\d{1,2})[.)]")
"""Marks of a reply, of a rejected call, of a command, and of one entry of a list."""
_REJECTED: Final = re.compile(r"\(rejected: |^Rejected: ")
_WONDERS: Final = re.compile(
    r"[-=+>~|<{[]|(?:(?:and|but|also|so|ok|okay|hmm+|q:?|question:?|wondering:?)\b[ ,:]{0,3})*"
    r"(?:why|what|how|where|when|who|which|is|are|does|do|did|has|have|was|were|wondering)\b",
    re.I,
)
"""The beginning of a question that requests no work, or of a text that the user copied."""


def bare_goals(lines: Iterable[SectionLine]) -> list[SectionLine]:
    """Return the lines of an earlier summary's goal without their marks."""
    return [SectionLine(line.text.removeprefix(LATEST_REQUEST), line.seq) for line in lines]


def goals(earlier: Sequence[SectionLine], said: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Return the first request and, if it differs, the newest; without a request, the first message.

    `earlier` are the goals of earlier summaries, `said` the users' messages since, with the questions that they answer.
    """
    requests = [line for line in (*earlier, *said) if _is_request(line.text)]
    if not requests:
        return [line for line in (*earlier[:1], *said) if not _REJECTED.search(line.text)][:1]
    first = requests[0]
    if len(requests) > 1 and _corrects(requests[1].text, first.text):
        first = requests[1]
    latest = next((line for line in reversed(requests) if not _WONDERS.match(line.text)), first)
    if latest.text == first.text or latest.seq < first.seq:
        return [first]
    return [first, SectionLine(LATEST_REQUEST + shorten(latest.text, LATEST_CHARS_MAX), latest.seq)]


def _is_request(text: str) -> bool:
    return not _ASIDE.search(text) and len(content_words(text)) >= REQUEST_WORDS


def _corrects(later: str, text: str) -> bool:
    ours, theirs = content_words(later), content_words(text)
    begins = later.split(" ", 1)[0] == text.split(" ", 1)[0]
    return begins and len(ours & theirs) >= CORRECTED * max(len(ours), len(theirs))
