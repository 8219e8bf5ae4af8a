"""The body of a summary without a model: the user's words, the work done and the key sentences, under fixed headings.

Deterministic. Only users, assistants and notes are quoted; tool output is data and never quoted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Final

from app.core.compaction.extractive.notes import notes_of
from app.core.compaction.extractive.quotes import quotes
from app.core.compaction.extractive.sections import (
    BLOCKED,
    CONSTRAINTS,
    CONTEXT,
    DECISIONS,
    DONE,
    EARLY,
    GOAL,
    HEADINGS,
    LATEST,
    NEXT,
    NOT_STARTED,
    PREFIX_HEADINGS,
    REQUEST,
    RUNNING,
    SHORTEST_CHARS,
    STATES,
    SUFFIX,
    USERS,
    Measure,
    Section,
    SectionLine,
    fill_sections,
    interleave,
    lasting,
    parse_sections,
)
from app.core.compaction.extractive.sentences import (
    CANDIDATES_MAX,
    Sentence,
    central,
    sentences_of,
)
from app.core.compaction.extractive.work import SpanWork, failed_checks, with_arguments
from app.core.digest.answers import answers, user_lines
from app.core.digest.record import Digest
from app.core.digest.sentences import ask_of, is_loaded, own_words, sentences, shortened
from app.core.digest.steps import PENDING
from app.core.digest.steps import RUNNING as UNDER_WAY
from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import Counter, TextKind

NEWEST_TEXTS: Final = 3
"""Number of the newest assistant texts that are quoted, and of open calls that are named."""
LONG_SHARE: Final = 0.6
"""The share of a section's room from which on a user's message, or a text of the assistant, is shortened."""
FEWEST_WORDS: Final = 4
"""A line with fewer words and a colon only leads to the next."""
GAP_CHARS: Final = 3
"""Characters around a sentence for spaces and an ellipsis."""
TELLING_WORDS: Final = 4
"""A sentence with fewer words that carry meaning tells nothing by itself."""
LONG_CHARS: Final = 240
"""Length to which a user's message is shortened."""
CHARS_PER_TOKEN: Final = 3.4

_WORK: Final = {
    GOAL: 0.1,
    USERS: 0.46,
    CONSTRAINTS: 0.06,
    BLOCKED: 0.05,
    NOT_STARTED: 0.03,
    RUNNING: 0.03,
    LATEST: 0.22,
    DONE: 0.06,
    DECISIONS: 0.06,
    NEXT: 0.03,
    CONTEXT: 0.02,
}
_TALK: Final = dict.fromkeys(_WORK, 0.03) | {GOAL: 0.04, USERS: 0.0, CONSTRAINTS: 0.05, LATEST: 0.0, CONTEXT: 0.76}
"""The share of the room that each section may take at first: in a span with tool calls, and in mere talk."""

_VERB: Final = (
    r"(?:implemented|added|created|fixed|updated|changed|removed|moved|renamed|refactored|committed|pushed|merged"
    r"|wrote|written|rewrote|extracted|replaced|introduced|deleted|installed|configured|completed|finished|resolved"
    r"|reduced|booked|cancell?ed|confirmed|sent)"
)
_DONE: Final = re.compile(
    r"^\W{0,4}(?:(?:i|we)(?:['’]ve| have)?(?: now| also| just| successfully)? "
    rf"|(?:[`*]{{1,3}}[^`*]{{1,80}}[`*]{{1,3}}|[\w./:]{{1,80}})(?: \([^)]{{0,80}}\))? ?[-–—:→] (?:now )?)?{_VERB}\b"
    rf"|\b(?:is|are|was|were|has been|have been) (?:now )?(?:{_VERB}|complete|done|in place)\b"
    r"|^\W{0,4}(?:[\w`-]+ ){0,4}(?:tests?|lint|checks?|build|everything) (?:\w+ ){0,3}(?:pass(?:e[sd])?|succeeds?)\b",
    re.I,
)
"""Words of a sentence that reports finished work."""
_DOUBT: Final = re.compile(
    r"\b(?:but|no|not|none|never|\w+n['’]t|fail\w*|errors?|appears?|seems?|should|would|could|might|may|if|when|need(?:s|ed)?"
    r"|missing|still|yet|only|until|except|wrong|issue|problem|bug)\b",
    re.I,
)
"""Words of a sentence that reports more, or less, than finished work."""
_DECIDED: Final = re.compile(
    r"\b(?:decid(?:e|ed|ing)|decision|instead of|rather than|chose|because|so that|due to|in order to|to avoid"
    r"|trade-?off|turns out|root cause|the (?:issue|problem|bug|cause|reason) (?:is|was)|revert(?:ed|ing)"
    r"|did(?:n['’]t| not) work|does(?:n['’]t| not) work|since (?:it|the|they|we|that)|prefer)\b",
    re.I,
)
"""Words of a sentence that gives a reason, or tells of an attempt."""
_ANNOUNCEMENT: Final = re.compile(r"\s*[^.!?\n]{1,200}:\s*")
"""A text that says only what the agent looks at next."""
_INTENT: Final = re.compile(
    r"\b(?:(?:i|we)['’]ll|(?:i|we) will|let me(?! know)|let['’]s|(?:i|we)['’](?:m|re) (?:going to|about to)|going to"
    r"|now i|(?:i|we) (?:need|have|want) to|(?:i|we) should|next,|continu(?:e|ing) (?:to|with|\w+ing))",
    re.I,
)
"""Words of a sentence about an intent."""
_NEXT: Final = re.compile(
    rf"{_INTENT.pattern}|\b(?:next|to-?do|remaining|remains|still (?:need|have|to)|pending)\b", re.I
)


