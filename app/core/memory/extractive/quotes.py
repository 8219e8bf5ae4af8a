"""Quotations from the log: whole messages, notes, sentences, and texts shortened by whole sentences."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import DIALOGUE, EventType
from app.core.memory.digest.sentences import SENTENCE_CHARS_MAX, own_words, plain, sentences, shorten
from app.core.memory.extractive.sections import SHORTEST_CHARS, SectionLine
from app.core.memory.extractive.statements import HEADING, is_narration, points_back

CANDIDATES_MAX: Final = 600
"""The number of newest sentences that are considered."""
PER_TEXT_MAX: Final = 40
TELLING_WORDS: Final = 4
"""The number of content words below which a sentence says nothing alone."""
ALIKE: Final = 0.7
"""The least share of words in common with one better sentence with which a sentence counts as a repeat."""


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
        common = Counter(index for word in sentence.words for index in by_word.get(word, ()))
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


GAP_CHARS: Final = 3
"""Characters around a sentence for spaces and an ellipsis."""
_ROW: Final = re.compile(r"[ \t]{0,8}\|(.+?)\|?[ \t]*")
_RULE: Final = re.compile(r"[ \t]{0,8}\|[: \t|]{0,80}-[-:| \t]{0,400}")
"""The line below the head of a table."""
_MARK: Final = re.compile(r"^(\s{0,40})([-*•]|\d{1,3}[.)])\s{1,8}")
"""The beginning of an item of a list: its indentation and its mark."""
_UNSTOPPED: Final = re.compile(r"[\w)`]$")
"""The end of a sentence without punctuation."""
SECTIONS_MIN: Final = 3


def condense(text: str, chars: int, *, may_cut: bool = True) -> str:
    """Return the text on one line if it takes at most `chars` characters, else a selection of its sentences.

    Two of the first sentences are tried for each one of the last: a report begins with its main points, and ends with
    the next steps. A sentence that ends with a colon is joined to the next one, and to the first one shown of the list
    after it; one that points back, to the one before it. Sentences that only announce are left out, except the last. If
    few sentences fit, return the first words if `may_cut`, else an empty text. A text with SECTIONS_MIN headings or
    more is shortened to its outline.
    """
    listed = _tables_as_lists(text)
    line = plain(_with_stops(listed))
    if len(line) <= chars:
        return line
    units = _units(listed)
    if outline := _outline(units, chars):
        return outline
    kept: set[int] = set()
    room, at, end = chars, 0, len(units)
    while at < end:
        take_last = 2 * (len(units) - end) < at
        end, at = (end - 1, at) if take_last else (end, at + 1)
        number = end if take_last else at - 1
        added = {number - 1, number} if number and points_back(units[number].text) else {number}
        if len(units[number].text) + GAP_CHARS <= room:
            chosen = _join(units, kept | added)
            if len(chosen) <= chars:
                kept |= added
                room = chars - len(chosen)
    words = content_words(" ".join(units[number].text for number in kept))
    if chars - room < chars // 3 or len(words) < TELLING_WORDS:
        return shorten(line, chars) if may_cut and chars >= SHORTEST_CHARS else ""
    return _join(units, kept)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence with content, or an item of a list with its mark, and the lead-in or heading that it depends on.

    `block` numbers the paragraph or list that it belongs to, `heading` is the one above it.
    """

    lead: str
    text: str
    block: int
    heading: str


def _outline(units: Sequence[_Unit], chars: int) -> str:
    """Return the headings of a text with as many of the first sentences under them as fit; empty if they do not fit.

    Empty too if there are fewer than SECTIONS_MIN. Sentences before the first heading come first.
    """
    sections: dict[str, list[str]] = {}
    for one in units:
        sections.setdefault(one.heading, []).append(one.text)
    if len(sections.keys() - {""}) < SECTIONS_MIN:
        return ""
    shown = {heading: [] if heading else texts[:1] for heading, texts in sections.items()}
    if len(_written(shown, sections)) > chars:
        return ""
    for number in range(max(map(len, sections.values()))):
        for heading, texts in sections.items():
            if len(texts) > number and texts[number] not in shown[heading]:
                longer = {**shown, heading: [*shown[heading], texts[number]]}
                if len(shown[heading]) == number and len(_written(longer, sections)) <= chars:
                    shown = longer
    return _written(shown, sections)


