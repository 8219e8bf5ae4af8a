"""The words of users and agents: own words, sentences, rules and promises; texts shortened by words or sentences."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType


def own_messages(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the users' messages without those that a program wrote in their name."""
    prompt_follows = False
    for event in events:
        if event.type is not EventType.USER_MESSAGE or (prompt_follows and not prompt_command(event.text)):
            prompt_follows = False
        else:
            prompt_follows = bool(prompt_command(event.text))
            if not is_loaded(event.text):
                yield event


_REJECTED: Final = re.compile(
    r"\s{0,8}(?:The user doesn't want to (?:proceed with this tool use|take this action right now)\b"
    r"|The user denied this operation\b|The user rejected permission to use this specific tool call\b)"
)
"""The beginning of the result of a call that the user rejected, in Claude Code, Cline and its forks, and opencode."""
_SAID: Final = re.compile(r"\bthe user said:\s{0,8}(.+)|<feedback>\s{0,8}(.+?)\s{0,8}</feedback>", re.S)


def is_rejected(result: Event | None) -> bool:
    """Return whether the user did not allow a result's call, which therefore had no effect."""
    if result is None:
        return False
    # The first line is known even if the event's body was not read, so that every plan judges alike.
    return _REJECTED.match(result.text if result.gist is None else result.gist) is not None


def is_refused(result: Event | None) -> bool:
    """Return whether a harness did not execute a call because of its form or state, by the result's first line."""
    first_line = "" if result is None else result.text if result.gist is None else result.gist
    return first_line.lstrip().startswith("<tool_use_error>")


def words_of(rejection: str) -> str:
    """Return the user's words in the text of a rejection on one line; empty without any."""
    found = _SAID.search(rejection)
    return " ".join((found[1] or found[2]).split()) if found else ""


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
    near = [at for at, (message_number, _) in enumerate(found) if number - MESSAGES_BACK <= message_number]
    if len(sentence.split()) < POINTING_WORDS and _POINTS.search(sentence):
        last = max((found[at][0] for at in near), default=-1)
        yield from (at for at in near if found[at][0] == last == number - 1)
        return
    words = _words(sentence)
    yield from (at for at in near if len(words & _words(found[at][1])) >= SHARED_WORDS)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


SENTENCE_CHARS_MAX: Final = 300
CONSTRAINTS_EACH_MAX: Final = 12
"""The maximum number of rules taken from one message."""
ASK_CHARS_MAX: Final = 400
REQUEST_CHARS_MAX: Final = 1_000
TEXT_CHARS_MAX: Final = 20_000
BLOCKS_MAX: Final = 50