def extract(
    events: Sequence[Event], previous_text: str, digest: Digest, max_tokens: int, counter: Counter, focus: str = ""
) -> str:
    """Write the body of a span's summary: those of HEADINGS that have content, in at most `max_tokens` tokens of prose.

    `previous_text` holds the earlier summaries that this one replaces too; its lines are carried over. It must be empty
    if the earlier summary stays visible. `focus` names what matters most. If not even the headings fit, the text is cut
    off at its end.
    """
    previous = parse_sections(previous_text)
    messages = _Messages(events, focus, previous)
    shares = _TALK if messages.is_talk else _WORK
    earlier = {heading: previous.get(heading, []) for heading in HEADINGS}
    notes = messages.notes
    rules = [*notes.preferences, *reversed(_lines(digest.constraints, 0)), *earlier[CONSTRAINTS]]
    work = SpanWork(events, previous_text)
    # What an earlier summary says of the state of things held before this span.
    before = {heading: [] if events else earlier[heading] for heading in STATES}
    earlier[DONE], before[BLOCKED] = lasting(earlier[DONE]), lasting(before[BLOCKED])
    done = interleave(interleave(work.done(), messages.done()), earlier[DONE])
    decided = [*notes.decisions, *interleave(messages.matching(_DECIDED), earlier[DECISIONS])]
    planned = {
        state: _lines((step.text for step in digest.plan if step.state == state), 0) for state in (PENDING, UNDER_WAY)
    }
    asks = _lines(digest.asks, messages.last_seq)
    said = messages.said(sorted([*earlier[GOAL][1:], *earlier[USERS]], key=lambda line: line.seq))
    goal = earlier[GOAL][:1] or messages.first() or asks[:1]
    # In the order in which the sections choose: a sentence goes to the first section that takes it.
    candidates: Mapping[str, Sequence[SectionLine]] = {
        GOAL: _opening(earlier[GOAL], asks) if messages.is_talk else goal,
        USERS: [] if messages.is_talk else _newest_first([*said, *([] if said else asks)], shares[USERS] * max_tokens),
        CONSTRAINTS: rules,
        BLOCKED: [*failed_checks(digest.checks), *(work.failing() or before[BLOCKED])],
        NOT_STARTED: planned[PENDING] if digest.plan else before[NOT_STARTED],
        RUNNING: [*planned[UNDER_WAY], *(messages.open_calls() or before[RUNNING])],
        LATEST: [] if messages.is_talk else messages.latest(int(shares[LATEST] * max_tokens)),
        DONE: done,
        DECISIONS: decided,
        NEXT: messages.next_steps() or before[NEXT],
        CONTEXT: [*notes.structure, *notes.others, *messages.context(earlier[CONTEXT])],
    }
    sections = [Section(heading, lines, shares[heading]) for heading, lines in candidates.items()]
    return fill_sections(
        HEADINGS, sections, _measure(counter), max_tokens, spare=CONTEXT if messages.is_talk else USERS
    )


