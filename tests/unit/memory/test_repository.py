"""Commits, branches, pushes and pull requests made by commands, and those undone."""

import pytest

from app.core.memory.digest import digest_of
from app.core.memory.digest.files import repository_lines, undone_changes, unite_made
from app.core.memory.digest.record import from_json, to_json, unite
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import appendix
from tests.unit.memory.test_checks import add_run

FIRST = ("git add a.go && git commit -m 'fix: the gauge'", "[main 94effc6] fix: the gauge\n 1 file changed")
SECOND = ("git commit -m 'feat: the report'", "[main b5cf65b] feat: the report\n 2 files changed")


def actions_of(*runs: tuple[str, str]) -> list[str]:
    return list(unite_made(line for command, output in runs for line in repository_lines(command, "ok", output)))


def test_commits_pushes_branches_and_pull_requests_are_found_by_their_output() -> None:
    assert actions_of(
        ("git checkout -b tide", "Switched to a new branch 'tide'"),
        FIRST,
        ("git push -u origin tide 2>&1", "To github.com:a/b.git\n * [new branch]        tide -> tide"),
        ("gh pr create --title 'Fix the gauge' --body x", "https://github.com/a/b/pull/201"),
        ("git push", "Everything up-to-date"),
        ("git log -1", "[main 1111111] not made here"),
        ("cd /tmp/x && git init && git commit -m init", "[main (root-commit) 3f91520] init"),
    ) == [
        "created branch tide",
        'committed 94effc6 "fix: the gauge"',
        "pushed tide",
        'created pull request #201 "Fix the gauge"',
    ]


def test_commits_before_a_rebase_lose_their_hashes() -> None:
    rebase = ("git pull --rebase", "Successfully rebased and updated refs/heads/tide.")
    lines = ['committed "fix: the gauge"', "rebased", 'committed b5cf65b "feat: the report"']
    assert actions_of(FIRST, rebase, SECOND) == lines
    assert list(unite_made([*actions_of(FIRST), *actions_of(rebase, SECOND)])) == lines
    assert actions_of(FIRST, rebase, SECOND, ("git reset --hard HEAD~2", "HEAD is now at 9571a23")) == ["rebased"]
    counted = "Rebasing (1/2)\rRebasing (2/2)\rSuccessfully rebased and updated refs/heads/tide."
    for output in (counted, counted.replace("\r", "")):
        assert actions_of(FIRST, ("git pull --rebase", output), SECOND) == lines


def test_calls_of_github_that_change_something_are_listed_once() -> None:
    reply = "gh api repos/a/b/pulls/117/comments/27385{}/replies -f body=fine"
    assert actions_of(
        *((reply.format(number), "{}") for number in (11, 22)),
        ("gh pr comment 117 --body fine", "https://github.com/a/b/pull/117#issuecomment-1"),
        ("gh api repos/a/b/pulls/117/comments", "[]"),
        ("gh pr view 117", "title: x"),
    ) == ["called gh api repos/a/b/pulls/117/comments/…/replies", "called gh pr comment"]


def test_a_commit_that_was_undone_or_amended_is_left_out() -> None:
    reset = ("git reset --hard HEAD~1 && git log -1", "HEAD is now at 9571a23 add tests")
    assert actions_of(FIRST, reset) == []
    assert actions_of(reset) == ["undone: 1 newest commits"]
    amend = ("git commit --amend --no-edit", "[main 48e7f29] fix: the gauge\n Date: Mon")
    assert actions_of(FIRST, amend) == ['committed 48e7f29 "fix: the gauge"']
    assert actions_of(FIRST, SECOND, ("git reset --soft HEAD~1", "")) == ['committed 94effc6 "fix: the gauge"']
    restored = ("git checkout tide/gauge.go", "Updated 1 path from the index")
    assert actions_of(restored) == ["undone: uncommitted changes of tide/gauge.go"]
    assert actions_of(restored, FIRST) == ['committed 94effc6 "fix: the gauge"']