_TAG: Final = r"[ \t]{0,20}<([a-z][\w-]{0,60})(?: [^<>\n]{0,200})?>"
_OPENING: Final = re.compile(f"^{_TAG}", re.M)
_FOLLOWING: Final = re.compile(_TAG)
"""A tag directly after a block."""
_LOADED: Final = re.compile(r"\s{0,8}(?:Base directory for this skill: |Operation stopped by hook: )")
_PROMPT: Final = re.compile(r"\s{0,8}<command-message>")
"""The beginning of Claude Code's record of a command that loads a prompt; the next message is that prompt."""
_PROMPT_NAME: Final = re.compile(
    r"<command-name>([^<]{1,100})</command-name>(?:\s*<command-args>([^<]{0,2000})</command-args>)?"
)
_MARKUP: Final = re.compile(r"\*\*|^\s{0,8}#{1,6} |^\s{0,8}[-*_]{3,20}\s", re.M)
_FENCE: Final = "```"
_STOP, _SPACE = r"(?<=[.!?])(?<!\*\*\d\.)(?<!\*\*\d\d\.)", r"[\"')\]]{0,2}\s+(?=[\"'(\[A-ZÀ-Þ0-9`*-])"
_BREAK: Final = re.compile(_STOP + _SPACE)
_NUMBERED: Final = re.compile(r"[:.!?;…]\s\d{1,2}\.\s")
"""An item of a numbered list that was put on one line."""
_BREAK_OF_ITEMS: Final = re.compile(rf"{_STOP}(?<!\s\d\.)(?<!\s\d\d\.){_SPACE}")
"""The space between two sentences in a line with such items, whose numbers are no sentences."""
_BULLET: Final = re.compile(r"^\s{0,40}(?:[-*•]|\d{1,3}[.)])\s{1,8}")
_QUOTED: Final = re.compile(
    r"^\s{0,20}(?:[>|+│╭╰├└]|\d+[→|]|-{2,}|at \S+ ?\(|[\w./-]{1,200}:\d+[:)])|^.{0,400}\[\+\d+ -\d+\]\s{0,8}$"
)
"""A line that the user copied: a quotation, a drawing, a listing, a stack, or one that ends with counts of a diff."""
_QUOTES_FIRST: Final = re.compile(r"[+>] ")
"""The beginning of a text whose author copied a line of a diff, or of another text, to speak about it."""
_STRONG: Final = re.compile(
    r"\b(?:must(?!['’]ve| have)|never(?!-)|always"
    r"|do not|(?<!(?<!ye)s )(?<!\bi )don'?t (?!we|i\b|you\b|have|know|think|see|remember|recall|actually|feel)"
    r"|cannot use|can'?t (?:use|change|touch)"
    r"|please (?:keep|use|only|avoid|don'?t|do not|make)|from now on"
    r"|(?<!(?<!you )(?<!need )(?<!want )(?<!sure )to )(?<!ll )(?<!they )(?:make sure|ensure)(?! i['’]?\b)"
    r"|not allowed|may not|forbidden|no more than|at most|at least(?! (?:i|he|she|it|we|they|once)\b)"
    r"|should(?:n'?t| not| always| only| never)|can only|has to|(?<!\bi )(?<!ll )(?<!n't )(?<!still )have to"
    r"|required to|(?<!i )(?<!to )remember (?:to|that)"
    r"|i(?:'d| would)? (?:strongly |really )?prefer|prefer to"
    r"|(?:i|we)(?:'d| would)? only (?:want|need)|(?:i|we) don'?t (?:want|need|like)|stick to"
    r"|(?<!to )(?<!ll )keep (?:it(?! up)|the|them|this(?! in mind)|all|using)"
    r"|leave [^.]{1,60} (?:alone|untouched|as (?:it|they))"
    r"|niemals|auf keinen fall|unbedingt|darf nicht|muss|jamais|toujours|il faut|nunca|siempre)\b",
    re.I,
)
"""Words that make a sentence a rule, unless it asks or describes something."""
_DESCRIBES: Final = re.compile(
    r"\b(?:(?:is|are|was|were|be|been|am|has|have|had|not|can|could|(?<!you )will|would|remind\w* \w+ to)"
    r"|(?:i|they|he|she|it|that|this|who)(?! (?:want|need|prefer))|\w+(?:n['’]t|['’](?:m|re|s|ve|d|ll)))"
    r" (?:just |still |really |also )?(?:always|never)(?! (?:want|need|prefer))\b"
    r"|\bnever (?:been|heard|saw|seen|had|gets?|too|mind|know|ceases?)\b|\balways (?:a|been|fun|great|good)\b"
    r"|\b(?:but|and) never \w+(?:ed|en)\b"
    r"|\bmust (?:feel|love|be (?:(?:so|such|really|very|quite|pretty|an?) ){0,2}(?:so|such|really|great|good|nice|fun"
    r"|awesome|amazing|incredible|exciting|challenging|hard|tough|proud))\b",
    re.I,
)
"""Words of a description or of praise, which are left out before a rule is looked for."""
_SPEAKER: Final = re.compile(r"^[A-Z]\w{1,20}: ")
_WEAK: Final = re.compile(
    r"\b(?:(?<!-)(?<!the )only(?!-)|without|avoid|refrain|instead of|rather than|except|unless|up to \d|no longer)\b",
    re.I,
)
"""Words that make a sentence a rule unless it begins like a statement; in a document only if it begins like a rule."""
_HEADING: Final = re.compile(r"^#{1,6} (\S[^\n]{0,200})", re.M)
_OF_RULES: Final = re.compile(r"\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|instructions?)\b", re.I)
HEADINGS_MIN: Final = 3
"""The number of headings of a document, such as a plan or a review that a user pasted, most of whose sentences describe
the work, unless a heading announces rules."""
_INSTRUCTION: Final = re.compile(r"\W{0,6}(?:only|avoid|refrain|use|keep)\b", re.I)
_STATEMENT: Final = re.compile(
    r"^(?:(?:but|and|also|so|ok|okay|yes|no|well|then|hmm)\b[ ,:]{0,3})*"
    r"(?:i|i'm|i've|we|we're|it|it's|its|this|that|that's|the|these|those|they|there|he|she|you|my|our|your|a|an"
    r"|right now|for example|in|if|when|because|not|seems?|looks?|maybe)\b",
    re.I,
)
_QUESTION: Final = re.compile(
    r"^(?:why|what|how|does|do|did|is|are|was|were|where|when|who|which|would|could|should|can|will|has|have|isn'?t"
    r"|aren'?t|shouldn'?t|wouldn'?t|don'?t we|question)\b",
    re.I,
)
_FINDING: Final = re.compile(
    r"\W{0,4}(?:root cause|cause|problem|bug|issue|reason|why|context|background)\W{0,4}: ?", re.I
)
"""The beginning of a sentence that describes a problem, in a plan or a report that the user pasted."""
_BRACKETED: Final = re.compile(r"\[[^\]]{0,200}\]")
_REQUEST: Final = re.compile(r"\b(?:please (?:keep|use|only|avoid|don'?t|do not)|make sure|from now on)\b", re.I)
"""Words that make even a question a rule."""
_ASSENT: Final = re.compile(r"\W{0,4}(?:yes|yeah|yep|ok|okay|sure)\b", re.I)
"""The beginning of an answer, which is understood with its question only."""
_ORDERS: Final = re.compile(
    rf"{_REQUEST.pattern}|\b(?:must|never|always|do not|don['’]?t|cannot|can['’]?t|not allowed|should)\b", re.I
)
"""Words with which an answer also states a rule."""
_EXAMPLES: Final = re.compile(r"\((?:e\.g\.|i\.e\.|for example|such as)[^)]{0,200}\)", re.I)
_LOG_LINE: Final = re.compile(
    r"^(?:\[[^\]\n]{0,80}\]|error|warn(?:ing)?|fail(?:ed)?|traceback|exception)\b.{0,3}:", re.I
)

