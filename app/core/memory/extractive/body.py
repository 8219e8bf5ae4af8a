"""The body of a summary without a model: the user's words, the work done and the key sentences, under fixed headings.

Deterministic. Only users, assistants and notes are quoted. Tool output is data: only the names of failed tests, first
error lines and merge conflicts are taken from it.
"""

import re
from collections import Counter as Counts
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest import digest_of
from app.core.memory.digest.answers import user_lines, with_question
from app.core.memory.digest.appendix import Measure
from app.core.memory.digest.calls import PENDING, RUNNING, is_bare_rejection
from app.core.memory.digest.files import undone_titles
from app.core.memory.digest.outcomes import is_check, reads_only
from app.core.memory.digest.record import Digest
from app.core.memory.digest.sentences import abridge_message, ask_of, own_messages, own_words
from app.core.memory.extractive.changes import (
    commits_of,
    decisions,
    finished_work,
    goals,
    is_task,
    opening,
    ranked_decisions,
    reports_of,
    requests_in,
    without_discarded,
)
from app.core.memory.extractive.quotes import (
    CANDIDATES_MAX,
    Sentence,
    central,
    condense,
    first_statement,
    notes_of,
    quotes,
    sentences_of,
)
from app.core.memory.extractive.sections import (
    BEFORE_LAST,
    BLOCKED,
    CONSTRAINTS,
    CONTEXT,
    DECISIONS,
    DONE,
    EARLY,
    GOAL,
    HEADINGS,
    IN_PROGRESS,
    LATER_REQUEST,
    LATEST,
    NEXT,
    NOT_STARTED,
    NOTHING,
    PAST,
    REQUEST,
    STATES,
    SUFFIX,
    TURN_START_HEADINGS,
    UNDECIDED,
    UNRESOLVED,
    USERS,
    Section,
    SectionLine,
    dated,
    fill_sections,
    interleave,
    parse_sections,
    split_left_out,
    without_counts,
)
from app.core.memory.extractive.statements import (
    finished_statements,
    has_content,
    is_observation,
    problems,
    reports_success,
    states_next_step,
)
from app.core.memory.extractive.work import SpanWork, failed_checks, last_effect, plain_arguments

NEWEST_TEXTS: Final = 3
"""The number of newest assistant texts that are quoted, and of open calls that are named."""
TEXT_SHARE: Final = 0.93
"""The share of a body's room that its headings leave for text."""
LONG_SHARE: Final = 0.6
"""The share of a section's room above which a user's message, or a text of the assistant, is shortened."""
LONG_CHARS: Final = 240
"""The length to which a user's message is shortened."""
CHARS_PER_TOKEN: Final = 3.4

_SMALL: Final = {NOT_STARTED: 0.03, IN_PROGRESS: 0.03, NEXT: 0.03, DECISIONS: 0.0, CONTEXT: 0.0}
_WORK: Final = _SMALL | {GOAL: 0.1, USERS: 0.52, CONSTRAINTS: 0.04, BLOCKED: 0.05, LATEST: 0.25, DONE: 0.07}
_CASES: Final = _WORK | {USERS: 0.33, LATEST: 0.15, DONE: 0.26, DECISIONS: 0.04, CONTEXT: 0.04}
_TALK: Final = dict.fromkeys(_WORK, 0.03) | {GOAL: 0.04, USERS: 0.0, CONSTRAINTS: 0.05, LATEST: 0.0, CONTEXT: 0.76}
"""The initial share of the room for each section: in a span with work on files, with other tool calls, and in talk
without any."""

_REPORT_MARK: Final = re.compile(r' \((?:answered|then reported): "[^\n]{1,300}"\)$')
"""The agent's answer to a user's question, or its report on a request, at the end of the line."""
_CODE: Final = re.compile(r"^ {0,8}```.*?```", re.S | re.M)
_ACTS: Final = frozenset({EventType.USER_MESSAGE, EventType.TOOL_CALL})
_GREETING: Final = re.compile(
    r"(?:(?:hi|hey|hello|yo|(?:great|perfect|okay|ok)?\W{0,4}(?:thanks|thank you)(?: (?:so|very) much| a lot)?"
    r"(?: for (?:your|the|all your|all the) \w{1,12})?)\W{0,4}){1,2}(?:#{1,4}\w{1,12}#{1,4})?",
    re.I,
)
"""A message without content, also with a mark of the conversation's end."""


