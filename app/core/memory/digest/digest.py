"""The digest of a span: facts that are extracted mechanically and never left to a model.

`digest_of` makes a digest from events, `unite` from the digests of adjacent spans; `appendix` writes it for a model.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest.appendix import appendix, requests_tokens
from app.core.memory.digest.commands import PlanStep, plan_of, programs
from app.core.memory.digest.files import (
    FileUse,
    command_of,
    diffed_paths,
    files_of,
    is_temporary,
    repository_lines,
    shows_own_change,
)
from app.core.memory.digest.names import heaviest, names_in, weigh
from app.core.memory.digest.outcomes import (
    CheckRun,
    bare_command,
    is_refused,
    newest_runs,
    outcomes_of,
    reads_only,
    run_of,
    state_of,
)
from app.core.memory.digest.record import (
    ARTIFACTS_MAX,
    ASKS,
    COMMANDS_MAX,
    ERRORS_MAX,
    FOUND_MAX,
    READ_FILES_MAX,
    SEARCHES_MAX,
    Artifact,
    Command,
    Digest,
    Output,
    Search,
    complete,
    ends,
    from_json,
    newest,
    rules,
    to_json,
    unite,
)
from app.core.memory.digest.sentences import ask_of, is_rejected, own_messages, rules_with_reversals, shorten

__all__ = [
    "Artifact",
    "Command",
    "Digest",
    "Output",
    "Search",
    "appendix",
    "complete",
    "digest_of",
    "from_json",
    "requests_tokens",
    "to_json",
    "unite",
]

COMMAND_CHARS_MAX: Final = 200
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

    A call's result must be within the span. Takes time linear in the events' text.
    """
    replacements = hidden or {}
    answers = {event.call_seq: event for event in events if event.type is EventType.TOOL_RESULT and event.call_seq}
    results = [event for event in events if event.type is EventType.TOOL_RESULT]
    calls = [(event, answers.get(event.seq)) for event in events if event.type is EventType.TOOL_CALL]
    user_messages = list(own_messages(events))
    read, modified = _files(calls)
    asks = [ask for event in user_messages if (ask := ask_of(event.text))]
    return Digest(
        events=len(events),
        files_read=read,
        files_modified=modified,
        artifacts=newest(_artifacts(events), lambda artifact: artifact.path, ARTIFACTS_MAX),
        outputs=_outputs(results),
        searches=newest(_searches(calls), lambda search: (search.tool, search.query), SEARCHES_MAX),
        commands=newest(_commands(calls), lambda command: bare_command(command.text), COMMANDS_MAX),
        checks=newest_runs(_checks(calls)),
        edits=sum(_edits(call, result) for call, result in calls),
        made=repository_lines(_run(calls)),
        errors=newest(_errors(calls), str, ERRORS_MAX),
        hidden=tuple((event.seq, replacements[event.seq]) for event in events if event.seq in replacements),
        identifiers=heaviest(weigh(events)),
        constraints=rules(rules_with_reversals([event.text for event in user_messages])),
        asks=ends(newest(asks, str), ASKS),
        directives=rules(_directives(events)),
        plan=_plan(calls),
    )


def _directives(events: Iterable[Event]) -> Iterable[str]:
    """Yield the system messages among the events, each on one line."""
    for event in events:
        if event.type is EventType.SYSTEM_MESSAGE and (text := " ".join(event.text.split())):
            yield shorten(text, DIRECTIVE_CHARS_MAX)


def _plan(calls: Sequence[tuple[Event, Event | None]]) -> tuple[PlanStep, ...]:
    """Return the newest plan whose call did not fail."""
    accepted = (
        call for call, result in reversed(calls) if result is None or not (result.is_error or is_rejected(result))
    )
    return next((plan for call in accepted if (plan := plan_of(call.arguments))), ())


def modifications(events: Sequence[Event]) -> Iterator[tuple[int, str]]:
    """Yield the paths of modified files as the events name them, the newest first, each with the seq of its event.

    `events` are in order, and read only as far as the iterator is.
    """
    calls = {event.seq: event for event in events if event.type is EventType.TOOL_CALL}
    answers = {event.call_seq: event for event in events if event.type is EventType.TOOL_RESULT and event.call_seq}
    for event in reversed(events):
        paths: Sequence[str] = ()
        if event.seq in calls:
            paths = _file_use(event, answers.get(event.seq)).modified
        elif event.call_seq in calls and answers[event.call_seq] is event:
            paths = _shown(calls[event.call_seq], event)
        yield from ((event.seq, path) for path in paths)


def _file_use(call: Event, result: Event | None) -> FileUse:
    use = files_of(call.tool or "", call.arguments)
    if is_rejected(result):
        return FileUse()
    return FileUse(read=use.modified) if _failed(call, result) else use


