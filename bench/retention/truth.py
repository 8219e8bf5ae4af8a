"""Rule-based oracle: whether the states, failures, blockers and constraints in a summary match the log.

It shares no code with the digest. A state that no rule can settle is `unknown`; a summary should not state those.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType

TRUE, FALSE, UNKNOWN = "true", "false", "unknown"

_STATED: Final = re.compile(r"^\[(ok|error|failed)\] (.+?)(?: # .*)?$", re.M)
_FAILED: Final = re.compile(r"^- `(.+?)`(?: in .+?)? failed when it was last run", re.M)
_PASSED: Final = re.compile(r"^- `(.+?)`(?: in .+?)? failed .{1,20}; its last run passed", re.M)
_PASSED_LAST: Final = re.compile(r"^- Passed when last run(?:, before the code last changed)?: (.+)\.$", re.M)
_OLD: Final = re.compile(r"^\[\w+\] (.+?) # .*before the code last changed$", re.M)
_COMMITTED: Final = re.compile(r"^committed ([0-9a-f]{7,40}) ", re.M)
_CHANGED: Final = re.compile(r"^- (?:Changed|Wrote) ([^\s,:]+?)(?: x(\d+))?(?:: .+)?\.$", re.M)
_BY_COMMANDS: Final = re.compile(r"^- Changed by commands: (.+)\.$", re.M)
_WRITES: Final = re.compile(r"\b(?:sed|perl) -\w*i|>(?!&)|\b(?:tee|mv|cp|touch)\b")
_EDITORS: Final = re.compile(r"edit|write|str_replace|patch", re.I)
_GOOD: Final = re.compile(
    r"^(?:ok[ \t]+\S+[ \t]|PASS$|0 issues|=* ?\d+ passed|All checks passed|Success: no issues|test result: ok)", re.M
)
_FORMATS: Final = re.compile(r"(?:\S+ )*(?:fmt|format|gofmt|cd|echo|export|cat|mkdir|git \S+)\b")
_PRINTS: Final = frozenset({"-v", "-vv", "-q", "-s", "-x", "--verbose", "--quiet", "-count=1"})
_RULES: Final = re.compile(r"^(?:<constraints>|## Constraints & Preferences)\n((?:- .*\n?)+)", re.M)
_BLOCKED: Final = re.compile(r"^### Blocked\n((?:- .*\n?)+)", re.M)
_BAD: Final = re.compile(
    r"^(?:.{0,200}?[: \]])?(?:error|fatal|panic|traceback)\b(?: TS\d+|\[\w+\])?"
    r"(?: \(.*?\)|:| task failed| command failed)|^\s*(?:--- )?FAIL\b|command not found|No such file or directory"
    r"|\b[1-9]\d* (?:failed|failing|failures|errors?|issues?)\b"
    r"|^exit(?: code| status)?:? [1-9]|^make: \*\*\*|\[build failed\]|Permission denied"
    r"|^[\w./-]{1,99}\.\w{1,5}:\d+:\d+: ",
    re.M | re.I,
)
_CODE: Final = re.compile(r"^(?:exit(?:ed)?(?: with)?(?: code| status)?)[: ]+(\d+)", re.I | re.M)
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.S)
_HIDES: Final = re.compile(r"\||;|\n|&(?!&|>|\d)(?<!&&)(?<!>&)")
_TRIM: Final = re.compile(
    r"^(?:\s*(?:cd \S+|export \S+|set [-+]\S+(?: \S+)?)\s*(?:&&|;)\s*|\s*\w+=\S*\s+"
    r"|\s*(?:timeout|nice|time|env)(?: -\S+)*(?: \d+\w?)?\s+)+"
)
_TAKEN_BACK: Final = re.compile(
    r"\bno longer\b|\bnever ?mind\b|\bw?hoops\b|\bput (?:it|that|them) back\b"
    r"|\b(?:undo|revert|scratch|forget) (?:that|it|this)\b"
    r"|\bactually,? (?:no|let'?s|do|don'?t|keep|use)\b",
    re.I,
)


def verdicts(text: str, events: Sequence[Event]) -> Iterator[tuple[str, str, str]]:
    """Yield each statement's kind, verdict and line."""
    runs = list(_runs(events))
    for state, command in _STATED.findall(text):
        wanted = "ok" if state == "ok" else "error"
        yield f"[{wanted}]", _verdict(_ends(command, runs), wanted), command
    for command in (one for line in _PASSED_LAST.findall(text) for one in re.findall(r"`(.+?)`", line)):
        yield "passed last", _verdict(_ends(command, runs), "ok"), command
    yield from _work(text, events)
    for pattern, kind, wanted in ((_FAILED, "failed last", "error"), (_PASSED, "passed last", "ok")):
        for command in pattern.findall(text):
            yield kind, _verdict(_ends(command, runs), wanted), command
    yield from _rules(text, events)
    for block in _BLOCKED.findall(text):
        for line in block.splitlines():
            if line.rstrip("*_ ").endswith("?"):
                yield "blocked", (FALSE if _answered(line[2:], events) else TRUE), line[2:]


