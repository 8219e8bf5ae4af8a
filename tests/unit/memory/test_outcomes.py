"""Outcomes of commands, and runs of the same command."""

import pytest

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.outcomes import bare_command, error_in, is_idle, reads_only, shows_status, state_of


def result(text: str, *, is_error: bool = False) -> Event:
    return Event(2, EventType.TOOL_RESULT, 1, 10, is_error=is_error, body={"content": text})


@pytest.mark.parametrize(
    ("command", "text", "state"),
    [
        ("go build ./...", "", "ok"),
        ("go build ./... 2>&1 | head -80", "", "ok"),
        ("go build ./... | head -80", "", "unknown"),
        ("go build ./... 2>&1 | head -80", "gauge/tide.go:14:2: undefined: height", "error"),
        ("set -o pipefail; go test ./... | tail", "ok  tide 0.2s", "ok"),
        ("go test ./... | tail -3", "FAIL\ttide/report [build failed]", "error"),
        ("make lint; echo done", "done", "unknown"),
        ("cd tide && make test", "ok", "ok"),
        ("make test || true", "", "unknown"),
        ("make test &", "", "unknown"),
        ("pytest -q", "Exit code 1\n2 failed", "error"),
        ("cat build.log", "wet\nerror: no gauge", "ok"),
        ("cat build.log", "cat: build.log: No such file or directory", "error"),
        ("terraform apply", "panic: no harbour", "error"),
        ("mise run lint 2>&1 | tail -20", "[lint] $ golangci-lint\n0 issues.", "ok"),
        ("make test 2>&1 | tail -1", "42 passed in 2.0s", "ok"),
        (
            "mise run lint && mise run test 2>&1 | tail -9",
            "ok  \ttide\t(cached)\n[lint] $ golangci-lint\n[lint] Finished in 96.2ms\nFinished in 1.62s\n",
            "ok",
        ),
        ("mise run lint && mise run test 2>&1 | tail -9", "[lint] $ golangci-lint\nFinished in 1.62s\n", "unknown"),
        ("make test 2>&1 | tail -1", "2 failed, 42 passed in 2.0s", "error"),
        ("go test ./... 2>&1 | tail -5", "ok  \ttide/gauge\t0.2s\nok  \ttide/report\t(cached)", "ok"),
        ("go test ./... 2>&1 | head -1", "ok  \ttide/gauge\t0.2s", "unknown"),
        ("go test ./... 2>&1 | head -5", "ok  \ttide/gauge\t0.2s", "ok"),
        ("make test; make lint | tail", "0 issues.", "unknown"),
        ("make lint || true", "0 issues.", "unknown"),
        ("cat log | tail -1", "42 passed", "unknown"),
        ("./deploy | tail -1", "42 passed", "unknown"),
        ("echo 'a | b; c'", "a | b; c", "ok"),
    ],
)
def test_an_outcome_is_known_only_if_the_log_shows_it(command: str, text: str, state: str) -> None:
    assert state_of(result(text), command) == state


def test_without_a_result_nothing_is_known_and_an_error_is_one_whatever_ran() -> None:
    assert state_of(None, "make") == "unknown"
    assert state_of(result("fine", is_error=True), "make | tail") == "error"
    assert state_of(result("fine")) == "ok"


@pytest.mark.parametrize(
    "same",
    [
        "mise run test 2>&1 | tail -40",
        "mise run test 2>&1 | tail -30 | head -5",
        "timeout 60 mise run test",
        "cd /srv/tide && mise run test > out.txt",
        "CI=1 mise run test | grep -v skipped",
    ],
)
def test_runs_of_the_same_command_differ_in_filters_and_limits(same: str) -> None:
    assert bare_command(same) == bare_command("mise run test") == "mise run test"
    assert bare_command("mise run test:ci") != "mise run test"


def test_commands_that_merely_look_are_known() -> None:
    assert all(map(reads_only, ("git log -3 | head", "rg -n tide | wc -l", "cd a && ls")))
    assert not any(map(reads_only, ("git commit -m x", "sed -i s/a/b/ x.py", "cat a > b", "")))
    for command in (
        *(
            "gh pr view 3 --json state",
            "gh -R a/b pr diff 12 | head",
            "gh issue list",
            "gh run watch 7",
            "gh repo view",
        ),
        *("gh search issues tide", "gh auth status", "gh api repos/a/b/pulls", "gh api -X GET search -f q=tide"),
        *(
            "git branch",
            "git branch -a --format '%(refname)'",
            "git branch --contains abc",
            "git remote -v",
            "git reflog",
        ),
    ):
        assert reads_only(command), command
        assert is_idle(command), command
    for command in (
        *("gh pr merge 3 --squash", "gh pr create --title x", "gh -R a/b issue close 3", "gh repo delete a/b --yes"),
        *("gh api -X DELETE repos/a/b", "gh api repos/a/b/issues -f title=x", "gh api --method=patch repos/a/b"),
        *("/usr/bin/gh run rerun 7", "gh auth login", "gh pr view 3 && gh pr review 3 --approve"),
        *("git branch -D tide", "git branch tide", "git remote add fork url", "git reflog expire --all"),
    ):
        assert not reads_only(command), command
        assert not is_idle(command), command
    assert shows_status("cd a && go vet ./... && go test ./...")
    assert not shows_status("go vet ./...; go test ./...")


def test_the_first_error_is_a_failed_assertion_before_the_package_that_failed() -> None:
    text = "Session found\n    rewind_test.go:441: after rewind: got 2, want 1\nFAIL\ttide/integration 17.9s\nFAIL"
    assert error_in(text) == "rewind_test.go:441: after rewind: got 2, want 1"
    assert error_in(text.replace("rewind_test.go:441", "rewind")) == "FAIL tide/integration 17.9s"
    logged = "hooks.go:196: Hook output: 2026/01/30 INFO prompt submitted\n    rewind_test.go:423: Rewind output\n"
    assert error_in(logged + text) == "rewind_test.go:441: after rewind: got 2, want 1"