def test_a_commit_is_undone_across_spans_however_they_are_united() -> None:
    log = Log()
    for command, output in (FIRST, SECOND):
        add_run(log, command, output)
    add_run(log, "git reset --hard HEAD~2", "HEAD is now at 9571a23 add tests")
    add_run(log, "git commit --amend --no-edit", "[main 48e7f29] add tests, too")
    parts = [digest_of(log.events[at : at + 2]) for at in range(0, len(log.events), 2)]
    assert unite(parts).made == ('committed 48e7f29 "add tests, too" (amended)',)
    assert unite([parts[0], unite(parts[1:])]).made == unite(parts).made == digest_of(log.events).made
    assert from_json(to_json(unite(parts))) == unite(parts)


def test_the_appendix_lists_a_commit_once() -> None:
    log = Log()
    add_run(log, *FIRST)
    text = appendix(digest_of(log.events), COUNTER, 1000)
    assert '<repository>\ncommitted 94effc6 "fix: the gauge"\n</repository>' in text
    assert "git commit" not in text


def test_the_appendix_says_how_many_earlier_lines_it_leaves_out() -> None:
    log = Log()
    for number in range(20):
        add_run(
            log, f"git commit -m 'fix: gauge {number}'", f"[main {number:07x}] fix: gauge {number} of the old harbour"
        )
    text = appendix(digest_of(log.events), COUNTER, 400)
    lines = text.partition("<repository>\n")[2].partition("\n</repository>")[0].splitlines()
    assert 2 < len(lines) < 20
    assert lines[0] == f"({21 - len(lines)} earlier lines left out)"
    assert lines[-1] == 'committed 0000013 "fix: gauge 19 of the old harbour"'


def test_files_that_a_commit_deleted_or_renamed_are_marked_as_removed() -> None:
    log = Log()
    for path in ("app/gauge.py", "app/tide/feet.py", "app/wind.py", "app/air.py"):
        add_run(log, f"echo x > /srv/{path}", "")
    output = (
        "[main 94effc6] move\n 4 files changed\n delete mode 100644 app/air.py\n"
        " rename app/{tide => sea}/feet.py (88%)\n rename app/{ => sea}/wind.py (100%)\n"
        " rename app/gauge.py => gauge.py (97%)"
    )
    add_run(log, "git add -A && git commit -m move", output)
    digest = digest_of(log.events)
    assert digest.files_removed == ("app/air.py", "app/tide/feet.py", "app/wind.py", "app/gauge.py")
    text = appendix(digest, COUNTER, 400)
    assert all(f"/srv/{path} (removed)" in text for path in digest.files_removed)
    add_run(log, "git log --stat -1", output.replace("app/", "old/"))
    assert digest_of(log.events).files_removed == digest.files_removed


def test_a_removed_folder_into_which_a_file_was_written_is_there_again() -> None:
    first, last = Log(), Log()
    add_run(first, "rm -r /srv/tide /srv/gauge", "")
    add_run(last, "echo x > /srv/tide/sea/feet.py", "")
    parts = [digest_of(log.events) for log in (first, last)]
    assert parts[0].files_removed == ("/srv/tide", "/srv/gauge")
    assert unite(parts).files_removed == ("/srv/gauge",)
    add_run(first, "echo x > /srv/tide/sea/feet.py", "")
    assert digest_of(first.events).files_removed == ("/srv/gauge",)


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("git restore a.go b.go", ("a.go", "b.go")),
        ("git checkout -- a.go", ("a.go",)),
        ("git -C /srv checkout .", ()),
        ("git stash", ()),
        ("git checkout main", None),
        ("git checkout -b a.b", None),
        ("git restore --staged a.go", None),
        ("git reset HEAD", None),
        ("git stash pop", None),
    ],
)
def test_paths_that_a_command_reverts(command: str, paths: tuple[str, ...] | None) -> None:
    assert [one.paths for one in undone_changes(command, "ok")] == ([] if paths is None else [paths])
    assert not list(undone_changes(command, "error"))
