"""Users' messages, and the assistant's question, option or proposal that a short one answers."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import takewhile
from typing import Final

from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.calls import done_later, is_bare_rejection, rejection
from app.core.memory.digest.sentences import (
    is_rejected,
    own_messages,
    own_words,
    plain,
    prompt_command,
    sentences,
    shorten,
)

ANSWER_WORDS_MAX: Final = 16
"""The maximum number of words of a message that needs its question to be understood."""
OPTIONS_MAX: Final = 4
OPTION_WORDS_MAX: Final = 30
"""The maximum number of words of a message whose bare numbers and letters may name options."""
REPLY_WORDS_MAX: Final = 80
"""The maximum number of words of a reply: a message that begins with a yes, a no or an option."""
HEAD_WORDS: Final = 6
QUESTION_CHARS_MAX: Final = 240
OPTION_CHARS_MAX: Final = 160
ITEM_CHARS_MAX: Final = 60
ASKED_CHARS_MAX: Final = 300
"""The maximum length of a quoted question with its options."""
CHARS_MIN: Final = 40
QUESTION_TAIL_CHARS: Final = 800
"""Number of last characters of a text that are searched for its question."""
TELLING_WORDS: Final = 4
"""The number of content words below which a question (`What do you think?`) is quoted with its context."""
SHARED_WORDS: Final = 2

_MARKED: Final = re.compile(r"\[[^\]]{0,200}\]")
_INTERRUPT: Final = re.compile(r"\[Request interrupted by user[^\]]{0,40}\]")
"""Claude Code's record of an interruption."""
INTERRUPTED: Final = " (the user then interrupted the agent)"
_NUMBER: Final = re.compile(
    r"(?<!\ball)(?<!\ball )\b(?P<kind>option|number|point|approach|plan|choice|nr\.?|#)? ?#?(?P<name>\d{1,2}|[A-H])"
    r"(?:\b|(?=[=).:]))"
)
"""A number or letter that may name an option. `all 3` counts them."""
_LETTER: Final = re.compile(r"\b(?:option|approach|plan|choice) ([a-h])\b", re.I)
_LABEL: Final = re.compile(r"\b(?:option|approach) #?(\d{1,2}|[a-h])\b", re.I)
"""An option with its label, which may occur in a question or an instruction of the user's own too."""
_PLACE: Final = re.compile(
    r"\bthe (first|former|second|third|fourth|last|latter)(?: (?:one|option|approach|way|choice|idea|solution))?"
    r"(?=\s?(?:[,.;:!(–—-]|please\b|$))",
    re.I,
)
"""An option by its place in a list."""
_PLACES: Final = {"first": 0, "former": 0, "second": 1, "third": 2, "fourth": 3, "last": -1, "latter": -1}
_EXPLICIT: Final = re.compile(
    r"\b(?:options?|number|approach|choice) #?(?:\d{1,2}|[a-h])\b|(?<!\w)#\d|(?<!\w)[A-H]\)|^\d{1,2}\b", re.I
)
"""An option that is named explicitly."""
_ENUMERATED: Final = re.compile(r"(?:^|(?<=[\s,;]))(?<!option )(\d{1,2}|[A-H])[.)] \S")
"""An entry of the user's own list."""
_ENTRY: Final = re.compile(
    r"^[\s>#*_|-]{0,12}(?:(?:option|approach|plan|choice|step) )?(\d{1,2}|[A-H])"
    r"(?:[.):\]]|\*\*|[ \t]?[—–-] )[\s*_:—-]{0,6}(.+)$",
    re.I | re.M,
)
"""A numbered or lettered entry of the assistant's list."""
_ROW: Final = re.compile(r"^\s{0,4}\|[ *]{0,6}(\d{1,2})[ *]{0,6}\|([^\n]{1,400}?)\|?[ \t]{0,8}$", re.M)
"""A row of the assistant's table that begins with a number."""
_TOGETHER: Final = re.compile(r"(?<![\w.])\d{1,2}(?:(?:, ?and |, ?| ?(?:and|&|\+) ?)\d{1,2}){1,8}(?![\w.])")
"""Numbers that the user names together, which are all of one list."""
_LABELLED: Final = re.compile(
    r"^[\s>#*_|-]{0,12}(?:option|approach) (\d{1,2}|[A-H])(?:[.):\]]|\*\*|[ \t]?[—–-] )[\s*_:—-]{0,6}(.+)$", re.I | re.M
)
_TICKET: Final = re.compile(r"#(\d{1,3})\b[ :.)(*]{1,4}([^|\n()]{3,80})")
_OPTION: Final = re.compile(r"(?:^|[.;:)?] )#?(?:\d{1,3}|[A-H]): ")
"""An option in a quoted question."""
_LISTED: Final = re.compile(r"\W{0,4}(?:\d{1,2}|[A-H])[.)]")
_MARKS: Final = "*_`~ \"'"
_ASKS: Final = re.compile(
    r"\b(?:let me know|would you like|do you want|want me to|shall i|should i|which (?:one|of)|prefer)\b", re.I
)
_YES_NO: Final = re.compile(
    r"(?:(?:yes|yeah|yep|yup|ya|no|nope|nah|correct|exactly|agreed|neither|both|none)\b"
    r"|(?:sure|ok|okay|alright|right)\b(?!.{0,200}\?))",
    re.I | re.S,
)
"""Words that mean nothing without the preceding message. An `ok` may also begin a question of the user's own."""
_REPLY: Final = re.compile(
    r"(?:(?:that|it|this)(?:['’]?s| is| was| sounds| looks| works)(?! (?:still|not|wrong))"
    r"|sounds|looks|perfect|great|good|nice|fine|cool"
    r"|please|go|do (?:it|that|this|so|all|both|\d)|all|not|only|just|either|continue|proceed|start|leave|can leave"
    r"|keep|skip|let['’]?s|i(?:['’]d| would)? (?:think|like|prefer|want|agree|guess)|maybe|done|up to you|whatever"
    r"|(?:the )?(?:first|second|third|last|latter|former))\b",
    re.I,
)
"""Words with which a reply begins."""
_AFTERTHOUGHT: Final = re.compile(
    r"[.!;,]\s{1,4}(?:continue|proceed|go (?:on|ahead|for it)|do it|(?:yes )?please)\W{0,4}$", re.I
)
"""An agreement at the end of a message about something else."""
_NEW: Final = re.compile(
    r"(?:(?:and|but|also|so|hmm+|um+|oh|wait|well)\b[ ,.]{0,3})*"
    r"(?:q:|question\b|(?:can|could|would|will|should) (?:you|we|i|it|this|that|the|there)|how|why|what|where|when|who"
    r"|which|is|are|am|does|do (?:we|you|i|they)|did|has|have|was|were|i['’]d like (?:to|you)|i want (?:to|you)|we also"
    r"|one more)\b",
    re.I,
)
"""Words with which a question or an instruction of the user's own begins."""
_PROPOSES: Final = re.compile(
    r"\b(?:i['’]d|i would|i (?:suggest|recommend|propose)|i['’]m leaning|we (?:can|could|should)|could (?:be|just)"
    r"|recommend(?:ation|ed)?|suggest(?:ion|ed)?|propos(?:e|ed|al)|(?:best|simplest|cleanest) (?:option|approach|fix)"
    r"|ready to|the (?:fix|plan|approach) (?:is|would))\b",
    re.I,
)
_CHOOSES: Final = re.compile(
    r"\b(?:which|prefer|options?|thoughts|choose|pick|(?:what|how) (?:do|would) you|do you want)\b", re.I
)
"""Words of a question between options."""
_PLANNED: Final = re.compile(
    r"^\W{0,8}.{0,40}\b(?:propos\w+|recommend\w+|plan|approach|the fix)\b.{0,40}$", re.I | re.M
)
"""A heading over an agent's proposal."""
_ITEM: Final = re.compile(r"^\s{0,4}(?:[-*•]|\d{1,2}[.)]|\*\*\d{1,2}[.)])\s{0,4}(.+)$", re.M)