class SpanBody:
    """The body of a span's summary: those of HEADINGS that have content, in any number of tokens by `measure`.

    `previous_text` holds the earlier summaries that this one also replaces; its lines are carried over. It must be
    empty if the earlier summary stays visible. `focus` names the most important subjects.
    """

    def __init__(
        self, events: Sequence[Event], previous_text: str, digest: Digest, measure: Measure, focus: str = ""
    ) -> None:
        self._events, self._measure, self._digest = events, measure, digest
        previous = parse_sections(previous_text)
        self._messages = messages = _Messages(events, focus, previous)
        self._shares = _TALK if messages.is_talk else _WORK if digest.uses_files else _CASES
        self._earlier = earlier = {heading: previous.get(heading, []) for heading in HEADINGS}
        # An earlier summary's sections on current state describe the time before this span.
        before = {heading: [] if events else earlier[heading] for heading in STATES}
        # The newest texts of summaries before the last, which are not carried over, hold their findings and reports.
        past_lines = (*previous.get(PAST, ()), *(earlier[LATEST] if events else ()))
        self._undone = undone_titles(previous_text)
        self._past = [(line.seq, line.text.removeprefix(BEFORE_LAST)) for line in past_lines]
        work = SpanWork(events, previous_text, (*digest.files_modified, *digest.files_read))
        failing = work.failing() or without_counts(before[BLOCKED])
        notes, (decided, observed) = messages.notes, self._decided_and_observed()
        planned = {state: _lines((s.text for s in digest.plan if s.state == state), 0) for state in (PENDING, RUNNING)}
        dated_findings, carried = dated(observed, last_effect(events)), messages.context(earlier[CONTEXT])
        # In the order in which the sections choose: a sentence goes to the first section that takes it.
        self._candidates: Mapping[str, Sequence[SectionLine]] = {
            GOAL: self._divide_requests(is_whole=not previous_text),
            USERS: [],
            CONSTRAINTS: [*notes.preferences, *reversed(_lines(digest.constraints, 0)), *earlier[CONSTRAINTS]],
            BLOCKED: [*failed_checks(digest.checks), *failing, *messages.open_problems()],
            NOT_STARTED: planned[PENDING] if digest.plan else before[NOT_STARTED],
            IN_PROGRESS: [*planned[RUNNING], *(messages.open_calls or before[IN_PROGRESS])],
            LATEST: [],
            DONE: self._finished(work),
            DECISIONS: [*notes.decisions, *decided],
            NEXT: messages.next_steps() or before[NEXT],
            CONTEXT: [*notes.structure, *notes.others, *dated_findings, *carried],
        }

    def _divide_requests(self, *, is_whole: bool) -> Sequence[SectionLine]:
        """Return the candidates for the goal, and set the users' messages. `is_whole`: there is no earlier summary."""
        earlier, messages = self._earlier, self._messages
        is_later = [goal.text.startswith(LATER_REQUEST) for goal in earlier[GOAL]]
        has_beginning = not (messages.begins_later if is_whole else all(is_later))
        requests, others = requests_in(earlier[GOAL], earlier[USERS])
        others, self._left_out = split_left_out(others)
        asks = _lines(self._digest.asks, messages.last_seq)
        users = sorted([*requests[1:], *others], key=lambda line: line.seq)
        bare = [SectionLine(_REPORT_MARK.sub("", line.text), line.seq) for line in users]
        self._user_messages = [*bare, *messages.user_messages()] or asks
        goal = _goal(requests, messages, asks, has_beginning=has_beginning)
        shown = {line.text.removeprefix(LATER_REQUEST) for line in goal}
        reported = [*messages.with_reports(), *(line for line in reversed(users) if _REPORT_MARK.search(line.text))]
        self._with_reports = [line for line in reported if _REPORT_MARK.sub("", line.text) not in shown]
        return opening(requests, asks) if messages.is_talk else goal

    def _decided_and_observed(self) -> tuple[Sequence[SectionLine], Sequence[SectionLine]]:
        """Return the decisions, and the findings without a choice, of the span and of earlier summaries."""
        messages = self._messages
        new, old = messages.decisions(), decisions(self._past, ())
        decided = interleave(new, ranked_decisions([*self._earlier[DECISIONS], *old]))
        findings = [one for one in interleave(new, old) if not (messages.is_talk or one.seq in messages.commit_seqs)]
        observed = [one for one in findings if is_observation(one.text)]
        return [line for line in decided if line not in observed], observed

    def _finished(self, work: SpanWork) -> Sequence[SectionLine]:
        """Return the lines on finished work: in a span with work on files the reports first."""
        reported = [*without_counts(self._earlier[DONE]), *finished_work(self._past)]
        undone = [words for title in self._undone if (words := content_words(title))]
        # A line with half of the words of a commit's title is on that commit.
        reported = [one for one in reported if not any(len(t & content_words(one.text)) * 2 >= len(t) for t in undone)]
        reported = [*interleave(self._messages.done(), reported)]
        return [*reported, *work.done()] if self._digest.uses_files else interleave(work.done(), reported)

    def write(self, max_tokens: int) -> str:
        """Write the body in at most `max_tokens` tokens. If not even the headings fit, it is cut off at its end."""
        messages, shares = self._messages, self._shares
        candidates = dict(self._candidates)
        if not messages.is_talk:
            candidates[USERS] = _newest_first(self._user_messages, shares[USERS] * max_tokens)
            candidates[LATEST] = messages.latest(int(shares[LATEST] * max_tokens * TEXT_SHARE), self._measure)
        late = {USERS: self._with_reports}
        longer = {} if messages.is_talk else {LATEST: lambda tokens: messages.latest(tokens, self._measure)}
        sections = [
            Section(heading, lines, shares[heading], late.get(heading, ()), longer.get(heading))
            for heading, lines in candidates.items()
        ]
        next(section for section in sections if section.heading == USERS).left_out = self._left_out
        spare = CONTEXT if messages.is_talk else USERS
        text = fill_sections(HEADINGS, sections, self._measure, max_tokens, spare=spare)
        acts = any(not (reads_only(one.text) or is_check(one.text)) for one in self._digest.commands)
        nothing = UNDECIDED if acts else NOTHING.rstrip(".")
        only_called = f"{nothing}; called {_tools(self._events)}."
        return only_called if text == NOTHING and self._events and self._measure(only_called) <= max_tokens else text


