"""The digest of a span: facts that are extracted mechanically and never left to a model."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest.calls import CallWithResult, PlanStep, Task, calls_in, plan_of, tasks_in
from app.core.memory.digest.commands import moved_paths, programs, removed_paths
from app.core.memory.digest.files import (
    brings_changes,
    changes_nothing,
    deleted_by_commit,
    files_of,
    has_committed,
    is_temporary,
    repository_lines,
    single_edit,
    still_removed,
)
from app.core.memory.digest.names import names_in, weigh
from app.core.memory.digest.outcomes import OK, CheckRun, outcomes_of, reads_only
from app.core.memory.digest.record import FOUND_MAX, Artifact, Command, Digest, Output, Search, unite
from app.core.memory.digest.sentences import ask_of, own_messages, promises_in, rules_with_reversals, shorten

COMMAND_CHARS_STORED_MAX: Final = 200
ERROR_CHARS_MAX: Final = 200
QUERY_CHARS_MAX: Final = 200
SOURCE_CHARS_MAX: Final = 200
SOURCES_MAX: Final = 50
SCANNED_CHARS: Final = 20_000
DIRECTIVE_CHARS_MAX: Final = 2_000

_QUERIES: Final = ("query", "pattern", "q", "search", "search_query", "queries", "keywords", "regex", "term")
_SEARCHES: Final = re.compile(r"search|grep|glob|find|query|lookup|recall", re.I)
_FAILED: Final = re.compile(r"^(?:error|fatal|traceback|panic)\b", re.I)


def digest_of(events: Sequence[Event], hidden: Mapping[int, str] | None = None) -> Digest:
    """Return the digest of a span. `hidden` maps seqs of hidden events to replacement texts; other seqs are ignored.

    A call's result is found only within the span. Takes time linear in the events' text.
    """
    replacements = hidden or {}
    calls = calls_in(events)
    user_messages = list(own_messages(events))
    directives = (" ".join(e.text.split()) for e in events if e.type is EventType.SYSTEM_MESSAGE)
    promises = (one for e in events if e.type is EventType.ASSISTANT_MESSAGE for one in promises_in(e.text))
    read, modified = _files(calls)
    found = Digest(
        events=len(events),
        files_read=read,
        files_modified=modified,
        files_removed=tuple(_removed(calls)),
        artifacts=tuple(_artifacts(events)),
        outputs=tuple(Output(e.tool or "", 1, int(e.is_error)) for e in events if e.type is EventType.TOOL_RESULT),
        searches=tuple(_searches(calls)),
        commands=tuple(_commands(calls)),
        checks=tuple(_checks(calls)),
        edits=len([*_lasting_edits(calls)]),
        made=tuple(_made(calls)),
        errors=tuple(_errors(calls)),
        hidden=tuple((event.seq, replacements[event.seq]) for event in events if event.seq in replacements),
        identifiers=tuple(weigh(events).items()),
        constraints=(*rules_with_reversals([event.text for event in user_messages]), *promises),
        asks=tuple(ask for event in user_messages if (ask := ask_of(event.text))),
        directives=tuple(shorten(text, DIRECTIVE_CHARS_MAX) for text in directives if text),
        plan=_plan(calls),
        tasks=tuple(_tasks(calls)),
    )
    return unite((found,))  # to remove repeats and bring every list within its bounds


def _plan(calls: Sequence[CallWithResult]) -> tuple[PlanStep, ...]:
    """Return the newest plan whose call did not fail."""
    accepted = (
        call.event for call in reversed(calls) if call.result is None or not (call.result.is_error or call.is_rejected)
    )
    return next((plan for call in accepted if (plan := plan_of(call.arguments))), ())


def _tasks(calls: Sequence[CallWithResult]) -> Iterator[Task]:
    """Yield the tasks of calls that did not fail, in order; one may be named several times."""
    for call in calls:
        if call.result is not None and not (call.result.is_error or call.is_rejected):
            yield from tasks_in(call.tool, call.event.arguments, call.result.text)


def _files(calls: Sequence[CallWithResult]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths that the calls read and modified, in order.

    Files whose edits were all taken back count as read. Temporary files that commands wrote are left out, unless other
    tools work on such files too. A diff counts only after a call that may have changed something: an earlier one shows
    work from before the span.
    """
    unchanged = _unchanged(calls)
    read: list[str] = []
    modified: list[str] = []
    diffed: list[str] = []
    works_on_temporary = any(
        is_temporary(path) for call in calls if call.command is None for path in (*call.use.read, *call.use.modified)
    )
    acted = False
    for call in calls:
        acted = acted or _may_change(call)
        keeps_all = call.command is None or works_on_temporary
        read += call.use.read
        modified += call.use.modified if keeps_all else (one for one in call.use.modified if not is_temporary(one))
        diffed += call.diffed if acted else ()
    if diffed:
        # A diff names a file from the root of its repository; a call may name the same file by its full path.
        full = {ending: path for path in (*read, *modified) for ending in _endings(path)}
        modified += [full.get(path, path) for path in diffed]
    return (*unchanged, *read), tuple(path for path in modified if path not in unchanged)


def _may_change(call: CallWithResult) -> bool:
    """Return whether a call may have changed something: a command that does more than read, or a tool that acts."""
    if call.command is not None:
        return not reads_only(call.command)
    return not (changes_nothing(call.tool) or call.use.read)


