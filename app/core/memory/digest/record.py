"""The digest as a record: its fields, the union of several, the commands worth listing, and its JSON."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Final, TypeVar

from app.core.log.events import Json
from app.core.memory.digest.calls import PlanStep, Task, unite_tasks
from app.core.memory.digest.checks import check_of
from app.core.memory.digest.commands import programs
from app.core.memory.digest.files import is_one_of, still_removed, unite_made
from app.core.memory.digest.names import Names, decay, heaviest
from app.core.memory.digest.outcomes import (
    ERROR,
    OK,
    READERS,
    UNKNOWN,
    CheckRun,
    bare_command,
    is_check,
    is_idle,
    newest_runs,
    runs_in,
)
from app.core.memory.digest.sentences import shorten

READ_FILES_MAX: Final = 1000
REMOVED_FILES_MAX: Final = 200
ARTIFACTS_MAX: Final = 500
SEARCHES_MAX: Final = 40
FOUND_MAX: Final = 5
COMMANDS_MAX: Final = 40
ERRORS_MAX: Final = 20
ASKS: Final = (2, 14)
"""The numbers of first and last messages in `asks` that are kept."""
REQUESTS_MAX: Final = 8
CONSTRAINTS: Final = (50, 150)
"""The numbers of first and last constraints that are kept. Constraints may exceed the room of a summary: their cap only
guards against a runaway log."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A logged event that has a path and is not a tool call.

    `tool` and `call_id` are those of a tool result. `visibility` and `sources_used` come from the event's metadata.
    """

    path: str
    mime: str | None
    seq: int
    turn: int
    tool: str | None = None
    call_id: str | None = None
    visibility: str | None = None
    sources_used: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """The number of one tool's results, and the number of errors among them."""

    tool: str
    results: int
    errors: int


@dataclass(frozen=True, slots=True)
class Search:
    """One search, with the number of lines in its result that are not blank, and the first paths and addresses there.

    `call_id`, `seq` and `result_seq` are the call's id and seq and its result's seq, 0 without one.
    """

    tool: str
    query: str
    hits: int
    found: tuple[str, ...]
    call_id: str | None = None
    seq: int = 0
    result_seq: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """One shell command, shortened; `state` is as in `state_of`. The last three fields are as in `Search`."""

    text: str
    state: str
    call_id: str | None = None
    seq: int = 0
    result_seq: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """The facts of a span of `events` events, extracted mechanically.

    No tuple has repeats. `identifiers` has the best first, each with its weight as of the span's end; `plan` is in the
    agent's order, `outputs` in that of each tool's first result; the others are in the log's order, apart from
    promises, which follow a span's rules, and from files known by diffs alone (last) or with all edits taken back
    (first). A modified file is not listed among the read files; a removed one may be in both lists of files. `hidden`
    pairs the seqs of hidden events with their replacement texts. `asks` are the user's own words, `constraints` too,
    with the agent's promises, `directives` the system messages, `plan` the agent's newest list of steps, `tasks` its
    tasks. `requests` are the user's messages in the turns that the span's ends cut through. `checks` are the newest
    runs of checks, which are in `commands` too. `made` are lines on commits, pushes and the like, and on their
    reversals. `edits` is the number of distinct edits of files other than plain text, and of merges of others'
    commits, that were not taken back; only whether it is 0 matters.
    """

    events: int = 0
    files_read: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    outputs: tuple[Output, ...] = ()
    searches: tuple[Search, ...] = ()
    commands: tuple[Command, ...] = ()
    errors: tuple[str, ...] = ()
    hidden: tuple[tuple[int, str], ...] = ()
    identifiers: tuple[tuple[str, float], ...] = ()
    constraints: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    plan: tuple[PlanStep, ...] = ()
    requests: tuple[str, ...] = ()
    checks: tuple[CheckRun, ...] = ()
    made: tuple[str, ...] = ()
    edits: int = 0
    tasks: tuple[Task, ...] = ()

    @property
    def uses_files(self) -> bool:
        """Whether the span's calls used files or a shell."""
        return bool(self.files_read or self.files_modified or self.commands)


_T = TypeVar("_T")


def newest(items: Iterable[_T], key: Callable[[_T], Hashable], most: int | None = None) -> tuple[_T, ...]:
    """Return the items without repeats by `key`, keeping the last occurrence, in order; at most the newest `most`."""
    found: dict[Hashable, _T] = {}
    for item in items:
        found.pop(key(item), None)
        found[key(item)] = item
    values = tuple(found.values())
    return values if most is None else values[-most:]


