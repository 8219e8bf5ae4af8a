"""A summary's body made without a model: the user's own words, what was done and what says most, under fixed headings.

Deterministic. Only what users, assistants and notes said is quoted; tool output is data and never is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
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
    NEXT,
    NOT_STARTED,
    PREFIX_HEADINGS,
    REQUEST,
    RUNNING,
    SUFFIX,
    Measure,
    Section,
    SectionLine,
    filled,
    interleaved,
    parsed,
)
from app.core.compaction.extractive.sentences import Sentence, central, content_words, sentences_of
from app.core.compaction.extractive.work import SpanWork
from app.core.digest.record import Digest
from app.core.digest.sentences import ask_of
from app.core.digest.steps import PENDING
from app.core.digest.steps import RUNNING as UNDER_WAY
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import Counter, TextKind

NEWEST_TEXTS: Final = 3
LAST_TEXTS: Final = 8
"""How many of the newest assistant texts may tell what is under way, and what is next or in the way."""

_WORK: Final = {
    GOAL: 0.24,
    CONSTRAINTS: 0.1,
    DONE: 0.24,
    RUNNING: 0.14,
    NOT_STARTED: 0.06,
    BLOCKED: 0.1,
    DECISIONS: 0.08,
    NEXT: 0.06,
    CONTEXT: 0.04,
}
_TALK: Final = dict.fromkeys(_WORK, 0.03) | {GOAL: 0.04, CONSTRAINTS: 0.05, CONTEXT: 0.76}
"""The share of the room each section may take at first: of a span of work, and of one of mere talk."""

_DONE: Final = re.compile(
    r"\b(?:fixed|added|updated|created|implemented|removed|renamed|moved|wrote|changed|refactored|committed|pushed|merged"
    r"|done|complete[d]?|finished|pass(?:es|ed|ing)?|now works?|resolved|booked|cancell?ed|confirmed|sent)\b",
    re.I,
)
_DECIDED: Final = re.compile(
    r"\b(?:decid(?:e|ed|ing)|decision|instead of|rather than|option|approach|agreed?|chose|choose|because|so that"
    r"|trade-?off|better to|let's|we(?:'ll| will| should)|plan is|prefer)\b",
    re.I,
)
_NEXT: Final = re.compile(
    r"\b(?:next|to-?do|remaining|remains|still (?:need|have|to)|i'll|i will|i need to|we need to|let me|now i|later"
    r"|follow-?up|pending|want me to)\b",
    re.I,
)
_INTENT: Final = re.compile(
    r"\b(?:(?:i|we)['’]ll|(?:i|we) will|let me(?! know)|let['’]s|(?:i|we)['’](?:m|re) (?:going to|about to)|going to"
    r"|now i|(?:i|we) (?:need|have|want) to|(?:i|we) should|next,|continu(?:e|ing) (?:to|with|\w+ing))",
    re.I,
)
"""What a sentence says that is about to be done: neither done nor in the way."""
_FAILING: Final = re.compile(
    r"\b(?:fail(?:s|ed|ing|ure)?|errors?|broken|blocked|cannot|can['’]t|couldn['’]t|unable|stuck|not work(?:ing)?"
    r"|conflict|missing|waiting (?:for|on))\b",
    re.I,
)
_MENDED: Final = re.compile(
    r"\b(?:no (?:\w+ )?(?:errors?|failures?|conflicts?)|without (?:an? )?(?:errors?|failures?)|fix(?:ed|es)|resolved"
    r"|solved|corrected|handl(?:es|ed|ing)|(?:now|all) \w+ pass(?:es)?|pass(?:es)? now|0 (?:failed|failures|errors))\b"
    r"|\berrors? (?:handling|messages?|cases?|types?|paths?)\b|\breturns? (?:an? )?(?:\w+ )?errors?\b",
    re.I,
)
"""What a sentence says of a failure that is none (any more), or of what code does about one."""


def extract(
    events: Sequence[Event], previous_text: str, digest: Digest, max_tokens: int, counter: Counter, focus: str = ""
) -> str:
    """The body of a span's summary, in at most `max_tokens` tokens of prose: those of HEADINGS that have something.

    `previous_text` is a summary, or several, that this one takes the place of too: what it says is carried on. Give
    none where the earlier summary stays visible beside this one. `focus` names what matters most. Where not even the
    headings fit, the beginning of the text is all there is.
    """
    before = parsed(previous_text)
    said = _Said(events, focus, before)
    shares = _TALK if said.is_talk else _WORK
    earlier = {heading: before.get(heading, []) for heading in HEADINGS}
    notes = said.notes
    rules = [*notes.preferences, *reversed(_lines(digest.constraints, 0)), *earlier[CONSTRAINTS]]
    work = SpanWork(events)
    failing = [*said.in_the_way(), *work.failing()]
    done = interleaved(interleaved(work.done(), said.done()), earlier[DONE] + earlier[RUNNING])
    decided = [*notes.decisions, *interleaved(said.that(_DECIDED, users=True), earlier[DECISIONS])]
    planned = {
        state: _lines((step.text for step in digest.plan if step.state == state), 0) for state in (PENDING, UNDER_WAY)
    }
    # In the order in which they choose: a sentence stands where it is looked for first.
    candidates = {
        GOAL: _opening(earlier[GOAL], _lines(digest.asks, said.last_seq)),
        CONSTRAINTS: rules,
        BLOCKED: failing or ([] if events else earlier[BLOCKED]),
        NOT_STARTED: planned[PENDING] if digest.plan else earlier[NOT_STARTED],
        NEXT: said.next_steps() or earlier[NEXT],
        DONE: done,
        DECISIONS: decided,
        RUNNING: [*planned[UNDER_WAY], *(said.under_way() or earlier[RUNNING])],
        CONTEXT: [*notes.structure, *notes.others, *said.context(earlier[CONTEXT])],
    }
    sections = [Section(heading, lines, shares[heading]) for heading, lines in candidates.items()]
    return filled(HEADINGS, sections, _measure(counter), max_tokens, spare=CONTEXT if said.is_talk else GOAL)


def extract_prefix(
    events: Sequence[Event], previous_text: str, digest: Digest, max_tokens: int, counter: Counter, focus: str = ""
) -> str:
    """As `extract`, for the first part of a turn whose rest is shown as it is: under PREFIX_HEADINGS."""
    before = parsed(previous_text)
    said = _Said(events, focus, before)
    request = next((SectionLine(ask, e.seq) for e in said.users if (ask := ask_of(e.text))), None)
    requests = [request] if request else before.get(REQUEST, [])[:1] or _lines(digest.asks[-1:], 0)
    coming, work = said.next_steps(), SpanWork(events)
    told = [*interleaved(work.done(), said.done()), *said.ranked()]
    early = [line for line in told if line not in coming] + before.get(EARLY, [])
    suffix = [*coming, *said.in_the_way(), *work.failing(), *said.under_way(), *before.get(SUFFIX, [])]
    sections = [Section(REQUEST, requests, 0.3), Section(EARLY, early, 0.35), Section(SUFFIX, suffix, 0.35)]
    return filled(PREFIX_HEADINGS, sections, _measure(counter), max_tokens, spare=EARLY)


class _Said:
    """What was said in a span, by whom, and which sentences of it say most."""

    def __init__(self, events: Sequence[Event], focus: str, before: Mapping[str, Sequence[SectionLine]]) -> None:
        self._events = events
        # A conversation without tools (or summaries of such): then what was said is all there is to keep.
        quoted = len(before.get(CONTEXT, ())) * 2 > sum(len(lines) for lines in before.values())
        self.is_talk = not any(e.type is EventType.TOOL_CALL for e in events) if events else quoted
        self.users = [e for e in events if e.type is EventType.USER_MESSAGE]
        self.last_seq = events[-1].seq if events else 0
        self._own = [(e.seq, e.text) for e in events if e.type is EventType.ASSISTANT_MESSAGE and e.text]
        self._last_own = self._own[-1][0] if self._own else 0
        self._focus = content_words(focus)
        users = [(e.seq, e.text) for e in self.users]
        self._user_seqs = {seq for seq, _ in users}
        self._central = central(sentences_of(sorted([*users, *self._own])), self._focus)
        self._open = _open_calls(events)
        self.notes = notes_of(events)

    def context(self, earlier: Sequence[SectionLine]) -> Sequence[SectionLine]:
        """What may stand for the whole: of talk the messages that tell most, else the most central sentences."""
        if not self.is_talk:
            return interleaved(self.ranked(), earlier)
        found = quotes(self._events, [line.text for line in earlier])
        if self._focus:
            found = sorted(found, key=lambda quote: self._focus.isdisjoint(content_words(quote.text)))
        return [SectionLine(quote.text, quote.seq) for quote in found]

    def ranked(self) -> Sequence[SectionLine]:
        """All sentences, the most central first."""
        return [SectionLine(s.text, s.seq) for s in self._central]

    def that(self, cue: re.Pattern[str], *, users: bool = False) -> Sequence[SectionLine]:
        """The central sentences with such a word in them."""
        return [
            SectionLine(s.text, s.seq)
            for s in self._central
            if cue.search(s.text) and not s.text.endswith("?") and (users or s.seq not in self._user_seqs)
        ]

    def done(self) -> Sequence[SectionLine]:
        """The central sentences of the assistant that report something done."""
        return [line for line in self.that(_DONE) if not _INTENT.search(line.text)]

    def in_the_way(self) -> Sequence[SectionLine]:
        """What the last assistant texts say that fails, the newest first; not what is about to be done about it."""
        return [line for line in self._lately(_FAILING) if not (_INTENT.search(line.text) or _MENDED.search(line.text))]

    def next_steps(self) -> Sequence[SectionLine]:
        """What the last assistant texts say is to come, the newest first. An intent counts until work followed it."""
        return [line for line in self._lately(_NEXT) if line.seq >= self._last_own or not _INTENT.search(line.text)]

    def _lately(self, cue: re.Pattern[str]) -> Sequence[SectionLine]:
        found = sentences_of(self._own[-LAST_TEXTS:])
        return [SectionLine(s.text, s.seq) for s in reversed(found) if cue.search(s.text)]

    def under_way(self) -> Sequence[SectionLine]:
        """The newest request, calls that are still open, and what the assistant said last."""
        request = next((SectionLine(ask, e.seq) for e in reversed(self.users) if (ask := ask_of(e.text))), None)
        newest: list[Sentence] = []
        for text in reversed(self._own[-NEWEST_TEXTS:]):
            newest += sentences_of([text])
        return [*([request] if request else ()), *self._open, *(SectionLine(s.text, s.seq) for s in newest)]


def _open_calls(events: Sequence[Event]) -> Sequence[SectionLine]:
    answered = {e.call_seq for e in events if e.type is EventType.TOOL_RESULT}
    calls = [e for e in events if e.type is EventType.TOOL_CALL and e.seq not in answered]
    return [SectionLine(f"Waiting for the result of {e.tool} (seq {e.seq}).", e.seq) for e in calls[-NEWEST_TEXTS:]]


def _opening(goal: Sequence[SectionLine], asks: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """What was asked first, then the newest requests."""
    first = [*goal[:1], *(asks[:1] if not goal else ())]
    return [*first, *reversed(asks[0 if goal else 1 :]), *goal[1:]]


def _lines(texts: Iterable[str], seq: int) -> list[SectionLine]:
    return [SectionLine(text, seq) for text in texts]


def _measure(counter: Counter) -> Measure:
    return lambda text: counter.estimator.count(text, TextKind.PROSE)