def _failed(call: Event, result: Event | None) -> bool:
    """Return whether a call failed without effect: a shell command may have written files before it failed."""
    failed = result is not None and (result.is_error or is_refused(result))
    return failed and command_of(call.tool or "", call.arguments) is None


def _shown(call: Event, result: Event | None) -> Sequence[str]:
    """Return the files that a call's result shows as modified."""
    if result is None or result.body is None or _failed(call, result):
        return ()
    diffs = tuple(diffed_paths(result.text))
    return diffs if diffs and shows_own_change(call.tool or "", call.arguments) else ()


def _files(calls: Iterable[tuple[Event, Event | None]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    read: list[str] = []
    modified: list[str] = []
    shown: list[str] = []
    for call, result in calls:
        use = _file_use(call, result)
        read += use.read
        modified += use.modified
        shown += _shown(call, result)
    if shown:
        # A diff names a file from the root of its repository; a call may name the same file by its full path.
        full = {ending: path for path in (*read, *modified) for ending in _endings(path)}
        modified += [full.get(path, path) for path in shown]
    changed = set(modified)
    return newest((path for path in read if path not in changed), str, READ_FILES_MAX), newest(modified, str)


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


def _outputs(results: Iterable[Event]) -> tuple[Output, ...]:
    counts: dict[str, list[int]] = {}
    for event in results:
        count = counts.setdefault(event.tool or "", [0, 0])
        count[0] += 1
        count[1] += event.is_error
    return tuple(Output(tool, results, errors) for tool, (results, errors) in counts.items())


def _searches(calls: Iterable[tuple[Event, Event | None]]) -> Iterable[Search]:
    for call, result in calls:
        query = _query(call.arguments)
        if query is None or not _SEARCHES.search(call.tool or ""):
            continue
        text = "" if result is None or result.is_error else result.text
        found = [name for name in names_in(text[:SCANNED_CHARS]) if "/" in name]
        words = shorten(query, QUERY_CHARS_MAX)
        answer = 0 if result is None else result.seq
        yield Search(call.tool or "", words, _hits(text), tuple(found[:FOUND_MAX]), call.call_id, call.seq, answer)


def _query(arguments: Mapping[str, Json]) -> str | None:
    found = next((arguments[name] for name in _QUERIES if arguments.get(name)), None)
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        return ", ".join(found)
    return found if isinstance(found, str) else None


def _hits(text: str) -> int:
    """Return the number of lines that are not blank; 0 for a tool's only line if it reports no hits."""
    lines = [line for line in text.splitlines() if line.strip()]
    return 0 if len(lines) == 1 and re.match(r"no (?:files|matches|results)\b", lines[0], re.I) else len(lines)


def _commands(calls: Iterable[tuple[Event, Event | None]]) -> Iterable[Command]:
    for call, result in calls:
        text = command_of(call.tool or "", call.arguments)
        if text and text.strip():
            words = shorten(" ".join(text.split()), COMMAND_CHARS_MAX)
            answer = 0 if result is None else result.seq
            yield Command(words, state_of(result, text), call.call_id, call.seq, answer)


def _checks(calls: Sequence[tuple[Event, Event | None]]) -> Iterable[CheckRun]:
    edited = max((call.seq for call, result in calls if _edits(call, result)), default=0)
    for call, result in calls:
        text = command_of(call.tool or "", call.arguments)
        if text and not is_rejected(result):
            for outcome in outcomes_of(text, result):
                yield run_of(outcome, call.seq, is_before_edits=call.seq < edited)


def _run(calls: Iterable[tuple[Event, Event | None]]) -> Iterable[tuple[str, str, str]]:
    """Yield the commands that ran, with their states and outputs."""
    for call, result in calls:
        text = command_of(call.tool or "", call.arguments)
        if text and result is not None and not (is_rejected(result) or is_refused(result)):
            yield text, state_of(result, text), result.text


def _edits(call: Event, result: Event | None) -> bool:
    """Return whether a call changed files of the work."""
    return any(not is_temporary(path) for path in _file_use(call, result).modified)


def _errors(calls: Iterable[tuple[Event, Event | None]]) -> Iterable[str]:
    """Yield the first lines of errors after which no call of the same kind succeeded."""
    found: dict[str, str] = {}
    for call, result in calls:
        if result is None or is_rejected(result) or is_refused(result):
            continue
        command = command_of(call.tool or "", call.arguments)
        if command is not None and reads_only(command):
            continue
        subject = (
            next(programs(command), "")
            if command is not None
            else " ".join(files_of(call.tool or "", call.arguments).modified)
        )
        kind = f"{call.tool} {subject}"
        found.pop(kind, None)
        failed = result.is_error or _FAILED.match(result.gist or "")
        text = result.text if failed else ""
        line = next((line for raw in text[:4096].splitlines() if (line := " ".join(raw.split()))), "")
        if line:
            line = shorten(line, ERROR_CHARS_MAX)
            found[kind] = f"{result.tool}: {line}" if result.tool else line
    yield from found.values()