def user_lines(events: Sequence[Event], text_before: str = "") -> Iterator[tuple[int, str, str]]:
    """Yield each user message with words of its own: its seq, those words on one line, and the question it answers.

    The question is empty for a message that answers none. A message after which the user interrupted the agent says so.
    A call that the user did not allow counts as a message: the user's words about it, and the call; without words only
    if no later call did the same. `text_before` is the assistant's last text before the events.
    """
    last: tuple[int, str, str] | None = None
    done = done_later(events)
    for seq, words, asked in _user_lines(events, text_before):
        if last is not None:
            yield (last[0], last[1] + INTERRUPTED, last[2]) if _INTERRUPT.fullmatch(words) else last
        is_done = is_bare_rejection(words) and seq in done
        last = None if is_done or _INTERRUPT.fullmatch(words) else (seq, words, asked)
    if last is not None:
        yield last


def _user_lines(events: Sequence[Event], text_before: str) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of `user_lines`, and the marks of Claude Code where the user interrupted the agent."""
    calls: dict[int, Event] = {}
    own = {event.seq for event in own_messages(events)}
    for event in events:
        if event.type is EventType.ASSISTANT_MESSAGE and event.text.strip():
            text_before = event.text
        elif event.type is EventType.TOOL_CALL:
            calls[event.seq] = event
        elif event.type is EventType.TOOL_RESULT and is_rejected(event):
            yield event.seq, rejection(event, calls.get(event.call_seq or 0)), ""
            text_before = ""
        elif event.seq in own:
            words = prompt_command(event.text) or " ".join(own_words(event.text).split())
            if _INTERRUPT.fullmatch(words):
                yield event.seq, words, ""
            elif words and not _MARKED.fullmatch(words):
                question = answered_question(words, text_before) or "; ".join(_labelled_options(words, text_before))
                yield event.seq, words, question
                text_before = ""


def answered_question(answer: str, text: str) -> str:
    """Return the option that an answer names and the question that it answers, in the text before it; empty if none.

    A message that agrees to a text without a question answers the text's proposal.
    """
    words = answer.split()
    if not text or answer.startswith("/") or len(words) > REPLY_WORDS_MAX:
        return ""
    replies = bool(_YES_NO.match(answer) or _EXPLICIT.search(" ".join(words[:HEAD_WORDS])))
    if not replies and (_NEW.match(answer) or ("?" in answer and len(words) > 3)):
        return ""
    options = _options(answer, text) if replies or len(words) <= OPTION_WORDS_MAX else []
    if not (replies or options) and len(words) > ANSWER_WORDS_MAX:
        return ""
    question = _question(text, options, frozenset() if options else content_words(answer))
    agrees = bool(_YES_NO.match(answer) or _REPLY.match(answer) or _AFTERTHOUGHT.search(answer))
    if not (agrees or options or _shares_words(answer, question)):
        return ""
    if not options and not question:
        return _proposal(text) if agrees and len(words) <= ANSWER_WORDS_MAX else ""
    chosen = "; ".join(options) + ("." if options else "")
    if options and question:
        question = shorten(question, max(CHARS_MIN, ASKED_CHARS_MAX - len(chosen) - 1))
    parts = (chosen, question) if all("?" in option for option in options) else (question, chosen)
    return shorten(" ".join(filter(None, parts)), ASKED_CHARS_MAX)


def _shares_words(answer: str, question: str) -> bool:
    """Return whether an answer repeats words of the question."""
    given = content_words(answer)
    return bool(given) and len(given & content_words(question)) >= min(SHARED_WORDS, len(given))


def with_question(words: str, question: str) -> str:
    """Return a user's message on one line with the question that it answers, or the proposal that it agrees to."""
    label = "asked" if "?" in question or _OPTION.search(question) else "about"
    return f'{words} ({label}: "{question}")' if question else words