def _goal(
    earlier: Sequence[SectionLine], messages: "_Messages", asks: Sequence[SectionLine], *, has_beginning: bool
) -> Sequence[SectionLine]:
    """Return the first request and the newest one.

    If the conversation began before this part, the first is marked as a later request, or left out if it is an answer
    or a question.
    """
    goal = goals(earlier, messages.user_messages()) or asks[:1]
    if not goal or has_beginning:
        return goal
    first = [SectionLine(LATER_REQUEST + goal[0].text, goal[0].seq)] if is_task(goal[0].text) else []
    return [*first, *goal[1:]]


def _tools(events: Sequence[Event]) -> str:
    """Return the tools that were called, each with the number of its calls."""
    counts = Counts(event.tool or "a tool" for event in events if event.type is EventType.TOOL_CALL)
    return ", ".join(f"{tool} x{count}" for tool, count in counts.items()) or "no tool"


def extract_turn_start(events: Sequence[Event], max_tokens: int, measure: Measure, focus: str = "") -> str:
    """Write the body for the first part of a turn whose rest stays verbatim, under TURN_START_HEADINGS."""
    digest, messages = digest_of(events), _Messages(events, focus, {})
    request = next((SectionLine(ask, e.seq) for e in messages.users if (ask := ask_of(e.text))), None)
    requests = [request] if request else _lines(digest.asks[-1:], 0)
    next_steps, work = messages.next_steps(), SpanWork(events, files=(*digest.files_modified, *digest.files_read))
    done = [*interleave(work.done(), messages.done()), *messages.ranked]
    early = [line for line in done if line not in next_steps]
    failed = [*failed_checks(digest.checks), *work.failing()]
    suffix = [*next_steps, *failed, *messages.open_calls, *messages.newest()]
    sections = [Section(REQUEST, requests, 0.3), Section(EARLY, early, 0.35), Section(SUFFIX, suffix, 0.35)]
    return fill_sections(TURN_START_HEADINGS, sections, measure, max_tokens, spare=EARLY)