def _written(shown: Mapping[str, Sequence[str]], sections: Mapping[str, Sequence[str]]) -> str:
    """Return sections on one line, with an ellipsis for the sentences left out at the end of each."""
    parts = [
        " ".join([f"{heading}:" if heading else "", *texts, *(["…"] if len(texts) < len(sections[heading]) else [])])
        for heading, texts in shown.items()
    ]
    return " ".join(parts).strip()


def first_statement(text: str, chars: int) -> str:
    """Return the first sentence with content on one line, with the next one if it says little; empty if too long."""
    units = _units(_tables_as_lists(text))
    says_little = bool(units) and len(content_words(units[0].text)) < TELLING_WORDS
    shown = units[: 2 if says_little else 1]
    line = _join(shown, range(len(shown)))
    return line if len(line) <= chars else ""


def _join(units: Sequence[_Unit], kept: Collection[int]) -> str:
    """Return the units in `kept` on one line, each lead once per block, with an ellipsis for those left out."""
    parts: list[str] = []
    before = -1
    for number in sorted(kept):
        one = units[number]
        if number - before > 1:
            parts.append("…")
        same_block = before >= 0 and units[before].block == one.block
        if before >= 0 and not same_block and _UNSTOPPED.search(parts[-1]):
            parts[-1] += "."
        is_led = same_block and units[before].lead == one.lead
        parts += [one.text] if is_led or not one.lead else [one.lead, one.text]
        before = number
    return " ".join(parts if before == len(units) - 1 else [*parts, "…"])


def _tables_as_lists(text: str) -> str:
    """Return a text with each table as its head and a list of its rows, whose empty cells stay visible."""
    kept: list[str] = []
    for line, following in pairwise([*text.split("\n"), ""]):
        row = _ROW.fullmatch(line)
        if row is None:
            kept.append(line)
        elif not _RULE.fullmatch(line):
            cells = " | ".join(cell.strip() or "(none)" for cell in row[1].split("|"))
            kept.append(f"{cells}:" if _RULE.fullmatch(following) else f"- {cells}")
    return "\n".join(kept)


def _with_stops(text: str) -> str:
    """Return a text with a colon after each heading, and a full stop after a paragraph or list that ends without."""
    kept: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        bare = line.rstrip("* ") if HEADING.match(line) else line.rstrip()
        ends = number + 1 < len(lines) and not lines[number + 1].strip()
        stop = ":" if HEADING.match(line) else "." if ends else ""
        kept.append(bare + stop if stop and _UNSTOPPED.search(bare) else line)
    return "\n".join(kept)


def _units(text: str) -> Sequence[_Unit]:
    """Return the sentences with content; the leads of lists go with each of their items."""
    found: list[_Unit] = []
    leads: list[tuple[int, str]] = []
    block, was_item, heading = 0, False, ""
    lines = [line for line in text.split("\n") if any(map(str.isalpha, line))]
    for number, line in enumerate(lines, start=1):
        item = _MARK.match(line)
        depth = len(item[1]) if item else -1
        if not item or not was_item:
            block += 1
        if item:
            leads = [lead for lead in leads if lead[0] < depth]
        elif was_item:
            leads = []
        was_item = item is not None
        parts = [one for one in sentences(line) if any(map(str.isalpha, one))]
        for place, one in enumerate(parts, start=1):
            if is_narration(one) and (number < len(lines) or place < len(parts)):
                continue
            sentence = plain(one)
            heading = sentence.rstrip(":") if HEADING.match(line) else heading
            if sentence.endswith(":") or HEADING.match(line):
                leads = [*(lead for lead in leads if lead[0] < depth), (depth, f"{sentence.rstrip(':')}:")]
            else:
                mark = f"{item[2]} " if item and place == 1 else ""
                found.append(_Unit(leads[-1][1] if leads else "", mark + sentence, block, heading))
                leads = leads if item else []
    return found