def extract_prefix(
    events: Sequence[Event], previous_text: str, digest: Digest, max_tokens: int, counter: Counter, focus: str = ""
) -> str:
    """Write the body, under PREFIX_HEADINGS, for the first part of a turn whose rest stays verbatim; see `extract`."""
    previous = parse_sections(previous_text)
    messages = _Messages(events, focus, previous)
    request = next((SectionLine(ask, e.seq) for e in messages.users if (ask := ask_of(e.text))), None)
    requests = [request] if request else previous.get(REQUEST, [])[:1] or _lines(digest.asks[-1:], 0)
    next_steps, work = messages.next_steps(), SpanWork(events)
    done = [*interleave(work.done(), messages.done()), *messages.ranked()]
    early = [line for line in done if line not in next_steps] + previous.get(EARLY, [])
    suffix = [
        *next_steps,
        *failed_checks(digest.checks),
        *work.failing(),
        *messages.open_calls(),
        *messages.newest(),
        *previous.get(SUFFIX, []),
    ]
    sections = [Section(REQUEST, requests, 0.3), Section(EARLY, early, 0.35), Section(SUFFIX, suffix, 0.35)]
    return fill_sections(PREFIX_HEADINGS, sections, _measure(counter), max_tokens, spare=EARLY)


class _Messages:
    """The messages of a span by author, and their most central sentences."""

    def __init__(self, events: Sequence[Event], focus: str, previous: Mapping[str, Sequence[SectionLine]]) -> None:
        self._events = events
        # Without tool calls (or in a summary that mostly quotes), the words are all there is to keep.
        quoted = len(previous.get(CONTEXT, ())) * 2 > sum(len(lines) for lines in previous.values())
        self.is_talk = not any(e.type is EventType.TOOL_CALL for e in events) if events else quoted
        self.users = [e for e in events if e.type is EventType.USER_MESSAGE and not is_loaded(e.text)]
        self.last_seq = events[-1].seq if events else 0
        self._assistant_texts = [(e.seq, e.text) for e in events if e.type is EventType.ASSISTANT_MESSAGE and e.text]
        self._focus = content_words(focus)
        users = [(e.seq, e.text) for e in self.users]
        self._user_seqs = {seq for seq, _ in users}
        told = sorted([*users, *self._assistant_texts])
        self._sentences = {seq: sentences_of([(seq, text)]) for seq, text in told}
        self._central = central(self._sentences_of(told), self._focus)
        self._open_calls = _open_calls(events)
        self._earlier_texts = [(line.seq, line.text) for line in previous.get(LATEST, ())]
        self._user_lines = list(user_lines(events, self._earlier_texts[-1][1] if self._earlier_texts else ""))
        self.notes = notes_of(events)

    def _sentences_of(self, texts: Iterable[tuple[int, str]]) -> Sequence[Sentence]:
        return [sentence for seq, _ in texts for sentence in self._sentences[seq]][-CANDIDATES_MAX:]

    def said(self, earlier: Sequence[SectionLine]) -> Sequence[SectionLine]:
        """The users' messages on one line each with the questions that they answer, oldest first."""
        return [*earlier, *(SectionLine(answers(words, asked), seq) for seq, words, asked in self._user_lines)]

    def first(self) -> Sequence[SectionLine]:
        """The first message of a user that holds more than one word, with the question that it answers."""
        own = (line for line in self._user_lines if line[0] in self._user_seqs and " " in line[1])
        found = (SectionLine(answers(words, asked), seq) for seq, words, asked in own)
        return [*islice(found, 1)]

    def latest(self, tokens: int) -> Sequence[SectionLine]:
        """The newest assistant texts, the newest first; long ones by their first and last sentences.

        Without events they are those of the earlier summaries.
        """
        room = int(tokens * CHARS_PER_TOKEN)
        found: list[SectionLine] = []
        telling = [(seq, text) for seq, text in self._assistant_texts if not _ANNOUNCEMENT.fullmatch(text)]
        texts = [(seq, own_words(text)) for seq, text in (telling or self._assistant_texts)[-NEWEST_TEXTS:]]
        for seq, text in reversed(texts if self._events else self._earlier_texts):
            most = room if not found else int(room * LONG_SHARE)
            told = [one for one in sentences(text) if any(map(str.isalpha, one))]
            line = condensed(told, " ".join(text.split()), most)
            if line:
                found.append(SectionLine(line, seq))
                room -= len(line)
        return found

    def newest(self) -> Sequence[SectionLine]:
        """The sentences of the newest assistant texts, the newest text first."""
        newest = self._sentences_of(self._assistant_texts[: -NEWEST_TEXTS - 1 : -1])
        return [SectionLine(s.text, s.seq) for s in newest]

    def context(self, earlier: Sequence[SectionLine]) -> Sequence[SectionLine]:
        """The candidates for critical context: of talk the most telling messages, else what was carried over."""
        if not self.is_talk:
            return earlier
        found = quotes(self._events, [line.text for line in earlier])
        if self._focus:
            found = sorted(found, key=lambda quote: self._focus.isdisjoint(content_words(quote.text)))
        return [SectionLine(quote.text, quote.seq) for quote in found]

    def ranked(self) -> Sequence[SectionLine]:
        """All distinct sentences, the most central first."""
        return [SectionLine(s.text, s.seq) for s in self._central]

    def matching(self, cue: re.Pattern[str]) -> Sequence[SectionLine]:
        """The central sentences that match the cue and are neither questions nor intents."""
        return [
            SectionLine(s.text, s.seq)
            for s in self._central
            if cue.search(s.text)
            and len(content_words(s.text)) >= TELLING_WORDS
            and not (s.text.rstrip("*_ ").endswith("?") or _INTENT.search(s.text))
        ]

    def done(self) -> Sequence[SectionLine]:
        """The central sentences of the assistant that report finished work and nothing else."""
        return [
            line for line in self.matching(_DONE) if line.seq not in self._user_seqs and not _DOUBT.search(line.text)
        ]

    def next_steps(self) -> Sequence[SectionLine]:
        """The next steps in the newest assistant text, in its order."""
        found = self._sentences_of(self._assistant_texts[-1:])
        return [SectionLine(s.text, s.seq) for s in found if _NEXT.search(s.text)]

    def open_calls(self) -> Sequence[SectionLine]:
        """Lines on the newest calls without a result."""
        return self._open_calls


