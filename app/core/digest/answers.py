"""Users' messages with the question or option of the assistant that a short one answers."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from app.core.digest.files import command_of, files_of, named
from app.core.digest.rejections import is_rejected, words_of
from app.core.digest.sentences import is_loaded, own_words, sentences, shortened
from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType

ANSWER_WORDS_MAX: Final = 16
"""A longer message says by itself what it means."""
OPTIONS_MAX: Final = 3
OPTION_WORDS_MAX: Final = 30
"""A longer message that names a number or letter hardly means an option."""
QUESTION_CHARS_MAX: Final = 240
OPTION_CHARS_MAX: Final = 160
CALL_CHARS_MAX: Final = 120
CHARS_MIN: Final = 40
ASKED_WITHIN: Final = 800
"""Number of last characters of a text that are searched for its question."""
TELLING_WORDS: Final = 4
"""A question with fewer words that carry meaning (`What do you think?`) is told with the sentence before it."""

_MARKED: Final = re.compile(r"\[[^\]]{0,200}\]")
_NUMBER: Final = re.compile(
    r"\b(?:option|number|point|approach|plan|choice|nr\.?|#)? ?#?(\d{1,2}|[A-H])(?:\b|(?=[=).:]))"
)
_LETTER: Final = re.compile(r"\b(?:option|approach|plan|choice) ([a-h])\b", re.I)
_ENTRY: Final = re.compile(
    r"^[\s>#*_-]{0,12}(?:(?:option|approach|plan|choice|step) )?(\d{1,2}|[A-H])"
    r"(?:[.):\]]|\*\*|[ \t]?[—–-] )[\s*_:—-]{0,6}(.+)$",
    re.I | re.M,
)
_MARKUP: Final = re.compile(r"\*\*|__|^\s{0,8}#{1,6} |^\s{0,8}[-*_]{3,20}\s", re.M)
_MARKS: Final = "*_`~ \"'"
_ASKS: Final = re.compile(
    r"\b(?:let me know|would you like|do you want|want me to|shall i|should i|which (?:one|of)|prefer)\b", re.I
)


def user_lines(events: Sequence[Event], said: str = "") -> Iterator[tuple[int, str, str]]:
    """The seq of each user's message with words of their own, those words on one line, and the question it answers.

    The question is empty for a message that answers none. A call that the user did not allow counts as a message: what
    they said to it, and the call. `said` is the assistant's text before the events.
    """
    calls: dict[int, Event] = {}
    for event in events:
        if event.type is EventType.ASSISTANT_MESSAGE and event.text.strip():
            said = event.text
        elif event.type is EventType.TOOL_CALL:
            calls[event.seq] = event
        elif event.type is EventType.TOOL_RESULT and is_rejected(event):
            yield event.seq, _rejected(event, calls.get(event.call_seq or 0)), ""
            said = ""
        elif event.type is EventType.USER_MESSAGE and not is_loaded(event.text):
            words = " ".join(own_words(event.text).split())
            if words and not _MARKED.fullmatch(words):
                yield event.seq, words, asked(words, said)
                said = ""


def _rejected(result: Event, call: Event | None) -> str:
    """The call that a user did not allow, with what they said to it.

    Their words are taken from an error, and from what a tool that changes files returned, for which nobody but the
    agent's harness speaks. What a command or a page prints may merely look like a rejection.
    """
    tool, arguments = result.tool or "a tool", {} if call is None else call.arguments
    command = command_of(tool, arguments)
    told = " ".join((command or next(iter(named(arguments)), "")).split())
    tried = " ".join(filter(None, (tool, shortened(told, CALL_CHARS_MAX))))
    trusted = result.is_error or (command is None and files_of(tool, arguments).modified)
    words = words_of(result.text) if trusted else ""
    return f"{words} (rejected: {tried})" if words else f"Rejected: {tried}"


def asked(answer: str, text: str) -> str:
    """The option that an answer names and the question that it answers, in the text before it; empty without any."""
    count = len(answer.split())
    if not text or count > OPTION_WORDS_MAX or ("?" in answer and count > 3) or answer.startswith("/"):
        return ""
    option = _option(answer, text)
    if not option and count > ANSWER_WORDS_MAX:
        return ""
    question = _question(text, alone=bool(option))
    return " ".join(filter(None, (option, question)))


def answers(words: str, question: str) -> str:
    """A user's message on one line with the question that it answers."""
    return f'{words} (asked: "{question}")' if question else words


def _option(answer: str, text: str) -> str:
    found = {name.upper(): rest for name, rest in _ENTRY.findall(text)}
    chosen = [f"{name}: {_plain(found[name], OPTION_CHARS_MAX)}" for name in _named(answer) if name in found]
    return "; ".join(chosen[:OPTIONS_MAX]) + ("." if chosen else "")


def _named(answer: str) -> Collection[str]:
    """The numbers and letters of options in an answer, in order."""
    return dict.fromkeys(name.upper() for name in (*_NUMBER.findall(answer), *_LETTER.findall(answer)))


def _question(text: str, *, alone: bool) -> str:
    """The last question of a text; if it tells too little by itself, behind the one before it, or any sentence.

    An option that is told makes a question tell enough (`alone`), unless there is another one.
    """
    told = [one for one in sentences(own_words(text)[-ASKED_WITHIN:]) if any(map(str.isalpha, one))]
    at = next((n for n in range(len(told) - 1, -1, -1) if _is_question(told[n])), None)
    if at is None:
        return ""
    question = _plain(told[at], QUESTION_CHARS_MAX)
    if at and len(content_words(question)) < TELLING_WORDS:
        before = next((one for one in told[at - 1 :: -1] if _is_question(one)), "" if alone else told[at - 1])
        question = f"{_plain(before, QUESTION_CHARS_MAX - len(question))} {question}" if before else question
    return question


def _is_question(sentence: str) -> bool:
    return sentence.rstrip(_MARKS + ")").endswith("?") or _ASKS.search(sentence) is not None


def _plain(text: str, chars: int) -> str:
    """The text without Markdown's emphasis and heading marks, shortened."""
    plain = " ".join(_MARKUP.sub("", text).split()).strip("*_~ \"'")
    return shortened(plain, max(chars, CHARS_MIN))


def asking_part(answer: str, text: str) -> str:
    """The lines of a text with the options that an answer names, and its end with the question, verbatim.

    Empty if the text asks nothing that the answer answers.
    """
    if not asked(" ".join(own_words(answer).split()), text):
        return ""
    begin = max(0, len(text.rstrip()) - ASKED_WITHIN)
    begin = text.find("\n", begin) + 1 if begin and "\n" in text[begin:].strip() else begin
    named = _named(answer)
    options = [m[0].strip()[:OPTION_CHARS_MAX] for m in _ENTRY.finditer(text, 0, begin) if m[1].upper() in named]
    return "\n".join((*options[-OPTIONS_MAX:], text[begin:].strip()))
