"""Statements kept by a summary: users' messages, answers with questions, the newest texts; and the summary's form."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.sentences import own_words, plain, sentences

NEWEST: Final = 3
SHORT_WORDS: Final = 8
QUESTION_CHARS: Final = 600
"""Characters from the end of a text in which its questions are searched."""
ORDER_CHARS: Final = 60
"""Beginning by which a message is found in the log."""
QUESTION_KEPT: Final = 0.6
"""Share of a question's or option's words that must be in the answer's line."""

_MADE: Final = re.compile(
    r"^\[[^\]]*\]$|^Base directory for this skill|^You are an expert|^Operation stopped by hook:"
    r"|^Invoke the \S+ skill and"
)
_ASKING: Final = re.compile(r"\?[*_)\"'`]*$")
_OPTION: Final = re.compile(r"^\W{0,6}(?:option |step )?([0-9]{1,2}|[A-H])[.):]", re.I)
_CHOICE: Final = re.compile(r"\b(?:option |number |#)?([0-9]{1,2}|[A-H])\b(?!\w)")
_ANSWERS: Final = re.compile(
    r"^\W{0,2}(?:yes|yeah|yep|no|nope|ok|okay|sure|please|both|all|none|let['’]?s|do|go|can leave|that|its|it['’]s|this"
    r"|perfect|good|great|fine|i (?:think|like|prefer)|option|continue|[A-H]\b|\d{1,2}\b)",
    re.I,
)
"""Openings of an answer; a short message with another opening may be a remark or an instruction."""
_NAMES: Final = re.compile(r"<identifiers>\n(.*?)\n</identifiers>", re.S)
_ASSIGNED: Final = re.compile(r"(?<=\S) ?[=:] (?=\S)")
_STANDARD: Final = re.compile(
    r"(?:fmt|os|io|strings|errors|context|time|filepath|bytes|strconv|sort|json|exec|http|log|path|sync|regexp|bufio|reflect"
    r"|atomic|t|b|console|Math|JSON|Object|Array|Promise|process|sys|re)\.[A-Za-z]\w*"
    r"|(?:encoding|path|os|log|net|crypto|io|text|go|math|sync|container|html|compress|unicode)/[a-z0-9]+"
)
_WORDS: Final = re.compile(r"[A-Za-z]{1,20}(?:/[A-Za-z]{1,20}){1,3}")
_ABBREVIATION: Final = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]?|\W+|vs\.?|etc\.?")
_LINE_NUMBER: Final = re.compile(r"\d{1,5}:?")
_USERS: Final = re.compile(r"^## (?:Goal|User Messages)\n((?:- .*\n?)+)", re.M)
_MARKS: Final = re.compile(r"^(?:First|Later) request: |(?:… ?.*)?(?: \((?:asked|about|answered|rejecting)\b.*)?$")


def users(events: Sequence[Event]) -> Iterator[tuple[int, str]]:
    """Yield the messages that a user wrote, each on one line, with their indexes."""
    for at, event in enumerate(events):
        if event.type is EventType.USER_MESSAGE:
            said = " ".join(own_words(event.text).split())
            if said and not _MADE.match(said):
                yield at, said


def questions(text: str) -> Sequence[str]:
    """Return the questions near the end of an assistant's text."""
    return [one for one in sentences(text[-QUESTION_CHARS:]) if _ASKING.search(one)]


