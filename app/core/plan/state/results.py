"""The tool results of a context with their calls: those that later ones repeat, and those that show files."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from posixpath import normpath
from typing import TYPE_CHECKING, Final

from app.core import dataclass, field
from app.core.lexicon.identifiers import FILES
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.checks import Check, covers
from app.core.memory.digest.commands import shown_paths
from app.core.memory.digest.files import NEW_TEXTS, OLD_TEXTS, FileUse, command_of, files_of, is_listing, patched_paths
from app.core.memory.digest.names import is_missing
from app.core.memory.digest.outcomes import ERROR, OK, is_idle, outcomes_of
from app.core.memory.digest.sentences import REQUEST_CHARS_MAX, is_refused, is_rejected, own_messages
from app.core.plan.state.items import Item

if TYPE_CHECKING:
    from app.core.plan.state.context import Context


@dataclass(frozen=True, slots=True)
class PairedResult:
    """A tool result and its call; `call` is None if it is not among the items."""

    result: Item
    call: Item | None

    def with_items(self, new: Mapping[int, Item]) -> "PairedResult":
        """Return the pair with these items in place of those of the same events; the same object if nothing changes."""
        result, call = self.result, self.call
        seq = result.event.call_seq if call is not None else None
        if result.event.seq not in new and seq not in new:
            return self
        return PairedResult(new.get(result.event.seq, result), call and new.get(call.event.seq, call))


@dataclass(frozen=True, slots=True)
class Repeats:
    """The tool results that later ones repeat, by the same call or by showing the whole file.

    `newer` maps the seq of a repeated result to that of its latest repetition; `changed` are those that the newest
    results repeat. `last` maps each key of a call (`Event.request_keys`) to the seqs of its results that are not
    repeated.
    """

    newer: Mapping[int, int]
    last: Mapping[str, tuple[int, ...]]
    changed: tuple[int, ...] = field(default=(), compare=False)

    def extend(self, pairs: Sequence[PairedResult]) -> "Repeats":
        """Return the repeats after appending `pairs`. Errors and results that are not shown whole repeat nothing."""
        newer, last, changed = dict(self.newer), dict(self.last), list[int]()
        for pair in pairs:
            event, call = pair.result.event, pair.call
            if call is None or call.event.body is None or event.is_error or pair.result.stub is not None:
                continue
            keys = call.event.request_keys
            for key in keys if call.event.has_single_argument else keys[:1]:
                repeated = last.pop(key, ())
                changed += repeated
                newer |= dict.fromkeys(repeated, event.seq)
            for key in keys:
                last[key] = (*last.get(key, ()), event.seq)
        return Repeats(newer, last, tuple(changed))


_WHOLE: Final = ("content", "contents", "file_text", "new_content")
"""Arguments that hold the whole file, of a call that writes a file."""
ARGUMENTS_TIMES: Final = 4
"""The factor by which arguments of calls stay in the working set longer than results."""
FOUND_TOKENS_MAX: Final = 800
"""The size above which a result of a search or a listing leaves the working set."""
FOUND_SHARE: Final = 0.1
"""The maximum share of what a forced reduction's goal leaves after the prefix that these results may take."""
DELETION_FACTOR: Final = 5
"""An edit only deletes if its old text is more than this many times as long as the new one."""
FILES_SHARE: Final = 0.7
"""The maximum share of a reduction's goal, the prefix aside, that the newest content of files may take."""
REPORT_TOKENS_MAX: Final = 800
"""The size above which the report that the newest request follows does not stay."""
REPORT_SHARE: Final = 0.06
"""Its maximum share of what the goal leaves after the prefix."""
PLAN_TURNS: Final = 3
"""The number of turns for which a plan stays."""
PLAN_SHARE: Final = 0.15
"""Its maximum share of what the goal leaves after the prefix."""
PLAN_TOKENS_MIN: Final = 150
"""The size below which a message is not a plan."""
_TITLE: Final = re.compile(r"^#{1,4} \S", re.M)
FAILURE_CALLS: Final = 20
"""The number of newest calls among which a check that failed is looked for."""
FAILURE_TOKENS_MAX: Final = 1_500
"""The largest output of a failed check that stays."""