def _unchanged(calls: Iterable[CallWithResult]) -> Collection[str]:
    """Return the paths whose edits were all reversed by later ones before a commit."""
    changes: dict[str, list[tuple[str, str] | None]] = {}
    for call in calls:
        if call.command and call.result is not None and has_committed(call.command, call.result.text):
            changes = {path: [None] if made else [] for path, made in changes.items()}
        edit = None if call.command else single_edit(call.event.arguments)
        for path in call.use.modified:
            made = changes.setdefault(path, [])
            if edit is not None and edit[::-1] in made:
                made.remove(edit[::-1])
            else:
                made.append(edit)
    return [path for path, made in changes.items() if not made]


def _removed(calls: Iterable[CallWithResult]) -> Iterable[str]:
    """Return the paths that commands removed or moved away, and that no later call wrote."""
    removed: list[str] = []
    for call in calls:
        removed = still_removed(removed, call.use.modified)
        if call.command is None or call.result is None:
            continue
        if call.state == OK:
            removed += removed_paths(call.command)
            removed += (source for source, _ in moved_paths(call.command))
        if has_committed(call.command, call.result.text):
            removed += deleted_by_commit(call.result.text)
    return removed


def _endings(path: str) -> Iterable[str]:
    """Yield the path, the path without its first folder, without its first two folders, and so on."""
    parts = path.split("/")
    return ("/".join(parts[at:]) for at in range(len(parts)))


def _artifacts(events: Iterable[Event]) -> Iterable[Artifact]:
    for event in events:
        body = event.body or {}
        if body.get("path") and event.type is not EventType.TOOL_CALL:
            visibility, used = _provenance(body.get("metadata") or {})
            yield Artifact(
                body["path"], body.get("mime"), event.seq, event.turn, event.tool, event.call_id, visibility, used
            )


def _provenance(metadata: Mapping[str, Json]) -> tuple[str | None, tuple[str | int, ...]]:
    """Return the valid parts of `visibility` and `sources_used` in an event's metadata."""
    visibility, used = metadata.get("visibility"), metadata.get("sources_used")
    names = used if isinstance(used, list) else ()
    found = (shorten(name, SOURCE_CHARS_MAX) if isinstance(name, str) else name for name in names[:SOURCES_MAX])
    return (
        shorten(visibility, SOURCE_CHARS_MAX) if isinstance(visibility, str) else None,
        tuple(name for name in found if isinstance(name, str | int) and not isinstance(name, bool)),
    )


def _searches(calls: Iterable[CallWithResult]) -> Iterator[Search]:
    for call in calls:
        query = _query(call.event.arguments)
        if query is None or not _SEARCHES.search(call.tool):
            continue
        text = "" if call.result is None or call.result.is_error else call.result.text
        found = [name for name in names_in(text[:SCANNED_CHARS]) if "/" in name]
        words = shorten(query, QUERY_CHARS_MAX)
        hits = _hits(text)
        yield Search(call.tool, words, hits, tuple(found[:FOUND_MAX]), call.event.call_id, call.seq, call.result_seq)


def _query(arguments: Mapping[str, Json]) -> str | None:
    found = next((arguments[name] for name in _QUERIES if arguments.get(name)), None)
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        return ", ".join(found)
    return found if isinstance(found, str) else None


def _hits(text: str) -> int:
    """Return the number of lines that are not blank; 0 for a tool's only line if it reports no hits."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 0 if len(lines) == 1 and re.match(r"no (?:files|matches|results)\b", lines[0], re.I) else len(lines)


def _commands(calls: Iterable[CallWithResult]) -> Iterator[Command]:
    for call in calls:
        if call.command and call.command.strip():
            words = shorten(" ".join(call.command.split()), COMMAND_CHARS_STORED_MAX)
            yield Command(words, call.state, call.event.call_id, call.seq, call.result_seq)


def _checks(calls: Sequence[CallWithResult]) -> Iterator[CheckRun]:
    edited = max(_lasting_edits(calls), default=0)
    for call in calls:
        if call.command and not call.is_rejected:
            for check, state, report in outcomes_of(call.command, call.result):
                yield CheckRun(check.text, state, report, check.folder, call.seq, is_before_changes=call.seq < edited)


def _lasting_edits(calls: Iterable[CallWithResult]) -> Iterable[int]:
    """Return the seqs of the calls that edited the work or brought in changes, without an edit and its inverse."""
    lasting: dict[tuple[tuple[str, ...], tuple[str, str] | None], int] = {}
    for call in calls:
        output = "" if call.result is None else call.result.text
        if call.edits_work or (call.command and brings_changes(call.command, output)):
            edit = None if call.command else single_edit(call.event.arguments)
            if edit is None or lasting.pop((call.use.modified, edit[::-1]), None) is None:
                lasting[call.use.modified, edit] = call.seq
    return lasting.values()


def _made(calls: Iterable[CallWithResult]) -> Iterator[str]:
    """Yield the lines on work that commands made or undid."""
    for call in calls:
        if call.command and call.result is not None and not (call.is_rejected or call.is_refused):
            yield from repository_lines(call.command, call.state, call.result.text)


def _errors(calls: Iterable[CallWithResult]) -> Iterator[str]:
    """Yield the first lines of errors after which no call of the same kind succeeded."""
    found: dict[str, str] = {}
    for call in calls:
        result, command = call.result, call.command
        if result is None or call.is_rejected or call.is_refused or (command is not None and reads_only(command)):
            continue
        modified = files_of(call.tool, call.event.arguments).modified if command is None else ()
        kind = f"{call.event.tool} {' '.join(modified) if command is None else next(programs(command), '')}"
        found.pop(kind, None)
        failed = result.is_error or _FAILED.match(result.gist or "")
        text = result.text if failed else ""
        line = next((line for raw in text[:4096].splitlines() if (line := " ".join(raw.split()))), "")
        if line:
            line = shorten(line, ERROR_CHARS_MAX)
            found[kind] = f"{result.tool}: {line}" if result.tool else line
    yield from found.values()