def distinct_rules(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the sentences in order, without repeats that differ only in case or spaces; bounded by CONSTRAINTS."""
    found: dict[str, str] = {}
    for sentence in sentences:
        found.setdefault(" ".join(sentence.lower().split()), sentence)
    return first_and_last(tuple(found.values()), CONSTRAINTS)


def first_and_last(items: Sequence[_T], first_last: tuple[int, int]) -> tuple[_T, ...]:
    """Return the first and the last items; `first_last` holds the number of each."""
    first, last = first_last
    return tuple(items) if len(items) <= first + last else (*items[:first], *items[-last:])


def unite(digests: Sequence[Digest]) -> Digest:
    """Unite the digests of adjacent spans, given oldest first. Uniting is associative, apart from the bounds.

    No modified file is lost, and no constraint or directive as long as CONSTRAINTS holds them all. Weights of
    identifiers fade by the number of later events.
    """
    modified = newest((one for d in digests for one in d.files_modified), str)
    changed = set(modified)
    read = newest((f for d in digests for f in d.files_read if f not in changed), str, READ_FILES_MAX)
    outputs: dict[str, Output] = {}
    names: Names = {}
    for digest in digests:
        names = decay(names, digest.events)
        for name, weight in digest.identifiers:
            names[name] = names.get(name, 0.0) + weight
        for new in digest.outputs:
            old = outputs.get(new.tool, Output(new.tool, 0, 0))
            outputs[new.tool] = Output(new.tool, old.results + new.results, old.errors + new.errors)
    return Digest(
        events=sum(d.events for d in digests),
        files_read=read,
        files_modified=modified,
        files_removed=_removed(digests),
        artifacts=newest((one for d in digests for one in d.artifacts), lambda one: one.path, ARTIFACTS_MAX),
        outputs=tuple(outputs.values()),
        searches=newest((one for d in digests for one in d.searches), lambda one: (one.tool, one.query), SEARCHES_MAX),
        commands=newest((one for d in digests for one in d.commands), lambda one: bare_command(one.text), COMMANDS_MAX),
        made=unite_made(one for d in digests for one in d.made),
        edits=sum(d.edits for d in digests),
        checks=newest_runs(chain.from_iterable(_dated_checks(digests))),
        errors=newest((one for d in digests for one in d.errors), str, ERRORS_MAX),
        hidden=newest((one for d in digests for one in d.hidden), lambda one: one[0]),
        identifiers=heaviest(names),
        constraints=distinct_rules(one for d in digests for one in d.constraints),
        asks=first_and_last(newest((one for d in digests for one in d.asks), str), ASKS),
        directives=distinct_rules(one for d in digests for one in d.directives),
        plan=next((d.plan for d in reversed(digests) if d.plan), ()),
        tasks=unite_tasks(one for d in digests for one in d.tasks),
        requests=newest((one for d in digests for one in d.requests), str, REQUESTS_MAX),
    )


def _removed(digests: Sequence[Digest]) -> tuple[str, ...]:
    """Return the removed files of the digests without those that a later one wrote again."""
    removed: tuple[str, ...] = ()
    for digest in digests:
        gone = digest.files_removed
        written = [path for path in digest.files_modified if not is_one_of(path, gone)] if removed else []
        removed = (*still_removed(removed, written), *gone)
    return newest(removed, str, REMOVED_FILES_MAX)


def _dated_checks(digests: Sequence[Digest]) -> Iterator[Iterable[CheckRun]]:
    """Yield the checks of each digest, marked as older if a later digest has edits."""
    for number, digest in enumerate(digests):
        is_old = any(d.edits for d in digests[number + 1 :])
        yield (replace(run, is_before_changes=True) for run in digest.checks) if is_old else digest.checks


COMMAND_CHARS_SHOWN_MAX: Final = 100
_REPOSITORY_COMMAND: Final = re.compile(
    r"(?:git add [^&]{0,300}&& )?git (?:commit|push|reset|restore)\b|gh (?:pr|issue) create\b"
)


def listed_commands(digest: Digest, other_text: str) -> Sequence[str]:
    """Return lines on the runs of checks; without any, on the other commands with a known outcome.

    Left out are commands that only read or prepare, that the section `repository` names, that failed and printed their
    own status, or whose programs succeeded later. A report that the summary's `other_text` has is not repeated.
    """
    if checks := [run.line(other_text) for run in _telling_checks(digest.checks)]:
        return checks
    # The text of a here-document is not a command, but on one line it cannot be told apart.
    bare = [(one, one.text.partition("<<")[0]) for one in digest.commands if one.state != UNKNOWN]
    others = [one for one, text in bare if not (is_idle(text) or is_check(text) or _is_left_out(one, digest))]
    others = [
        one for at, one in enumerate(others) if not (one.state == ERROR and _is_superseded(one, others[at + 1 :]))
    ]
    return [f"[{one.state}] {shorten(one.text, COMMAND_CHARS_SHOWN_MAX)}" for one in others]


def _telling_checks(runs: Sequence[CheckRun]) -> Sequence[CheckRun]:
    """Return the runs, failures last; those without a known outcome only if no other of their kind has one.

    Of several runs of one script, given by its path, all but the newest come first in their state: the first lines are
    the first to be left out.
    """
    known = {_kind(run) for run in runs if run.state != UNKNOWN}
    telling = [run for run in runs if run.state != UNKNOWN or _kind(run) not in known]
    scripts = {run.text.partition(" ")[0]: run for run in telling if "/" in run.text.partition(" ")[0]}
    last_runs = [*scripts.values(), *(run for run in telling if run.text.partition(" ")[0] not in scripts)]
    return sorted(telling, key=lambda run: ((UNKNOWN, OK, ERROR).index(run.state), run in last_runs))


def _is_superseded(failed: Command, later: Sequence[Command]) -> bool:
    """Return whether a later command succeeded that runs all programs of the failed one but readers, such as `cat`."""
    ran = {name for name in programs(failed.text) if name.partition(" ")[0] not in READERS}
    return bool(ran) and any(one.state == OK and ran <= {*programs(one.text)} for one in later)


def _is_left_out(command: Command, digest: Digest) -> bool:
    """Return whether the repository section covers a command, or it printed its own status and may be meant to fail."""
    is_covered = bool(digest.made) and command.state == OK and _REPOSITORY_COMMAND.match(command.text) is not None
    return is_covered or (command.state == ERROR and "$?" in command.text)


def _kind(run: CheckRun) -> str:
    check = check_of(run.text)
    return check.kind if check else run.text


_DETAILS: Final = {
    "artifacts": ("tool", "call_id", "visibility", "sources_used"),
    "searches": ("call_id", "seq", "result_seq"),
    "commands": ("call_id", "seq", "result_seq"),
}
"""Fields stored apart from their entries, because version 0.3 refuses an entry with an unknown field."""


def to_json(digest: Digest) -> dict[str, Json]:
    """Return the digest as a JSON object of lists and plain values, as it is stored; `from_json` restores it."""
    document: dict[str, Json] = {field.name: _as_json(getattr(digest, field.name)) for field in fields(Digest)}
    details = {
        name: [{known: entry.pop(known) for known in names} for entry in document[name]]
        for name, names in _DETAILS.items()
    }
    return {**document, "details": details}


def complete(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return a stored digest with the details moved back into their entries. Older documents lack some fields."""
    whole = {name: value for name, value in document.items() if name != "details"}
    for name, details in document.get("details", {}).items():
        whole[name] = [{**entry, **more} for entry, more in zip(whole[name], details, strict=True)]
    return whole


def _as_json(value: Json) -> Json:
    if isinstance(value, tuple):
        return [_as_json(inner) for inner in value]
    return (
        {field.name: _as_json(getattr(value, field.name)) for field in fields(value)} if is_dataclass(value) else value
    )


def from_json(document: Mapping[str, Json]) -> Digest:
    """Return the digest that `to_json` wrote. Fields that an older document lacks are empty.

    The document must be one that `to_json` wrote, of this version or an older one: the shape is not checked.
    """
    whole = complete(document)
    values: dict[str, Json] = {
        field.name: _PARSERS.get(field.name, tuple)(whole[field.name])
        for field in fields(Digest)
        if field.name in whole
    }
    if "checks" not in whole:
        values["checks"] = newest_runs(runs_in((one.text, one.state, one.seq) for one in values.get("commands", ())))
    return Digest(**values)


def _pairs(values: Json) -> Json:
    return tuple((first, second) for first, second in values)


def _entries(shape: Callable[..., Json]) -> Callable[[Json], Json]:
    """Return a function that parses a list of entries; lists inside them become tuples."""
    return lambda values: tuple(
        shape(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})
        for entry in values
    )


_PARSERS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "events": int,
    "artifacts": _entries(Artifact),
    "outputs": lambda values: tuple(Output(**v) for v in values),
    "searches": _entries(Search),
    "commands": _entries(Command),
    "hidden": _pairs,
    "identifiers": _pairs,
    "plan": lambda values: tuple(PlanStep(*value) for value in values),
    "tasks": lambda values: tuple(Task(*value) for value in values),
    "checks": _entries(CheckRun),
    "edits": int,
}
"""The functions that parse fields, other than those that are tuples of strings."""