class _Messages:
    """The messages of a span by author, and their most central sentences."""

    def __init__(self, events: Sequence[Event], focus: str, previous: Mapping[str, Sequence[SectionLine]]) -> None:
        self._events = events
        # Without tool calls (or in a summary of mostly quotes), the words are the only content.
        quoted = len(previous.get(CONTEXT, ())) * 2 > sum(len(lines) for lines in previous.values())
        self.is_talk = not any(e.type is EventType.TOOL_CALL for e in events) if events else quoted
        self.users = list(own_messages(events))
        self.last_seq = events[-1].seq if events else 0
        first = next((event for event in events if event.type in _ACTS), None)
        self.begins_later = first is not None and first.turn > (0 if first.type is EventType.TOOL_CALL else 1)
        """Whether a turn began before the span: it begins with a call, or with a message of a turn after the first."""
        self._assistant_texts = [(e.seq, e.text) for e in events if e.type is EventType.ASSISTANT_MESSAGE and e.text]
        self._reports, refuted = reports_of(events)
        self._commits = commits_of(events)
        self.commit_seqs = {one.seq for one in self._commits}
        """The seqs of the calls that committed; their messages give reasons for changes, so none is a finding."""
        self._unrefuted = [one for one in self._assistant_texts if one[0] not in refuted]
        self._stands = without_discarded(self._unrefuted, events, [event.seq for event in self.users])
        self._focus = content_words(focus)
        users = [(e.seq, e.text) for e in self.users]
        self._user_seqs = {seq for seq, _ in users}
        texts = sorted([*users, *self._assistant_texts])
        self._sentences = {seq: sentences_of([(seq, text)]) for seq, text in texts}
        self.ranked = central(self._sentences_of(texts), self._focus)
        """All distinct sentences, the most central first."""
        self.open_calls = _open_calls(events)
        self._earlier_texts = [(line.seq, line.text) for line in previous.get(LATEST, ())]
        self._user_lines = list(user_lines(events, self._earlier_texts[-1][1] if self._earlier_texts else ""))
        self.notes = notes_of(events)

    def _sentences_of(self, texts: Iterable[tuple[int, str]]) -> Sequence[Sentence]:
        return [sentence for seq, _ in texts for sentence in self._sentences[seq]][-CANDIDATES_MAX:]

    def user_messages(self) -> Sequence[SectionLine]:
        """Return the users' messages on one line each with the questions that they answer, oldest first."""
        lines = ((seq, words, asked) for seq, words, asked in self._user_lines if not _GREETING.fullmatch(words))
        return [SectionLine(with_question(words, asked), seq) for seq, words, asked in lines]

    def with_reports(self) -> Sequence[SectionLine]:
        """Return the users' short messages, newest first, each with a statement of the report that ended its turn.

        A question gets the first statement, a request the first one on finished work. The newest texts of the span are
        left out, since they are quoted.
        """
        reports = {at: text for at, text in self._stands[:-NEWEST_TEXTS] if at in self._reports}
        found: list[SectionLine] = []
        for (seq, words, asked), (end, _, _) in pairwise([*self._user_lines, (self.last_seq, "", "")]):
            report = next((reports[at] for at in range(end - 1, seq, -1) if at in reports), "")
            is_question = words.endswith("?") and not asked
            done = () if is_question else finished_statements(report)
            answer = first_statement(report, LONG_CHARS) if is_question else next(iter(done), "")
            if answer and max(len(words), len(answer)) <= LONG_CHARS and not is_bare_rejection(words):
                mark = "answered" if is_question else "then reported"
                found.append(SectionLine(f'{with_question(words, asked)} ({mark}: "{answer}")', seq))
        return found[::-1]

    def latest(self, tokens: int, measure: Measure) -> Sequence[SectionLine]:
        """Return the newest assistant texts with content, newest first; long ones by some of their sentences.

        If there are no events, the texts of the earlier summaries are used. Texts before the user's last message are
        marked.
        """
        room = int(tokens * CHARS_PER_TOKEN)
        last = max((seq for seq, words, _ in self._user_lines if not _GREETING.fullmatch(words)), default=0)
        found: list[SectionLine] = []
        texts = self._stands if self._events else self._earlier_texts
        for seq, text in [one for one in texts if has_content(one[1].removeprefix("… "))][: -NEWEST_TEXTS - 1 : -1]:
            most = room if not found else int(room * LONG_SHARE)
            text = own_words(_CODE.sub("[code]", text))
            line = condense(text, most, may_cut=not found)
            if not found and (taken := measure(f"- {line}\n")) > tokens:
                line = condense(text, most * tokens // taken)
            if line:
                found.append(SectionLine(f"{BEFORE_LAST if 0 < seq < last else ''}{line}", seq))
                room -= len(line)
        return found

    def open_problems(self) -> Sequence[SectionLine]:
        """Return the problems reported after the last call or message that may have solved them, the newest first."""
        settled = max([last_effect(self._events), *(e.seq for e in self.users if reports_success(e.text))])
        found: list[SectionLine] = []
        for seq, text in reversed(self._unrefuted):
            if seq <= settled:
                break
            found += [SectionLine(UNRESOLVED + one, seq) for one in problems(text)]
            if reports_success(text):
                break
        return found

    def newest(self) -> Sequence[SectionLine]:
        """Return the sentences of the newest assistant texts, the newest text first."""
        return self._sentences_of(self._assistant_texts[: -NEWEST_TEXTS - 1 : -1])

    def context(self, earlier: Sequence[SectionLine]) -> Sequence[SectionLine]:
        """Return candidates for critical context: in talk the most telling messages, else the lines carried over."""
        if not self.is_talk:
            return earlier
        found = quotes(self._events, [line.text for line in earlier])
        if self._focus:
            found = sorted(found, key=lambda quote: self._focus.isdisjoint(content_words(quote.text)))
        return found

    def decisions(self) -> Sequence[SectionLine]:
        """Return the decisions and findings of the assistant that still stand, and those in its commits."""
        texts = [*self._stands, *((one.seq, f"{one.subject}\n\n{one.body}") for one in self._commits)]
        return decisions(sorted(texts), sorted(self._user_seqs), self._reports)

    def done(self) -> Sequence[SectionLine]:
        """Return the assistant's sentences on finished work that was not undone; see `finished_work`."""
        return finished_work(self._stands, self._reports)

    def next_steps(self) -> Sequence[SectionLine]:
        """Return the next steps in the newest assistant text, in its order."""
        newest = self._assistant_texts[-1:]
        return [one for seq, text in newest for one in self._sentences[seq] if states_next_step(one.text, text)]


def _open_calls(events: Sequence[Event]) -> Sequence[SectionLine]:
    """Return lines on the newest calls without a result."""
    answered = {e.call_seq for e in events if e.type is EventType.TOOL_RESULT}
    calls = [e for e in events if e.type is EventType.TOOL_CALL and e.seq not in answered]
    return [
        SectionLine(f"Waiting for the result of {e.tool}{f' with {given}' if given else ''}.", e.seq)
        for e in calls[-NEWEST_TEXTS:]
        for given in [plain_arguments(e.arguments)]
    ]


def _newest_first(lines: Sequence[SectionLine], tokens: float) -> Sequence[SectionLine]:
    """Return the lines that are not overlong, newest first, then all lines shortened.

    `fill_sections` skips those that it already has. Rejections without words come after the messages.
    """
    longest = int(tokens * LONG_SHARE * CHARS_PER_TOKEN)
    newest = sorted(reversed(lines), key=lambda line: is_bare_rejection(line.text))
    whole = [line for line in newest if len(line.text) <= max(longest, LONG_CHARS)]
    return [*whole, *(SectionLine(abridge_message(line.text, LONG_CHARS), line.seq) for line in newest)]


def _lines(texts: Iterable[str], seq: int) -> list[SectionLine]:
    return [SectionLine(text, seq) for text in texts]
