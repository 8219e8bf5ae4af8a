"""The body of a summary without a model: the user's words, the work done and the key sentences, under fixed headings.

Deterministic. Only users, assistants and notes are quoted; tool output is data and never quoted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
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
    fill_sections,
    interleave,
    parse_sections,
)
from app.core.compaction.extractive.sentences import (
    CANDIDATES_MAX,
    Sentence,
    central,
    content_words,
    sentences_of,
)
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
"""How many of the newest assistant texts are searched for work in progress, and for next steps and blockers."""

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
"""The share of the room that each section may take at first: in a span with tool calls, and in mere talk."""

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
"""Words of a sentence about an intent, which is neither done nor a blocker."""
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
"""Words of a sentence about a failure that is over or did not occur, or about error handling in code."""


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
    work = SpanWork(events)
    failing = [*messages.blockers(), *work.failing()]
    done = interleave(interleave(work.done(), messages.done()), earlier[DONE] + earlier[RUNNING])
    decided = [*notes.decisions, *interleave(messages.matching(_DECIDED, users=True), earlier[DECISIONS])]
    planned = {
        state: _lines((step.text for step in digest.plan if step.state == state), 0) for state in (PENDING, UNDER_WAY)
    }
    # In the order in which the sections choose: a sentence goes to the first section that takes it.
    candidates = {
        GOAL: _opening(earlier[GOAL], _lines(digest.asks, messages.last_seq)),
        CONSTRAINTS: rules,
        BLOCKED: failing or ([] if events else earlier[BLOCKED]),
        NOT_STARTED: planned[PENDING] if digest.plan else earlier[NOT_STARTED],
        NEXT: messages.next_steps() or earlier[NEXT],
        DONE: done,
        DECISIONS: decided,
        RUNNING: [*planned[UNDER_WAY], *(messages.in_progress() or earlier[RUNNING])],
        CONTEXT: [*notes.structure, *notes.others, *messages.context(earlier[CONTEXT])],
    }
    sections = [Section(heading, lines, shares[heading]) for heading, lines in candidates.items()]
    return fill_sections(HEADINGS, sections, _measure(counter), max_tokens, spare=CONTEXT if messages.is_talk else GOAL)


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
    suffix = [*next_steps, *messages.blockers(), *work.failing(), *messages.in_progress(), *previous.get(SUFFIX, [])]
    sections = [Section(REQUEST, requests, 0.3), Section(EARLY, early, 0.35), Section(SUFFIX, suffix, 0.35)]
    return fill_sections(PREFIX_HEADINGS, sections, _measure(counter), max_tokens, spare=EARLY)


class _Messages:
    """The messages of a span by author, and their most central sentences."""

    def __init__(self, events: Sequence[Event], focus: str, previous: Mapping[str, Sequence[SectionLine]]) -> None:
        self._events = events
        # Without tool calls (or in a summary that mostly quotes), the words are all there is to keep.
        quoted = len(previous.get(CONTEXT, ())) * 2 > sum(len(lines) for lines in previous.values())
        self.is_talk = not any(e.type is EventType.TOOL_CALL for e in events) if events else quoted
        self.users = [e for e in events if e.type is EventType.USER_MESSAGE]
        self.last_seq = events[-1].seq if events else 0
        self._assistant_texts = [(e.seq, e.text) for e in events if e.type is EventType.ASSISTANT_MESSAGE and e.text]
        self._last_assistant_seq = self._assistant_texts[-1][0] if self._assistant_texts else 0
        self._focus = content_words(focus)
        users = [(e.seq, e.text) for e in self.users]
        self._user_seqs = {seq for seq, _ in users}
        told = sorted([*users, *self._assistant_texts])
        self._sentences = {seq: sentences_of([(seq, text)]) for seq, text in told}
        self._central = central(self._sentences_of(told), self._focus)
        self._open_lines = _open_calls(events)
        self.notes = notes_of(events)

    def _sentences_of(self, texts: Iterable[tuple[int, str]]) -> Sequence[Sentence]:
        return [sentence for seq, _ in texts for sentence in self._sentences[seq]][-CANDIDATES_MAX:]

    def context(self, earlier: Sequence[SectionLine]) -> Sequence[SectionLine]:
        """The candidates for critical context: of talk the most telling messages, else the most central sentences."""
        if not self.is_talk:
            return interleave(self.ranked(), earlier)
        found = quotes(self._events, [line.text for line in earlier])
        if self._focus:
            found = sorted(found, key=lambda quote: self._focus.isdisjoint(content_words(quote.text)))
        return [SectionLine(quote.text, quote.seq) for quote in found]

    def ranked(self) -> Sequence[SectionLine]:
        """All distinct sentences, the most central first."""
        return [SectionLine(s.text, s.seq) for s in self._central]

    def matching(self, cue: re.Pattern[str], *, users: bool = False) -> Sequence[SectionLine]:
        """The central sentences that match the cue and are not questions, of the user too if `users`."""
        return [
            SectionLine(s.text, s.seq)
            for s in self._central
            if cue.search(s.text) and not s.text.endswith("?") and (users or s.seq not in self._user_seqs)
        ]

    def done(self) -> Sequence[SectionLine]:
        """The central sentences of the assistant that report finished work."""
        return [line for line in self.matching(_DONE) if not _INTENT.search(line.text)]

    def blockers(self) -> Sequence[SectionLine]:
        """The failures in the last assistant texts, the newest first, without intents and resolved failures."""
        return [line for line in self._recent(_FAILING) if not (_INTENT.search(line.text) or _MENDED.search(line.text))]

    def next_steps(self) -> Sequence[SectionLine]:
        """The next steps in the last assistant texts, the newest first; an intent counts in the very last text only."""
        return [
            line
            for line in self._recent(_NEXT)
            if line.seq >= self._last_assistant_seq or not _INTENT.search(line.text)
        ]

    def _recent(self, cue: re.Pattern[str]) -> Sequence[SectionLine]:
        found = self._sentences_of(self._assistant_texts[-LAST_TEXTS:])
        return [SectionLine(s.text, s.seq) for s in reversed(found) if cue.search(s.text)]

    def in_progress(self) -> Sequence[SectionLine]:
        """The newest request, the open calls, and the assistant's last sentences."""
        request = next((SectionLine(ask, e.seq) for e in reversed(self.users) if (ask := ask_of(e.text))), None)
        newest = self._sentences_of(self._assistant_texts[: -NEWEST_TEXTS - 1 : -1])
        return [*([request] if request else ()), *self._open_lines, *(SectionLine(s.text, s.seq) for s in newest)]


def _open_calls(events: Sequence[Event]) -> Sequence[SectionLine]:
    answered = {e.call_seq for e in events if e.type is EventType.TOOL_RESULT}
    calls = [e for e in events if e.type is EventType.TOOL_CALL and e.seq not in answered]
    return [SectionLine(f"Waiting for the result of {e.tool} (seq {e.seq}).", e.seq) for e in calls[-NEWEST_TEXTS:]]


def _opening(goal: Sequence[SectionLine], asks: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """The first request, then the others, the newest first."""
    first = [*goal[:1], *(asks[:1] if not goal else ())]
    return [*first, *reversed(asks[0 if goal else 1 :]), *goal[1:]]


def _lines(texts: Iterable[str], seq: int) -> list[SectionLine]:
    return [SectionLine(text, seq) for text in texts]


def _measure(counter: Counter) -> Measure:
    return cache(lambda text: counter.estimator.count(text, TextKind.PROSE))  # a line may be tried in several sections
