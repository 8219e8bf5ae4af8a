"""Statements of the log about goals, changes, commits and conclusions."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise, zip_longest
from typing import Final

from app.core.lexicon.identifiers import DEFINITION
from app.core.lexicon.words import content_words
from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest.answers import INTERRUPTED
from app.core.memory.digest.calls import calls_in
from app.core.memory.digest.files import edits_in, has_committed, undone_changes
from app.core.memory.digest.outcomes import OK
from app.core.memory.digest.sentences import abridge_message, own_words
from app.core.memory.extractive.quotes import TELLING_WORDS, Sentence, distinct
from app.core.memory.extractive.sections import FIRST_REQUEST, LATER_REQUEST, SectionLine
from app.core.memory.extractive.statements import findings, finished_statements, is_diagnosis, refutes, worth_of

NAMES_MAX: Final = 4
NAME_CHARS_MAX: Final = 60
ADDED, REMOVED, EDITED = "added", "removed", "edited"
MORE: Final = ", etc"
"""The end of a line whose names are not all that was changed."""

FILE_LINE: Final = re.compile(
    r"^- (Changed|Wrote|Deleted) ([^\s,:]{1,200}?)(?: x(\d{1,6}))?(?:: ([^\n]{1,600}))?\.$", re.M
)
"""A line on the changes of a file: the verb, the file's name, the number of changes and the names in it."""
BY_COMMANDS: Final = re.compile(r"^- Changed by commands: ([^\n]{1,2000})\.$", re.M)
"""The line on the files that shell commands changed, each with the number of these commands."""
FILES_MAX: Final = 12
"""The number of newest files in that line."""

_OUTER: Final = re.compile(
    r"[ \t]{0,4}(?:export |pub |async |default |static |public |private )*"
    r"(?:func|type|def|class|fn|function|interface|struct|enum)\b"
)
"""Lines whose definitions are worth naming; variables within a function are not."""
_STRING: Final = re.compile(r"(`{1,3}|\"{3}|'{3}).*?\1", re.S)
"""A string that may have several lines, or a fence of Markdown: code in it defines nothing."""
_CONFLICT: Final = re.compile(r"^(?:<<<<<<<|>>>>>>>) ", re.M)
_BETWEEN: Final = re.compile(r"\s*(?:(?://|#|/?\*|@)[^\n]*)?")
"""Lines that belong to the next definition: empty ones, comments and decorators."""


@dataclass(slots=True)
class FileChange:
    """The changes of one file: their number, the seq of the newest, and a state for each changed definition's name.

    `commands` counts the shell commands that wrote it, which are not among the `times`. If it `has_more`, some of the
    changes were outside the named definitions.
    """

    times: int = 0
    commands: int = 0
    seq: int = 0
    is_new: bool = False
    is_gone: bool = False
    has_more: bool = False
    names: dict[str, str] = field(default_factory=dict)

    def add(self, times: int, seq: int, names: Mapping[str, str], commands: int = 0) -> None:
        """Count more changes, from zero if the file was deleted; a name that was added and then removed is dropped."""
        if self.is_gone:
            self.times, self.commands, self.names = 0, 0, {}
            self.is_new, self.is_gone, self.has_more = True, False, False
        self.times += times
        self.commands += commands
        self.seq = max(self.seq, seq) if self.seq > 0 else seq  # below 0 are lines of earlier summaries, in order
        self.has_more |= times > 0 and not names
        for name, done in names.items():
            before = self.names.pop(name, None)
            if before == ADDED and done == REMOVED:
                continue
            self.names[name] = ADDED if before == ADDED and done == EDITED else done

    def forget(self, arguments: Mapping[str, Json]) -> None:
        """Drop the added names that an edit removes outside their definition: they were renamed or removed before."""
        for old, new in edits_in(arguments):
            for name in [name for name, done in self.names.items() if done == ADDED]:
                word = re.compile(rf"\b{re.escape(name)}\b")
                if name not in _defined(old) and word.search(old) and not word.search(new):
                    del self.names[name]

    def take_back(self, change: "FileChange") -> None:
        """Undo a change or the deletion, after which the earlier changes count again."""
        if change.is_gone:
            self.is_gone = False
        else:
            self.times = max(0, self.times - change.times)
            self.commands = max(0, self.commands - change.commands)
            self.names = {name: done for name, done in self.names.items() if name not in change.names}

    def line(self, name: str, *, counted: bool) -> SectionLine:
        """Describe the file's changes in one line, with their number if all are `counted` and the file is not new."""
        if self.is_gone:
            return SectionLine(f"Deleted {name}.", self.seq)
        verb = "Wrote" if self.is_new else "Changed"
        times = f" x{self.times}" if self.times > 1 and counted and not self.is_new else ""
        shown = list(self.names.items())[-NAMES_MAX:]
        more = MORE if shown and (self.has_more or len(shown) < len(self.names)) else ""
        parts = [
            f"{done} {', '.join(one for one, what in shown if what == done)}"
            for done in (REMOVED, ADDED, EDITED)
            if any(what == done for _, what in shown)
        ]
        return SectionLine(f"{verb} {name}{times}{': ' if parts else ''}{', '.join(parts)}{more}.", self.seq)


