"""The newest modified files equal those of a full scan, and the scan stops when they are found."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory.digest import digest_of
from app.core.memory.digest.calls import modifications
from app.core.memory.digest.commands import written_paths
from app.core.plan.state.drops import FILES_MAX, files_named
from tests.support.examples import examples
from tests.unit.builders import Log

DIFF = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n"
paths = st.sampled_from([f"src/part_{number}.py" for number in range(2 * FILES_MAX)])
calls = st.tuples(st.sampled_from(("write", "shell", "format", "read")), paths, st.booleans(), st.integers(0, 3))
WORDS = (
    *(
        "rm",
        "'r'm",
        "\\rm",
        "mv",
        "cp",
        "sed",
        "-i",
        "perl",
        "git",
        "checkout",
        "--",
        "restore",
        "touch",
        "tee",
        "a.txt",
    ),
    *("'w x'", ">", ">>", "2>&1", "2>", "&>", ">|", "/dev/null", ">&2", ";", "|", "&&", "cd", "x", "(", ")", "\\\n"),
    *("echo", "form", "confirm", "1", "sudo", "A=b", "/bin/rm", '"', "\n"),
)
commands = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(("", " "))), max_size=8).map(
    lambda found: "".join(word + space for word, space in found)
)


def add_call(log: Log, tool: str, path: str, *, failed: bool) -> dict[str, Any]:
    """Append a call that modifies a file, or only reads it; return the fields of its result."""
    arguments: dict[str, Any] = {"command": f"make > {path}"} if tool == "shell" else {"path": path, "content": "x"}
    if tool == "format":
        arguments = {"options": {}}
    body = {"content": DIFF.format(path) if tool == "format" else "fine"}
    return {"call": log.call(tool, body={"arguments": arguments}), "body": body, "is_error": failed}


@given(st.lists(calls, max_size=80))
@settings(max_examples=examples(300))
def test_the_newest_files_are_those_of_all_modifications(made: list[tuple[str, str, bool, int]]) -> None:
    log, running = Log(), list[dict[str, Any]]()
    for tool, path, failed, open_calls in made:
        running.append(add_call(log, tool, path, failed=failed))
        while len(running) > open_calls:
            log.result(**running.pop(0))
    every = tuple(modifications(log.events))
    last: dict[str, int] = {}
    for seq, path in every:
        last[path] = max(seq, last.get(path, 0))
    assert files_named(every) == tuple(sorted((seq, path) for path, seq in last.items()))[-FILES_MAX:]
    assert [seq for seq, _ in every] == sorted((seq for seq, _ in every), reverse=True)
    assert {path for _, path in every} == set(digest_of(log.events).files_modified)


def test_no_call_is_read_that_is_older_than_the_files_named() -> None:
    log = Log()
    for number in range(10 * FILES_MAX):
        log.result(log.call("write", body={"arguments": {"path": f"src/part_{number}.py", "content": "x"}}))
    assert len(files_named(modifications(log.events))) == FILES_MAX
    assert sum("arguments" in vars(event) for event in log.events) == FILES_MAX + 1


@given(commands)
@settings(max_examples=examples(3_000))
def test_a_command_that_is_not_read_writes_nothing(command: str) -> None:
    read = written_paths(f">first\n{command}")
    assert list(written_paths(command)) == [path for path in read if path != "first"]