def _options(answer: str, text: str) -> list[str]:
    """Return the options of a text that an answer names, in the text's order."""
    found = sorted((*_ENTRY.finditer(text), *_ROW.finditer(text)), key=lambda entry: entry.start())
    entries = {entry[1].upper(): entry[2] for entry in found}
    own = {name.upper() for name in _ENUMERATED.findall(answer)}
    asking = {name for name in own if "?" in entries.get(name, "")}
    given = content_words(answer)
    together = {number for numbers in _TOGETHER.findall(answer) for number in re.findall(r"\d+", numbers)}
    known = together <= entries.keys()
    named: Collection[str] = [name for name in _option_names(answer) if known or name not in together]
    if asking:
        # The user's numbers refer to the agent's numbered questions; other numbers mean something else.
        named = asking
    elif len(given) > SHARED_WORDS:
        # The numbers of the user's own list are options only if the text asks, and they share a word with an option.
        asks = _question(text, ()) != ""
        named = [name for name in named if name not in own or (asks and given & content_words(entries.get(name, "")))]
    chosen = _labelled_options(answer, text) or _named_entries(named, entries) or _option_by_place(answer, text)
    tickets = dict(_TICKET.findall(text))
    chosen += [
        f"#{number}: {_plain(tickets[number], ITEM_CHARS_MAX)}"
        for number in dict.fromkeys(re.findall(r"#(\d{1,3})\b", answer))
        if len(content_words(tickets.get(number, ""))) >= SHARED_WORDS and number not in entries
    ]
    return chosen[:OPTIONS_MAX]