def by_commands(changes: Mapping[str, FileChange], *, counted: bool) -> Sequence[SectionLine]:
    """Return the line on the newest files that shell commands changed; none without any. `changes` are by file.

    If they are all `counted`, with the number of commands.
    """
    written = sorted((one.seq, name, one.commands) for name, one in changes.items() if one.commands and not one.is_gone)
    if not written:
        return ()
    files = [f"{name} x{times}" if times > 1 and counted else name for _, name, times in written[-FILES_MAX:]]
    return (SectionLine(f"Changed by commands: {', '.join(files)}.", written[-1][0]),)


def parse_changes(text: str) -> Iterator[tuple[str, FileChange]]:
    """Yield the changes in lines of earlier summaries, each with the file's name."""
    for listed in BY_COMMANDS.findall(text):
        for number, one in enumerate(listed.split(", ")):
            name, _, times = one.partition(" x")
            yield name, FileChange(seq=number - len(text), commands=int(times or 1))
    for number, (verb, name, times, listed) in enumerate(FILE_LINE.findall(text)):
        if verb == "Deleted":
            yield name, FileChange(seq=number - len(text), is_gone=True)
            continue
        change = FileChange(is_new=verb == "Wrote")
        names: dict[str, str] = {}
        done = EDITED
        change.has_more = listed.endswith(MORE)
        for word in listed.removesuffix(MORE).replace(",", "").split():
            if word in (ADDED, REMOVED, EDITED):
                done = word
            else:
                names[word] = done
        change.add(int(times or 1), number - len(text), names)
        yield name, change


def definitions(arguments: Mapping[str, Json]) -> dict[str, str]:
    """Return the definitions that an edit adds, removes or edits; none of a conflict, which shows two sides."""
    found: dict[str, str] = {}
    for old, new in edits_in(arguments):
        before, after = ({}, {}) if _CONFLICT.search(old) else (_defined(old), _defined(new))
        found |= {name: REMOVED for name in before if name not in after}
        # An edit often repeats the definition beside which it adds another.
        found |= {name: EDITED if name in before else ADDED for name in after if before.get(name) != after[name]}
    return found


def _defined(text: str) -> Mapping[str, str]:
    """Return the names that a text defines, each with its definition up to the next one."""
    found: dict[str, str] = {}
    lines = text.split("\n")
    code = _STRING.sub(lambda quoted: "\n" * quoted[0].count("\n"), text).split("\n")
    begins = [number for number, line in enumerate(code) if _OUTER.match(line)]
    for begin, end in pairwise([*begins, len(lines)]):
        while _BETWEEN.fullmatch(lines[end - 1]) and end - 1 > begin:
            end -= 1
        # A name before a dot is not a definition.
        names = (name for name in DEFINITION.findall(code[begin]) if f"{name}." not in code[begin])
        found |= {name: "\n".join(lines[begin:end]) for name in names if len(name) <= NAME_CHARS_MAX}
    return found