def _verdict(outcomes: Sequence[str], wanted: str) -> str:
    """Return whether the last of a command's outcomes is the wanted one."""
    if not outcomes or outcomes[-1] == UNKNOWN:
        return UNKNOWN
    return TRUE if outcomes[-1] == wanted else FALSE


def _ends(command: str, runs: Sequence[tuple[int, str, str, str]]) -> Sequence[str]:
    """Return the outcomes of a stated command's runs, alone or as a part of another command."""
    command = command.rstrip("…").rstrip()
    whole = [outcome for _, text, part, outcome in runs if part == text and text.startswith(command)]
    parts = [outcome for _, _, part, outcome in runs if _words(part) == _words(command)]
    return parts or whole or [outcome for _, text, _, outcome in runs if command in text]


def _words(command: str) -> Sequence[str]:
    try:
        words = shlex.split(key(command))
    except ValueError:
        words = command.split()
    return [word for word in words if word not in _PRINTS]


def _runs(events: Sequence[Event]) -> Iterator[tuple[int, str, str, str]]:
    """Yield (index of the call, command on one line, part, outcome of the part); first for the command as a whole."""
    answers = {e.call_seq: e for e in events if e.type is EventType.TOOL_RESULT and e.call_seq}
    for at, call in enumerate(events):
        command = call.arguments.get("command") if call.type is EventType.TOOL_CALL else None
        if isinstance(command, str) and command.strip():
            whole, end = " ".join(command.split()), outcome(command, answers.get(call.seq))
            parts = [part.strip() for part in re.split(r"&&|;|\n", command) if part.strip()]
            work = [part for part in parts if not _FORMATS.match(part)]
            yield at, whole, whole, end
            for part in parts if len(parts) > 1 else ():
                alone = work == [part]
                yield at, whole, part, end if alone or (end == "ok" and ";" not in command) else UNKNOWN


def _work(text: str, events: Sequence[Event]) -> Iterator[tuple[str, str, str]]:
    """Yield verdicts on commits, on the number of changes to files, and on runs stated to precede the last edits."""
    answers = {e.call_seq: e for e in events if e.type is EventType.TOOL_RESULT and e.call_seq}
    results = "\n".join(answer.text for answer in answers.values())
    for commit in _COMMITTED.findall(text):
        yield "commit", TRUE if re.search(rf"^\[[^\]]+ {commit}\] ", results, re.M) else FALSE, commit
    edits: Counter[str] = Counter()
    last = 0
    for at, call in enumerate(events):
        path = call.arguments.get("file_path") or call.arguments.get("path")
        if call.type is EventType.TOOL_CALL and isinstance(path, str) and _EDITORS.search(call.tool or ""):
            answer = answers.get(call.seq)
            said = "error" if answer is None or answer.is_error else answer.text.lstrip()
            if not said.startswith(("error", "<tool_use_error>", "The user doesn't want")):
                edits.update("/".join(path.split("/")[-parts:]) for parts in range(1, path.count("/") + 2))
                last = at
    for name, times in _CHANGED.findall(text):
        yield "changes", TRUE if 0 < int(times or 1) <= edits[name] else FALSE, f"{name} x{times}"
    for listed in _BY_COMMANDS.findall(text):
        for name, _, times in (one.partition(" x") for one in listed.split(", ")):
            wrote = [call for call in events if _writes(call, name.rsplit("/", 1)[-1], answers.get(call.seq))]
            yield "by commands", TRUE if 0 < int(times or 1) <= len(wrote) else FALSE, f"{name} x{times}"
    runs = list(_runs(events))
    for command in _OLD.findall(text):
        found = [at for at, _, part, _ in runs if _words(part) == _words(command)]
        yield "before edits", UNKNOWN if not found else TRUE if found[-1] < last else FALSE, command