def _named_entries(names: Collection[str], entries: Mapping[str, str]) -> list[str]:
    return [f"{name}: {_plain(rest, OPTION_CHARS_MAX)}" for name, rest in entries.items() if name in names]


def _labelled_options(answer: str, text: str) -> list[str]:
    """Return the options of an answer that answer and text both call an option, if all of them are in the text."""
    names = {name.upper() for name in _LABEL.findall(answer)}
    entries = {name.upper(): rest for name, rest in _LABELLED.findall(text)} if names else {}
    return _named_entries(names, entries) if names <= entries.keys() else []


def _option_by_place(answer: str, text: str) -> list[str]:
    """Return the option that the beginning of an answer names by its place (`yes, the second`)."""
    place = _PLACE.search(" ".join(answer.split()[:HEAD_WORDS]))
    if place is None or not _CHOOSES.search(text[-QUESTION_TAIL_CHARS:]):
        return []
    entries, at = _last_list(text), _PLACES[place[1].lower()]
    chosen = entries[at : at + 1 or None]
    return _named_entries([one[1] for one in chosen], {one[1]: one[2] for one in chosen})


def _last_list(text: str) -> Sequence[re.Match[str]]:
    """Return the entries of the last list near the end of a text; none if it has only one."""
    entries = list(_ENTRY.finditer(text, max(0, len(text) - 2 * QUESTION_TAIL_CHARS)))
    first = next((n for n in range(len(entries) - 1, -1, -1) if entries[n][1].upper() in ("1", "A")), len(entries))
    return entries[first:] if len(entries) - first > 1 else []


def _option_names(answer: str) -> Collection[str]:
    """Return the numbers and letters of options in an answer, in order.

    After the first words of a longer message, a bare number counts something else (`found 1 point`).
    """
    words = answer.split()
    head = len(answer) if len(words) <= ANSWER_WORDS_MAX else len(" ".join(words[:HEAD_WORDS]))
    numbers = (found["name"] for found in _NUMBER.finditer(answer) if found["kind"] or found.start() <= head)
    return dict.fromkeys(name.upper() for name in (*numbers, *_LETTER.findall(answer)))