_MESSAGE: Final = re.compile(
    r"\bgit commit\b[^\n]{0,200}?-[a-z]{0,3}m[ =]?"
    r"(?:\"\$\(cat <<-?\s{0,4}['\"]?(\w{1,20})['\"]?\n(.{1,4000}?)\n\s{0,8}\1\b|\"([^\"]{1,2000})\"|'([^']{1,2000})')",
    re.S,
)
_UNDONE: Final = re.compile(r"\bgit reset (?:--\w{1,10} )?HEAD[~^]|\bgit commit\b[^\n]{0,200} --amend\b")
_TRAILER: Final = re.compile(r"^[A-Z][\w-]{1,40}: [^\n]*$", re.M)
_WRAPPED: Final = re.compile(r"(?<=\S)\n(?!\n|\s{0,8}(?:[-*•]|\d{1,2}[.)])\s)")
"""A line break within a paragraph."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's seq, the first line of its message, and the rest without trailers."""

    seq: int
    subject: str
    body: str


def commits_of(events: Sequence[Event]) -> Sequence[Commit]:
    """Return the commits whose calls succeeded, oldest first, without those that a reset or an amendment replaced."""
    found: list[Commit] = []
    for call in calls_in(events):
        command = call.command
        if not command or "git " not in command or call.state != OK:
            continue
        if _UNDONE.search(command):
            found = found[:-1]
        for message in _MESSAGE.finditer(command):
            subject, _, body = next(filter(None, message.groups()[1:])).strip().partition("\n")
            found.append(Commit(call.seq, subject.strip(), _WRAPPED.sub(" ", _TRAILER.sub("", body)).strip()))
    return found


def reports_of(events: Sequence[Event]) -> tuple[Collection[int], Collection[int]]:
    """Return the seqs of the assistant's texts that end a turn, and of those that the next message refutes."""
    reports: set[int] = set()
    refuted: set[int] = set()
    last: Event | None = None
    for event in events:
        if event.type is EventType.USER_MESSAGE and last is not None:
            reports.add(last.seq)
            if refutes(own_words(event.text)):
                refuted.add(last.seq)
        last = event if event.type is EventType.ASSISTANT_MESSAGE and event.text else None
    return reports, refuted


def without_discarded(
    texts: Sequence[tuple[int, str]], events: Sequence[Event], user_seqs: Sequence[int]
) -> Sequence[tuple[int, str]]:
    """Return the texts, given with their seqs, without those on work that a hard reset or a checkout threw away.

    These follow the last commit that remains. Texts between the user's last message and the reset may be about new
    work, and stay.
    """
    commits: list[int] = []
    gone: set[int] = set()
    for call in calls_in(events):
        if call.command is None or call.result is None:
            continue
        for back in () if "stash" in call.command else undone_changes(call.command, call.state):
            commits = commits[: max(0, len(commits) - back.commits)]
            if not (back.paths or back.keeps_changes):
                since, until = max(commits, default=0), max((seq for seq in user_seqs if seq < call.seq), default=0)
                gone.update(seq for seq, _ in texts if since < seq < until)
        if has_committed(call.command, call.result.text):
            commits.append(call.seq)
    return [one for one in texts if one[0] not in gone]


def decisions(
    texts: Sequence[tuple[int, str]], user_seqs: Sequence[int], reports: Collection[int] = ()
) -> Sequence[SectionLine]:
    """Return decisions and findings with their reasons, the best first; of equals the newest first.

    `texts` are texts with their seqs, `reports` the seqs of those that end a turn. A diagnosis that a later one of its
    turn replaced is left out.
    """
    found = [(seq, worth, text) for seq, whole in texts for worth, text in findings(whole, ends_turn=seq in reports)]
    kept = _newest_diagnoses(found, user_seqs)
    worths = {(seq, text): worth for seq, worth, text in kept}
    chosen = _distinct_lines([(seq, text) for seq, _, text in kept])
    return sorted(chosen, key=lambda line: -worths[line.seq, line.text])