_ERROR: Final = re.compile(
    r"^[ \t]{0,20}(?:\w{0,40}(?:error|exception)|fatal)\b[^\n]{0,80}\{\"[^\n]{0,2000}"
    r"(?:\n[ \t]{0,40}\S[^\n]{0,2000}){1,40}",
    re.M | re.I,
)
"""The JSON of an error that the user copied, wrapped over several lines, up to an empty line."""


def own_words(text: str) -> str:
    """Return a message without the parts that programs put into it: blocks in tags that begin a line, and fenced code.

    Only the first TEXT_CHARS_MAX characters are read.
    """
    return _without_fences(_without_blocks(text[:TEXT_CHARS_MAX])).strip()


def is_loaded(text: str) -> bool:
    """Return whether a program wrote a user's message: instructions that an agent loaded, or the words of a hook."""
    return _LOADED.match(text) is not None


def prompt_command(text: str) -> str:
    """Return the command, with arguments, in the record of a command that loads a prompt; empty for other messages."""
    found = _PROMPT_NAME.search(text, 0, TEXT_CHARS_MAX) if _PROMPT.match(text) else None
    return " ".join(f"{found[1]} {found[2] or ''}".split()) if found else ""


def plain(text: str) -> str:
    """Return the text on one line, without Markdown's emphasis and heading marks."""
    return " ".join(_MARKUP.sub("", text).split()).strip("*~| ")


def _without_blocks(text: str) -> str:
    kept: list[str] = []
    at = 0
    unclosed: set[str] = set()
    for _ in range(BLOCKS_MAX):
        opening = (_FOLLOWING.match(text, at) if at and text[at - 1] == ">" else None) or _OPENING.search(text, at)
        if opening is None:
            break
        name = opening[1]
        end = -1 if name in unclosed else text.find(f"</{name}>", opening.end())
        if end < 0:
            unclosed.add(name)
            kept.append(text[at : opening.end()])
            at = opening.end()
        else:
            kept.append(text[at : opening.start()])
            at = end + len(name) + 3
    return "".join((*kept, text[at:]))