@dataclass(frozen=True, slots=True)
class WorkedFiles:
    """The seqs of the events that show the newest content of each file, by path, the most recently used file last.

    `modified` are the seqs of the calls that were the first to modify each file, `used` those of the results of the
    calls that were the last to use it.
    """

    shown_by: dict[str, tuple[int, ...]] = field(default_factory=dict)
    modified: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)

    def seqs(self) -> frozenset[int]:
        """Return the seqs that show the newest content of any file."""
        return frozenset(chain.from_iterable(self.shown_by.values()))

    def extend(self, pairs: Sequence[PairedResult]) -> "WorkedFiles":
        """Return the files after these calls and their results. Calls that failed or were rejected are ignored."""
        shown_by, modified, used = dict(self.shown_by), dict(self.modified), dict(self.used)
        for pair in pairs:
            if pair.call is None or pair.call.event.body is None:
                continue
            result, call = pair.result.event, pair.call.event
            first_line = result.text if result.gist is None else result.gist
            if result.is_error or is_refused(result) or is_rejected(result) or is_missing(first_line):
                continue
            use = use_of(call)
            for path in map(normpath, use.read):
                before = shown_by.pop(path, ())
                shown_by[path] = (result.seq,) if _reads_all(call) else (*before, result.seq)
                used[path] = result.seq
            for path in map(normpath, use.modified):
                before = shown_by.pop(path, ())
                shown = before if _only_deletes(call) else (*(() if _writes_all(call) else before), call.seq)
                if shown:
                    shown_by[path] = shown
                modified.setdefault(path, call.seq)
                used[path] = result.seq
        return WorkedFiles(shown_by, modified, used)


def use_of(call: Event) -> FileUse:
    """Return the files of a call; for a shell command, including those that it prints and those of a patch in it."""
    return call.derive(_use_of)


def _use_of(call: Event) -> FileUse:
    arguments = call.arguments
    use = files_of(call.tool or "", arguments)
    command = command_of(call.tool or "", arguments)
    if command is None:
        return use
    changed = patched_paths(command) if "*** Begin Patch" in command else ()
    return FileUse(shown_paths(command), tuple(dict.fromkeys((*use.modified, *changed))))


def ranked_files(context: "Context", calls: int | None = None) -> tuple[int, ...]:
    """Return the seqs that show the newest content of files, the most valuable first: of recently used files, in recent
    turns.

    If `calls` is given, only the working set: content stays in it for `calls` tool calls after the last use of its
    file, in the next turn for half as many, and so on. Arguments of calls, which are short, stay four times as long.
    """
    pairs, files = context.paired_results, context.worked_files
    newest = pairs if calls is None else pairs[-ARGUMENTS_TIMES * calls :]
    results = [pair.result.event.seq for pair in newest]
    ranks: dict[int, int] = {}
    for path, seqs in reversed(files.shown_by.items()) if calls != 0 else ():
        if files.used[path] < results[0]:
            break  # it was used too long ago, and so were all before it
        age = len(results) + 1 - bisect_left(results, seqs[-1])
        for item in filter(None, map(context.item, seqs)):
            rank = age * (1 + context.turn - item.event.turn) * (1 if item.event.call_seq is None else ARGUMENTS_TIMES)
            if calls is None or rank <= ARGUMENTS_TIMES * calls:
                ranks[item.event.seq] = min(rank, ranks.get(item.event.seq, rank))
    return tuple(sorted(ranks, key=lambda seq: (ranks[seq], -seq)))


def short_search_results(context: "Context", calls: int) -> Iterator[int]:
    """Yield the seqs of the short results of searches and listings among the newest `calls` calls of the running turn.

    The next steps often use several of the places found.
    """
    for pair in reversed(context.paired_results[-calls:] if calls else ()):
        call, result = pair.call, pair.result.event
        if result.turn != context.turn:
            return
        if call is None or call.event.body is None or result.tokens > FOUND_TOKENS_MAX:
            continue
        if call.event.derive(_finds):
            yield result.seq


def _finds(call: Event) -> bool:
    command = command_of(call.tool or "", call.arguments)
    return is_listing(call.tool or "") if command is None else is_idle(command)