def _newest_diagnoses(
    found: Iterable[tuple[int, float, str]], user_seqs: Sequence[int]
) -> Sequence[tuple[int, float, str]]:
    """Return the findings, given oldest first, without diagnoses that a later one of their turn replaced."""
    kept: list[tuple[int, float, str]] = []
    later: set[int] = set()
    for seq, worth, text in reversed(list(found)):
        turn = bisect_left(user_seqs, seq)
        if is_diagnosis(text):
            if turn in later:
                continue
            later.add(turn)
        kept.append((seq, worth, text))
    return kept


def finished_work(texts: Sequence[tuple[int, str]], reports: Collection[int] = ()) -> Sequence[SectionLine]:
    """Return the sentences that only report finished work: those of reports first, then those of the newest texts.

    The first sentence of every report comes before the second of any, so that most of the work is named.
    """
    newest = [(seq, [(seq, one) for one in finished_statements(text)]) for seq, text in reversed(texts)]
    by_rank = zip_longest(*(found for seq, found in newest if seq in reports))
    others = (one for seq, found in newest if seq not in reports for one in found)
    return _distinct_lines([*filter(None, chain.from_iterable(by_rank)), *others])


def ranked_decisions(lines: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Return the decisions of earlier summaries, the best first; of equals the newest first."""
    return sorted(lines, key=lambda line: (-worth_of(line.text), -line.seq))


def _distinct_lines(found: Sequence[tuple[int, str]]) -> Sequence[SectionLine]:
    """Return the sentences with enough content words; only the first of similar ones."""
    candidates = [Sentence(text, seq, content_words(text)) for seq, text in found]
    return [one for one in distinct(candidates) if len(one.words) >= TELLING_WORDS]


LATER_REQUEST_CHARS_MAX: Final = 240
REQUEST_WORDS: Final = 3
"""The number of content words below which a message (`commit this`) says little about the work."""
CORRECTED: Final = 0.6
"""The least share of common words with which the next message, if it begins alike, corrects a first one."""

_ASIDE: Final = re.compile(r" \((?:asked|about): \"|\(reject(?:ing|ed): |^Rejected\b|^/|^(?:[A-H]|\d{1,2})[.)]")
"""Marks of a reply, of a rejected call, of a command, and of one entry of a list."""
_MARK: Final = re.compile(f"^(?:{FIRST_REQUEST}|{LATER_REQUEST})")
_REJECTED: Final = re.compile(r"\(reject(?:ing|ed): |^Rejected\b.{0,20}: ")
_WONDERS: Final = re.compile(
    r"[-=+>~|<{[]|(?:(?:and|but|also|so|ok|okay|hmm+|q:?|question:?|wondering:?)\b[ ,:]{0,3})*"
    r"(?:why|what|how|where|when|who|which|is|are|does|do|did|has|have|was|were|wondering)\b",
    re.I,
)
"""The beginning of a question that requests no work, or of a text that the user copied."""


def requests_in(
    goals: Sequence[SectionLine], messages: Sequence[SectionLine]
) -> tuple[list[SectionLine], list[SectionLine]]:
    """Return the requests in the goals and the users' messages of earlier summaries, without marks, and the other
    messages.

    A later request that stands under a goal follows the messages of its own summary.
    """
    requests = [line for line in messages if line.text.startswith(LATER_REQUEST)]
    numbers = {line.seq for line in (*goals, *messages)}
    for goal in goals:
        heading = _number_after(goal.seq, numbers)
        end = _number_after(heading + 1, numbers)
        # A heading ends the messages, so no other line has this number.
        follows = goal.text.startswith(LATER_REQUEST) and end > heading + 1
        requests.append(SectionLine(goal.text, end) if follows else goal)
    bare = [SectionLine(_MARK.sub("", one.text), one.seq) for one in requests]
    return sorted(bare, key=lambda line: line.seq), [line for line in messages if line not in requests]


def _number_after(number: int, numbers: Collection[int]) -> int:
    """Return the first number from `number` on that no line has: that of a heading or blank line."""
    return next(after for after in count(number) if after not in numbers)


def goals(earlier: Sequence[SectionLine], messages: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Return the first request and, if it differs, the newest; without a request, the first message.

    `earlier` are the goals of earlier summaries, `messages` those of the users since, with the questions
    that they answer.
    """
    requests = [line for line in (*earlier, *messages) if is_request(line.text)]
    if not requests:
        return [line for line in (*earlier[:1], *messages) if not _REJECTED.search(line.text)][:1]
    first = requests[1] if len(requests) > 1 and _corrects(requests[1], requests[0]) else requests[0]
    latest = next((line for line in reversed(requests) if is_task(line.text)), first)
    if latest.text == first.text or latest.seq < first.seq:
        return [first]
    return [first, SectionLine(LATER_REQUEST + abridge_message(latest.text, LATER_REQUEST_CHARS_MAX), latest.seq)]


def is_request(text: str) -> bool:
    """Return whether a user's message asks for work, and is no answer, command or entry of a list."""
    return not _ASIDE.search(text) and len(content_words(text)) >= REQUEST_WORDS


def is_task(text: str) -> bool:
    """Return whether a user's message is a request, and more than a question."""
    return is_request(text) and _WONDERS.match(text) is None


def _corrects(later: SectionLine, first: SectionLine) -> bool:
    """Return whether a message repeats, in other words, one that the agent had not acted on."""
    if not (0 <= first.seq == later.seq - 1 or first.text.endswith(INTERRUPTED)):
        return False  # adjacent lines of an earlier summary, whose seqs are negative, are not adjacent messages
    ours, theirs = content_words(later.text), content_words(first.text.removesuffix(INTERRUPTED))
    begins = later.text.split(" ", 1)[0] == first.text.split(" ", 1)[0]
    return begins and len(ours & theirs) >= CORRECTED * max(len(ours), len(theirs))


_WANTED: Final = re.compile(
    r"\b(?:please|(?:can|could|would|will) you|help (?:me|us|with)|i(?:['’]d| would) like|(?:i|we) (?:want|need)"
    r"|i['’]m (?:trying|looking)|how (?:do|can|should|would) (?:i|we)|(?:tell|give|show|teach|remind) (?:me|us))\b"
    r"|^(?!.{0,80}(?:\w: |\b(?:how|what about)(?: \w{2,4})? you\b))[^\n]*\?$"
    r"|^\W{0,4}(?:(?:now|then|and|also|ok(?:ay)?|so)[ ,]{1,3})?(?:explain|write|find|list|compare|translate"
    r"|summari[sz]e|plan|suggest|draft|check|fix|review|make|create|add|describe|calculate|convert|recommend|book"
    r"|cancel|change|sort|print|draw|let['’]s)\b",
    re.I,
)
"""Words of a request in a talk without tools; a question only if no speaker is named and it asks for no well-being."""
_ENGLISH: Final = re.compile(r"\b(?:the|an?|i|you|it|is|and|to|of|that|for)\b", re.I)
"""Words without which a message is probably in a language whose requests _WANTED does not know."""


def opening(goal: Sequence[SectionLine], asks: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Return the first request of a talk, then the others, the newest first; other words of a talk are no goal."""
    wanted = [ask for ask in asks if _WANTED.search(ask.text) or not _ENGLISH.search(ask.text)]
    first = [*goal[:1], *(wanted[:1] if not goal else ())]
    return [*first, *reversed(wanted[0 if goal else 1 :]), *goal[1:]]