def _writes(call: Event, name: str, result: Event | None) -> bool:
    """Return whether a command names a file, writes something, and was not reported as failed."""
    command = call.arguments.get("command") if call.type is EventType.TOOL_CALL else None
    text = command if isinstance(command, str) and (result is None or not result.is_error) else ""
    return name in text and _WRITES.search(text) is not None


def key(command: str) -> str:
    """Return a command without its leading folder, environment and time limit, its redirections and its filters."""
    bare = _TRIM.sub("", command)
    bare = re.sub(r"\s*\d?>&\d|\s*\d?>+\s*\S+", "", bare)
    return " ".join(bare.split("|")[0].split())


def outcome(command: str, result: Event | None) -> str:
    """Return `ok`, `error` or `unknown` for a command's result."""
    if result is None or result.text.lstrip().startswith("<tool_use_error>"):
        return UNKNOWN
    codes = _CODE.findall(result.text[:200])
    if result.is_error or any(int(code) for code in codes):
        return "error"
    reads = re.match(r"(?:cat|grep|rg|head|tail|sed|git (?:log|show|diff|grep)|gh|ls|find|wc)\b", key(command))
    if reads:
        return UNKNOWN if _BAD.search(result.text) or _HIDES.search(command) else "ok"
    if _BAD.search(result.text):
        return "error"
    if _GOOD.search(result.text) and not re.search(r"\|\|", command):
        return "ok"
    plain = re.sub(r"\s*\d?>&\d|&>|2>/dev/null", "", _QUOTED.sub("Q", command.strip()))
    return UNKNOWN if _HIDES.search(plain) else "ok"


def _rules(text: str, events: Sequence[Event]) -> Iterator[tuple[str, str, str]]:
    users = [" ".join(e.text.split()) for e in events if e.type is EventType.USER_MESSAGE]
    for block in _RULES.findall(text):
        for line in block.splitlines():
            rule = line[2:].rstrip("…").strip()
            at = next((i for i, said in reversed(list(enumerate(users))) if rule in said), -1)
            yield "constraint", (FALSE if at >= 0 and _reversed(rule, users[at:]) else TRUE), rule


def _reversed(rule: str, said: Sequence[str]) -> bool:
    words = {w for w in re.findall(r"[a-z]{4,}", rule.lower())}
    for later in said[1:5]:
        back = _TAKEN_BACK.search(later)
        if back and (len(later.split()) < 8 or len(words & set(re.findall(r"[a-z]{4,}", later.lower()))) >= 2):
            return True
    return bool(re.search(r"\bno longer (?:necessary|needed|required)", rule, re.I))


def _answered(question: str, events: Sequence[Event]) -> bool:
    asked = next((i for i, e in enumerate(events) if question.strip("* …")[:60] in " ".join(e.text.split())), None)
    return asked is not None and any(e.type is EventType.USER_MESSAGE for e in events[asked + 1 :])


def tally(found: Iterator[tuple[str, str, str]], counts: Counter[tuple[str, str]]) -> None:
    """Add verdicts to the counts by kind."""
    counts.update((kind, verdict) for kind, verdict, _ in found)