def _open_calls(events: Sequence[Event]) -> Sequence[SectionLine]:
    answered = {e.call_seq for e in events if e.type is EventType.TOOL_RESULT}
    calls = [e for e in events if e.type is EventType.TOOL_CALL and e.seq not in answered]
    return [
        SectionLine(f"Waiting for the result of {e.tool}{with_arguments(e.arguments)}.", e.seq)
        for e in calls[-NEWEST_TEXTS:]
    ]


def _newest_first(lines: Sequence[SectionLine], tokens: float) -> Sequence[SectionLine]:
    """The lines, the newest first, long ones shortened; then all that do not fit whole, shortened."""
    longest = int(tokens * LONG_SHARE * CHARS_PER_TOKEN)
    whole = [line for line in reversed(lines) if len(line.text) <= max(longest, LONG_CHARS)]
    return [*whole, *(SectionLine(shortened(line.text, LONG_CHARS), line.seq) for line in reversed(lines))]


def condensed(told: Sequence[str], text: str, chars: int) -> str:
    """The text if it takes at most `chars` characters, else those of its sentences that do; its first words if few do.

    Two of the first sentences are tried for one of the last: a report begins with what matters, and ends with what is
    next.
    """
    if len(text) <= chars:
        return text
    kept: set[int] = set()
    told = [one for one in told if not (one.endswith(":") and one.count(" ") < FEWEST_WORDS)]
    room, at, end = chars, 0, len(told)
    while at < end:
        take_last = (end - len(told)) * -2 < at
        end, at = (end - 1, at) if take_last else (end, at + 1)
        number = end if take_last else at - 1
        if len(told[number]) + GAP_CHARS <= room:
            room -= len(told[number]) + GAP_CHARS
            kept.add(number)
    if chars - room < chars // 3:
        return shortened(text, chars) if chars >= SHORTEST_CHARS else ""
    shown = (f"{'' if number == 0 or number - 1 in kept else '… '}{told[number]}" for number in sorted(kept))
    return " ".join(shown) + ("" if len(told) - 1 in kept else " …")


def _opening(goal: Sequence[SectionLine], asks: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """The first request, then the others, the newest first."""
    first = [*goal[:1], *(asks[:1] if not goal else ())]
    return [*first, *reversed(asks[0 if goal else 1 :]), *goal[1:]]


def _lines(texts: Iterable[str], seq: int) -> list[SectionLine]:
    return [SectionLine(text, seq) for text in texts]


def _measure(counter: Counter) -> Measure:
    return cache(lambda text: counter.estimator.count(text, TextKind.PROSE))  # a line may be tried in several sections