@dataclass(slots=True)
class StatementCounts:
    """Results for one kind of summary over all points.

    A list has one value for each thing looked for, a number is a count.
    """

    messages: list[bool] = field(default_factory=list)
    newest: list[bool] = field(default_factory=list)
    words: list[float] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    junk: list[bool] = field(default_factory=list)
    repeated: int = 0
    cut: int = 0
    misplaced: int = 0

    def add(self, text: str, events: Sequence[Event]) -> None:
        """Count one summary."""
        flat, words = " ".join(text.split()), content_words(text)
        bare = plain(text)
        self.messages += [said in flat for _, said in users(events)]
        newest = [e.text for e in events if e.type is EventType.ASSISTANT_MESSAGE and e.text.strip()][-NEWEST:]
        for one in newest:
            self.newest += [plain(sentence) in bare for sentence in sentences(own_words(one))]
            meant = content_words(one)
            self.words.append(len(meant & words) / max(1, len(meant)))
        lines = [line.removeprefix("- ") for line in text.splitlines()]
        shown: dict[str, int] = {}
        for at, said in reversed(list(users(events))):
            shown[said] = shown.get(said, 0) + 1
            showing = [line for line in lines if line.startswith(said) and not line[len(said) :][:1].isalnum()]
            if shown[said] <= len(showing):  # among equal messages the newest are taken to be shown
                self._count_answer(said, _before(events, at), showing)
        names = [name for block in _NAMES.findall(text) for name in _ASSIGNED.sub("=", block).split()]
        self.junk += [is_junk(name, events) for name in names]
        self.repeated += _repeated(text)
        self.cut += _cut(flat, events)
        self.misplaced += _misplaced(text, events)

    def _count_answer(self, said: str, before: str, showing: Sequence[str]) -> None:
        """Count a short answer, shown in the lines `showing`, if the text before it asked a question."""
        asked = questions(before)
        if len(said.split()) > SHORT_WORDS or said.rstrip().endswith("?") or not (asked and _ANSWERS.match(said)):
            return
        choice = _CHOICE.search(said)
        options = [one for one in before.splitlines() if choice and (o := _OPTION.match(one)) and o[1] == choice[1]]
        held = content_words(" ".join(showing))
        self.answers.append(any(_kept(one, held) for one in (*options, *asked)))


def _kept(asked: str, held: frozenset[str]) -> bool:
    words = content_words(asked)
    return bool(words) and len(words & held) >= min(QUESTION_KEPT * len(words), 12)


def _before(events: Sequence[Event], at: int) -> str:
    return next((e.text for e in reversed(events[:at]) if e.type is EventType.ASSISTANT_MESSAGE and e.text.strip()), "")


def is_junk(name: str, events: Sequence[Event]) -> bool:
    """Return whether a name is of a useless kind: standard library, abbreviation, word/word, line number."""
    if _STANDARD.fullmatch(name) or _ABBREVIATION.fullmatch(name) or _LINE_NUMBER.fullmatch(name):
        return True
    if re.fullmatch(r"[0-9a-f]{7,12}|[0-9a-f]{4}(?:-[0-9a-f]{4,12})+", name):
        return any(re.search(rf"[0-9a-f]-{re.escape(name)}|{re.escape(name)}-[0-9a-f]{{4}}\b", e.text) for e in events)
    return bool(_WORDS.fullmatch(name)) and not any(
        re.search(rf"[\w.]/{re.escape(name)}\b|\b{re.escape(name)}(?:/\w|\.\w)|[\"'`]{re.escape(name)}[\"'`]", e.text)
        for e in events
        if e.type in (EventType.TOOL_RESULT, EventType.TOOL_CALL)
    )


def _repeated(text: str) -> int:
    """Count the sentences of five words or more that occur more than once."""
    found = [one for one in sentences(re.sub(r"<[a-z-]+>", "\n", text)) if len(one.split()) >= 5]
    flat = " ".join(text.split())
    return sum(flat.count(one) > 1 for one in dict.fromkeys(found))


def _misplaced(text: str, events: Sequence[Event]) -> int:
    """Count the lines on users' messages that stand right before one on an earlier message."""
    log = list(users(events))
    lines = (line.removeprefix("- ") for block in _USERS.findall(text) for line in block.splitlines())
    words = (_MARKS.sub("", line)[:ORDER_CHARS] for line in lines)
    places = [found for one in words if one and (found := [at for at, said in log if one in said])]
    return sum(one[0] > after[-1] for one, after in pairwise(places))


def _cut(flat: str, events: Sequence[Event]) -> int:
    """Count the texts shortened within a word: in the log a letter or digit follows the text before the ellipsis."""
    log = "\n".join(" ".join(e.text.split()) for e in events)
    ends = (flat[max(0, found.start() - 25) : found.start()] for found in re.finditer("…", flat))
    return sum(
        bool(re.search(re.escape(end) + r"[A-Za-z0-9_]", log)) and f"{end}…" not in log
        for end in ends
        if end[-1:].isalnum()
    )
