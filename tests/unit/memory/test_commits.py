"""Commits that agents made, and the parts of their messages that summaries keep."""

import pytest

from app.core.memory.digest import digest_of
from app.core.memory.extractive.changes import commits_of
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract

BODY = "The gauge printed feet because\nits unit was lost.\n\n- Sort the table\n\nCo-Authored-By: A <a@b.example>"
HEREDOC = f"git add -A && git commit -m \"$(cat <<'EOF'\nfix: print metres\n\n{BODY}\nEOF\n)\""
REJECTED = "The user doesn't want to proceed with this tool use."


def log_of_runs(*runs: tuple[str, str, bool]) -> Log:
    log = Log()
    log.user(body={"content": "Print metres, then commit it please."})
    for command, says, is_error in runs:
        call = log.call("Bash", body={"arguments": {"command": command}})
        log.result(call, body={"content": says}, gist=says, is_error=is_error)
    return log


@pytest.mark.parametrize(
    ("command", "subject"),
    [
        (HEREDOC, "fix: print metres"),
        ('git commit -am "print metres"', "print metres"),
        ("cd /srv && git commit --no-verify -m 'print metres'", "print metres"),
        ("git commit", None),
        ("git log -m 'print metres'", None),
    ],
)
def test_the_subject_of_a_commit_is_read_from_its_command(command: str, subject: str | None) -> None:
    found = commits_of(log_of_runs((command, "[main 1a2b3c4] done", False)).events)
    assert [one.subject for one in found] == ([subject] if subject else [])


def test_a_commit_gives_the_work_and_its_reason() -> None:
    log = log_of_runs((HEREDOC, "[main 1a2b3c4] fix", False))
    assert commits_of(log.events)[0].body == "The gauge printed feet because its unit was lost.\n\n- Sort the table"
    text = extract(log.events, "", digest_of(log.events), 400, COUNTER)
    assert "## Key Decisions\n- The gauge printed feet because its unit was lost." in text


@pytest.mark.parametrize(
    "runs",
    [
        [(HEREDOC, REJECTED, True)],
        [(HEREDOC, "fatal: not a git repository", True)],
        [(HEREDOC, "[main 1a2b3c4] fix", False), ("git reset --hard HEAD~1", "HEAD is now at 5d6e7f8", False)],
    ],
)
def test_failed_and_reverted_commits_are_left_out(runs: list[tuple[str, str, bool]]) -> None:
    assert not commits_of(log_of_runs(*runs).events)


def test_an_amended_commit_is_listed_once() -> None:
    amend = "git commit --amend -m 'print metres only'"
    log = log_of_runs((HEREDOC, "[main 1a2b3c4] fix", False), (amend, "[main 2b3c4d5] fix", False))
    assert [one.subject for one in commits_of(log.events)] == ["print metres only"]


@pytest.mark.parametrize(
    ("command", "stands"),
    [
        ("git reset --hard HEAD~1", False),
        ("git reset --hard", True),
        ("git reset HEAD~1", True),
        ("git stash && make && git stash pop", True),
        ("git checkout -- other.go", True),
    ],
)
def test_work_that_a_reset_threw_away_is_neither_done_nor_decided(command: str, stands: bool) -> None:
    log = Log()
    log.user(body={"content": "Print metres, then commit it please."})
    told = (
        "The fix is to add a factor, since the gauge counts in feet.\n\n- Added a factor of 0.3048 to the gauge table"
    )
    log.assistant(body={"content": told})
    for text, run, says in (
        ("", HEREDOC, "[main 1a2b3c4] fix"),
        ("Please convert them where they are read.", "", ""),
        ("", command, "HEAD is now at 5d6e7f8"),
    ):
        if text:
            log.user(body={"content": text})
            log.assistant(body={"content": "The heights are converted where they are read, since they are read once."})
        else:
            log.result(log.call("Bash", body={"arguments": {"command": run}}), body={"content": says}, gist=says)
    told = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    text = "\n".join(line for line in told.splitlines() if "(about: " not in line)
    assert ("Added a factor of 0.3048 to the gauge table" in text) == stands
    assert ("The fix is to add a factor" in text) == stands
    assert "since they are read once" in text


def test_uncommitted_work_is_thrown_away_by_a_checkout_of_everything() -> None:
    log = Log()
    log.user(body={"content": "Print metres please."})
    log.assistant(body={"content": "Added a factor of 0.3048 to the gauge table."})
    log.user(body={"content": "Take all of that back, the table stays as it is."})
    log.result(log.call("Bash", body={"arguments": {"command": "git checkout ."}}), body={"content": ""}, gist="")
    assert "Added a factor" not in extract(log.events, "", digest_of(log.events), 600, COUNTER)