def held_content(context: "Context", calls: int, goal: int) -> tuple[int, ...]:
    """Return the seqs of the content that a forced reduction leaves whole, the most valuable first.

    This is the report that the newest request follows and the plan that the user gave before, then the output of a
    check that still fails, the newest content of all files, worked on or not, and short results of the newest searches,
    as far as these fit into their shares of what `goal` leaves after the prefix: an error to mend and text that an edit
    may quote are worth more than anything else that could stay. Empty if no working set is kept (`calls` is 0).
    """
    free = _free(context, goal)
    room, listed = int(FILES_SHARE * free), int(FOUND_SHARE * free)
    held = list(held_messages(context, goal)) if calls else []
    failure = open_failure(context) if calls else None
    content = map(context.item, ranked_files(context) if calls else ())
    for item in filter(None, (failure, *content)):
        if item.stub is None and item.tokens <= room:
            held.append(item.event.seq)
            room -= item.tokens
    for item in filter(None, map(context.item, short_search_results(context, calls))):
        if item.stub is None and item.tokens <= listed and item.event.seq not in held:
            held.append(item.event.seq)
            listed -= item.tokens
    return tuple(held)


def held_messages(context: "Context", goal: int) -> tuple[int, ...]:
    """Return the seqs of the report that the newest request follows, and of the plan that the user gave before."""
    free = _free(context, goal)
    report = last_report(context, min(REPORT_TOKENS_MAX, int(REPORT_SHARE * free)))
    plan = last_plan(context, int(PLAN_SHARE * free))
    return tuple(item.event.seq for item in (report, plan) if item is not None)


def _free(context: "Context", goal: int) -> int:
    return max(0, goal - sum(event.tokens for event in context.prefix) - context.ephemeral_tokens)


def last_report(context: "Context", most: int) -> Item | None:
    """Return the message of the agent that the newest request answers or follows; None if it is not shown whole.

    Only one of at most `most` tokens that ended its turn.
    """
    following = EventType.USER_MESSAGE
    for unit in reversed(context.units):
        item = unit.items[-1]
        if item.event.turn < context.turn and item.event.type is EventType.ASSISTANT_MESSAGE:
            calls = any(one.event.type is EventType.TOOL_CALL for one in unit.items)
            ended = following is EventType.USER_MESSAGE and not calls
            return item if ended and item.stub is None and item.tokens <= most else None
        following = item.event.type
    return None


def last_plan(context: "Context", most: int) -> Item | None:
    """Return the newest long request of the last PLAN_TURNS turns that has headings; None if it is not shown whole.

    A summary holds only its beginning. Only one of at most `most` tokens, which the user wrote or accepted.
    """
    recent = (item for item in context.items if item.event.turn >= context.turn - PLAN_TURNS)
    requests = (i for i in recent if i.event.type is EventType.USER_MESSAGE and i.event.tokens >= PLAN_TOKENS_MIN)
    long = [i for i in requests if len(i.event.text) > REQUEST_CHARS_MAX and len(_TITLE.findall(i.event.text)) > 1]
    if not long:
        return None
    own = {event.seq for event in own_messages(item.event for item in context.items)}
    newest = next((item for item in reversed(long) if item.event.seq in own), None)
    return newest if newest is not None and newest.stub is None and newest.tokens <= most else None


def open_failure(context: "Context") -> Item | None:
    """Return the result of the running turn's newest check that failed and has not passed since; None without one.

    None also if that result is a stub or large.
    """
    passed: list[Check] = []
    for pair in reversed(context.paired_results[-FAILURE_CALLS:]):
        result = pair.result.event
        if result.turn != context.turn:
            return None
        command = None if pair.call is None else command_of(result.tool or "", pair.call.event.arguments)
        for check, state, _ in outcomes_of(command, result) if command else ():
            if state == ERROR and not any(covers(later, check) for later in passed):
                return pair.result if result.tokens <= FAILURE_TOKENS_MAX and pair.result.stub is None else None
            if state == OK:
                passed.append(check)
    return None


def _reads_all(call: Event) -> bool:
    """Return whether a call that reads a file names no part of it."""
    arguments = call.arguments.items()
    return all(value is None or name in FILES or (name, value) == ("command", "view") for name, value in arguments)


def _only_deletes(call: Event) -> bool:
    """Return whether an edit leaves little or no text in place of the old one."""
    old, new = (
        [value for name in names if isinstance(value := call.arguments.get(name), str)]
        for names in (OLD_TEXTS, NEW_TEXTS)
    )
    return bool(old and new) and len(new[0]) * DELETION_FACTOR < len(old[0])


def _writes_all(call: Event) -> bool:
    return any(isinstance(call.arguments.get(name), str) for name in _WHOLE)