def _question(text: str, options: Sequence[str], given: Set[str] = frozenset()) -> str:
    """Return the last question of a text, with its list if it ends with one.

    If several questions end it, the one with the most of the words `given` in the answer is chosen.
    A question that says too little alone is preceded by the options and their subject, or by an earlier question or
    sentence. A question that is one of the named options is not repeated.
    """
    words = own_words(text)[-QUESTION_TAIL_CHARS:]
    parts = [one for one in sentences(words) if any(map(str.isalpha, one))]
    asking = [n for n, one in enumerate(parts) if _is_question(one)]
    at = next((n for n in reversed(asking) if not _LISTED.match(parts[n])), asking[-1] if asking else None)
    if at is None:
        return ""
    last = takewhile(lambda n: n == at or n + 1 in asking, reversed([n for n in asking if n <= at]))
    at = max(last, key=lambda n: len(given & content_words(parts[n])))
    question = _plain(parts[at], QUESTION_CHARS_MAX)
    if any(question[:CHARS_MIN] in option for option in options):
        return ""
    if question.endswith(":"):
        items = _ITEM.findall(words, words.rfind(parts[at][-CHARS_MIN:]))[:OPTIONS_MAX]
        return f"{question} {_join_items(items or parts[at + 1 :][:OPTIONS_MAX])}"
    if len(content_words(question)) >= TELLING_WORDS and not question.startswith("Or "):
        return question
    before = _choice(text, bool(options)) if _CHOOSES.search(question) else ""
    if not before:
        found = [parts[n] for n in asking if n < at][-1:] or (
            [] if options else _lead(text, parts[max(0, at - 1) : at])
        )
        before = _plain(found[0], QUESTION_CHARS_MAX - len(question)) if found else ""
    return f"{before} {question}" if before and question not in before else before or question


def _lead(text: str, before: Sequence[str]) -> Sequence[str]:
    """Return the sentence before a question, or the text's first sentence if the one before is an item of a list."""
    items = [" ".join(one.split()) for one in _ITEM.findall(text)]
    if not before or not any(before[0] in item for item in items):
        return before
    return [one for one in sentences(own_words(text)) if len(content_words(one)) >= TELLING_WORDS][:1]


def _join_items(items: Sequence[str]) -> str:
    return "; ".join(_plain(one, ITEM_CHARS_MAX).rstrip(":") for one in items)


def _choice(text: str, is_named: bool) -> str:
    """Return the subject of the last options of a text, followed by the options unless the answer names them."""
    entries = _last_list(text)
    if not entries:
        return ""
    line = next((one for one in reversed(text[: entries[0].start()].split("\n")) if one.strip()), "")
    lead = _plain(line, QUESTION_CHARS_MAX)
    lead = lead if lead.endswith((":", "?")) else ""
    items = "; ".join(f"{one[1]}: {_plain(one[2], ITEM_CHARS_MAX)}" for one in entries[:OPTIONS_MAX])
    return lead if is_named else f"{lead} {items}.".lstrip()


def _is_question(sentence: str) -> bool:
    return sentence.rstrip(_MARKS + ")").endswith("?") or _ASKS.search(sentence) is not None


def _proposal(text: str) -> str:
    """Return the proposal of a text: the list under a heading for one, else its last sentence that proposes."""
    words = own_words(text)
    heading = next(reversed(list(_PLANNED.finditer(words))), None)
    items = _ITEM.findall(words, heading.end())[:OPTIONS_MAX] if heading else []
    if heading and items:
        return f"{_plain(heading[0], ITEM_CHARS_MAX).rstrip(':')}: {_join_items(items)}"
    found = [
        one
        for one in sentences(words[-2 * QUESTION_TAIL_CHARS :])
        if _PROPOSES.search(one) and len(one) > CHARS_MIN and not one.startswith("If ")
    ]
    return _plain(found[-1], QUESTION_CHARS_MAX) if found else ""


def _plain(text: str, chars: int) -> str:
    """Return the text without Markdown's emphasis and heading marks, shortened."""
    return shorten(plain(text), max(chars, CHARS_MIN))


def asking_part(answer: str, text: str) -> str:
    """Return the lines of a text with the options that an answer names, and its end with the question, verbatim.

    Empty if the text asks nothing that the answer answers.
    """
    if not answered_question(" ".join(own_words(answer).split()), text):
        return ""
    begin = max(0, len(text.rstrip()) - QUESTION_TAIL_CHARS)
    begin = text.find("\n", begin) + 1 if begin and "\n" in text[begin:].strip() else begin
    named = _option_names(answer)
    options = [m[0].strip()[:OPTION_CHARS_MAX] for m in _ENTRY.finditer(text, 0, begin) if m[1].upper() in named]
    return "\n".join((*options[-OPTIONS_MAX:], text[begin:].strip()))