def _without_fences(text: str) -> str:
    pieces = text.split(_FENCE)
    closed = len(pieces) // 2 * 2
    return "\n".join((*pieces[0:closed:2], *pieces[closed:])) if len(pieces) > 1 else text


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and list items of a text in order, each run of white space as one space."""
    for line in text.split("\n"):
        breaks = _BREAK_OF_ITEMS if _NUMBERED.search(line) else _BREAK
        for piece in breaks.split(_BULLET.sub("", line, count=1)):
            sentence = " ".join(piece.split())
            if sentence:
                yield sentence


def shorten(text: str, chars: int) -> str:
    """Return the text, or its first words and an ellipsis in at most `chars` characters.

    Only a word that is too long alone is cut.
    """
    if len(text) <= chars:
        return text
    start = text[: chars - 1]
    words = start if text[chars - 1 : chars].isspace() else start.rsplit(" ", 1)[0]
    return f"{words.rstrip(' ,;:(-')}…"


def abridge_message(text: str, chars: int) -> str:
    """Return the text, or its first words, an ellipsis and its last sentences, in at most `chars` characters.

    The last sentences take at most half of `chars`. A text that begins with a quoted line, which its author then speaks
    about, is shortened to an ellipsis and its last words.
    """
    if len(text) > chars and _QUOTES_FIRST.match(text):
        return f"…{text[1 - chars :].partition(' ')[2]}"
    if len(text) <= chars:
        return text
    last = ""
    for sentence in reversed(list(sentences(text))):
        end = f"{sentence} {last}".rstrip()
        if len(end) > chars // 2 or not text.endswith(end):
            break
        last = end
    return f"{shorten(text, chars - len(last) - 1)} {last}" if last else shorten(text, chars)


def constraints_of(text: str) -> tuple[str, ...]:
    """Return the sentences of a user's message that state a rule, verbatim, at most CONSTRAINTS_EACH_MAX of them.

    Questions, quoted lines and program output state none.
    """
    words = own_words(text)
    lines = "\n".join(line for line in _ERROR.sub("", words).split("\n") if not _QUOTED.match(line))
    headings = _HEADING.findall(words)
    in_document = len(headings) >= HEADINGS_MIN and not any(map(_OF_RULES.search, headings))
    found = (
        shorten(sentence, SENTENCE_CHARS_MAX)
        for sentence in sentences(lines)
        if len(sentence.split()) > 2 and _states_rule(sentence, in_document) and not _LOG_LINE.match(sentence)
    )
    return tuple(dict.fromkeys(found))[:CONSTRAINTS_EACH_MAX]


_PROMISE: Final = re.compile(
    r"\bI(?:['’]ll| will| won['’]t|['’]m not going to)\b.{1,200}\b(?:going forward|from now on"
    r"|for the rest of (?:this|the) session)\b"
)
"""Words by which an agent accepts a rule, in an answer to words that the log may lack."""


def promises_in(text: str) -> Iterator[str]:
    """Yield the sentences of an agent's message that promise to keep to something, quoted."""
    for sentence in sentences(own_words(text)):
        if _PROMISE.search(sentence):
            yield f'The agent promised: "{shorten(plain(sentence), SENTENCE_CHARS_MAX)}"'


def _states_rule(sentence: str, in_document: bool) -> bool:
    """Return whether a sentence instructs the agent, rather than states or asks something."""
    if _FINDING.match(sentence):
        return False
    sentence = _SPEAKER.sub("", sentence)
    if sentence.endswith("?") or _QUESTION.match(sentence):
        return bool(_REQUEST.search(sentence))
    sentence = _EXAMPLES.sub("", sentence)
    if _ASSENT.match(sentence) and not _ORDERS.search(sentence):
        return False
    if _STRONG.search(_DESCRIBES.sub("", sentence)):
        return True
    begins = _INSTRUCTION.match(sentence) if in_document else not _STATEMENT.match(sentence)
    return bool(begins and _WEAK.search(sentence))


def request_of(text: str) -> str:
    """Return a user's message on one line, shortened to REQUEST_CHARS_MAX; empty if a program wrote it.

    It differs from `ask_of` for messages without own words, all of which it returns.
    """
    if is_loaded(text):
        return ""
    words = prompt_command(text) or own_words(text) or text[:TEXT_CHARS_MAX]
    return shorten(" ".join(words.split()), REQUEST_CHARS_MAX)


def ask_of(text: str) -> str | None:
    """Return a user's own words on one line, shortened to ASK_CHARS_MAX; None for a message without any."""
    line = " ".join(own_words(text).split())
    if is_loaded(text) or _BRACKETED.fullmatch(line):
        return None
    return shorten(line, ASK_CHARS_MAX) if len(line.split()) > 1 and any(c.isalpha() for c in line) else None
