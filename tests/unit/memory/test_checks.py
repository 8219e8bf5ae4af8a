"""Commands that check: runs of the same check, their outcomes, and the effect of a newer run on older ones."""

import pytest

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest import digest_of
from app.core.memory.digest.checks import checks_of
from app.core.memory.digest.outcomes import CheckRun, newest_runs, outcomes_of, state_of
from app.core.memory.digest.record import Command, Digest, from_json, to_json, unite
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import appendix


def result(text: str) -> Event:
    return Event(2, EventType.TOOL_RESULT, 1, 10, body={"content": text})


def add_run(log: Log, command: str, text: str = "") -> None:
    log.result(log.call("Bash", body={"arguments": {"command": command}}), body={"content": text})


def add_edit(log: Log, path: str = "/srv/tide/gauge.go", old: str = "a", new: str = "b", text: str = "fine") -> None:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    log.result(log.call("Edit", body={"arguments": arguments}), body={"content": text}, gist=text)


def commands(digest: Digest) -> list[str]:
    text = appendix(digest, COUNTER, 2000)
    return text.partition("<commands>\n")[2].partition("\n</commands>")[0].split("\n") if "<commands>" in text else []


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("cd /srv && CI=1 timeout 60 mise run test:ci 2>&1 | tail -40", ["mise run test:ci"]),
        ("go test -v -count=1 ./tide -run 'A|B' 2>&1 | grep FAIL", ["go test ./tide -run 'A|B'"]),
        ("mise run fmt && mise run lint && mise run test", ["mise run lint", "mise run test"]),
        (".venv/bin/python -m pytest -q tests/a.py", ["pytest tests/a.py"]),
        ("uv run pytest -x -k tide", ["pytest -k tide"]),
        ("./test-harness.sh setup-repo && ./test-harness.sh verify-commit", ["./test-harness.sh verify-commit"]),
        ("npx tsc --noEmit; npm run lint", ["tsc --noEmit", "npm run lint"]),
        ("# all of it\ncargo clippy --all-targets", ["cargo clippy --all-targets"]),
        ("golangci-lint run --help", []),
        ("grep -rn test . | head", []),
        ("git commit -m 'test: the gauge'", []),
        ("test -f go.mod", []),
    ],
)
def test_a_check_is_known_by_its_program_and_target(command: str, names: list[str]) -> None:
    assert [check.text for check in checks_of(command)] == names


@pytest.mark.parametrize(
    ("command", "text", "ends"),
    [
        ("mise run lint 2>&1 | head -50", "0 issues.", [("mise run lint", "ok", "")]),
        ("mise run lint 2>&1 | head -1", "0 issues.", [("mise run lint", "unknown", "")]),
        ("go build ./... 2>&1 | head -20", "", [("go build ./...", "ok", "")]),
        ("timeout 9 go build ./... 2>&1 | head -20", "", [("go build ./...", "unknown", "")]),
        ("go test ./... | grep -E 'ok|FAIL'", "ok  \ttide\t0.1s", [("go test ./...", "ok", "")]),
        ("go test ./... | grep -v skip", "ok  \ttide\t0.1s", [("go test ./...", "unknown", "")]),
        ("go test -run X ./a", "ok  \ta\t0.1s [no tests to run]", [("go test -run X ./a", "unknown", "")]),
        ("pytest -q | tail -1", "42 passed in 2.0s", [("pytest", "ok", "42 passed")]),
        ("pytest", "Exit code 1\nFAILED a.py::test_x - E\n1 failed", [("pytest", "error", "a.py::test_x")]),
        (
            "go test ./...",
            "Exit code 1\n--- FAIL: TestTide (0.1s)\n    --- FAIL: TestTide/low (0.1s)\nFAIL",
            [("go test ./...", "error", "TestTide")],
        ),
        (
            "mise run lint && mise run test 2>&1",
            "Exit code 1\n0 issues.\n--- FAIL: TestTide (0.1s)\nFAIL",
            [("mise run lint", "ok", ""), ("mise run test", "error", "TestTide")],
        ),
        (
            "go build ./... && mise run test",
            "Exit code 1\n# tide\ntide/gauge.go:4:1: syntax error",
            [("go build ./...", "error", "tide/gauge.go:4:1: syntax error")],
        ),
        ("make test && ./deploy", "Exit code 3\nno harbour", [("make test", "unknown", "")]),
        ("mise run build", "<tool_use_error>Sibling tool call errored</tool_use_error>", []),
    ],
)
def test_each_check_has_its_outcome(command: str, text: str, ends: list[tuple[str, str, str]]) -> None:
    assert [(one.check.text, one.state, one.report) for one in outcomes_of(command, result(text))] == ends


def test_a_failure_leaves_once_the_same_check_passed_under_another_text_or_in_a_chain() -> None:
    log = Log()
    add_run(log, "go build ./... 2>&1", "Exit code 1\ngauge.go:4:1: undefined: height")
    add_run(log, "mise run lint 2>&1 | tail -20", "gauge.go:4:1: unused\n1 issues:")
    add_run(log, "cd /srv && mise run fmt && mise run lint && go build ./... 2>&1", "0 issues.")
    assert commands(digest_of(log.events)) == ["[ok] mise run lint", "[ok] go build ./..."]


def test_a_run_of_everything_covers_one_of_a_part_and_not_the_reverse() -> None:
    part, whole = CheckRun("go test ./tide -run TestTide", "error"), CheckRun("go test ./...", "ok")
    assert newest_runs([part, whole]) == (whole,)
    assert newest_runs([part, CheckRun("mise run test", "ok")]) == (CheckRun("mise run test", "ok"),)
    other = CheckRun("go test ./harbour", "ok")
    assert newest_runs([CheckRun("go test ./...", "error"), other])[0].state == "error"
    assert newest_runs([part, other]) == (part, other)
    assert newest_runs([part, CheckRun("mise run lint", "ok")])[0] == part
    tagged = CheckRun("go test -tags=integration ./tide", "error")
    for run in (whole, CheckRun("mise run test", "ok"), CheckRun("go test ./tide", "ok")):
        assert newest_runs([tagged, run]) == (tagged, run), "it runs more tests"
    all_tagged = CheckRun("go test -tags=integration ./...", "ok")
    assert newest_runs([tagged, all_tagged]) == (all_tagged,)
    web, api = (CheckRun("npm test", state, folder=at) for state, at in (("error", "web"), ("ok", "api")))
    assert newest_runs([web, api]) == (web, api)


def test_a_check_older_than_the_last_edits_says_so_and_names_what_failed() -> None:
    log = Log()
    add_run(log, "go test ./...", "Exit code 1\n--- FAIL: TestTide (0.1s)\nFAIL")
    add_run(log, "mise run lint", "0 issues.")
    add_edit(log, text="<tool_use_error>String to replace not found in file.</tool_use_error>")
    add_edit(log, "/tmp/notes.txt")
    ended = ["[ok] mise run lint", "[error] go test ./... # failed: TestTide"]
    assert commands(digest_of(log.events)) == ended
    assert commands(unite([digest_of(log.events[:4]), digest_of(log.events[4:])])) == ended
    before = digest_of(log.events)
    seen = len(log.events)
    add_edit(log)
    old = [
        "[ok] mise run lint # before the code last changed",
        "[error] go test ./... # failed: TestTide; before the code last changed",
    ]
    assert commands(digest_of(log.events)) == old
    after = digest_of(log.events[seen:])
    assert commands(unite([before, after])) == old
    assert unite([before, after]).checks == digest_of(log.events).checks


def test_a_digest_of_a_release_before_has_the_checks_among_its_commands() -> None:
    stored = to_json(Digest(commands=(Command("cd a && make lint 2>&1", "error"), Command("ls", "ok"))))
    del stored["checks"], stored["made"]
    assert from_json(stored).checks == (CheckRun("make lint", "error", folder="a"),)


def test_a_call_refused_by_the_harness_had_no_effect() -> None:
    refused = result("<tool_use_error>File does not exist.</tool_use_error>")
    assert state_of(refused) == "error"
    log = Log()
    log.result(log.call("Read", body={"arguments": {"path": "a.go"}}), body=refused.body, gist=refused.text)
    add_edit(log, "/srv/b.go", text="<tool_use_error>String to replace not found</tool_use_error>")
    digest = digest_of(log.events)
    assert (digest.files_read, digest.files_modified) == (("/srv/b.go",), ())


def test_an_error_that_was_mended_is_no_longer_listed() -> None:
    log = Log()
    log.result(
        log.call("Bash", body={"arguments": {"command": "terraform apply -x"}}),
        body={"content": "error: -x"},
        is_error=True,
    )
    assert digest_of(log.events).errors == ("Bash: error: -x",)
    add_run(log, "terraform apply", "done")
    assert digest_of(log.events).errors == ()


def test_a_command_that_failed_is_not_listed_once_one_of_its_program_did_better() -> None:
    log = Log()
    add_run(log, "terraform apply -x", "Error: unknown flag: -x")
    assert commands(digest_of(log.events)) == ["[error] terraform apply -x"]
    add_run(log, "terraform apply --all", "done")
    assert commands(digest_of(log.events)) == ["[ok] terraform apply --all"]


def test_commands_that_prepare_or_look_and_those_of_unknown_end_are_not_listed() -> None:
    log = Log()
    for command in ("git add -A", "mkdir -p a", "cat > a.go <<'EOF'\npackage a\nrun && go\nEOF", "ls | wc -l"):
        add_run(log, command, "fine")
    add_run(log, "./tide | head", "1")
    assert commands(digest_of(log.events)) == []


def test_beside_checks_other_commands_are_not_listed_nor_runs_of_unknown_end() -> None:
    log = Log()
    add_run(log, "./tide --verbose", "Exit code 1\nError: unknown flag: --verbose")
    assert commands(digest_of(log.events)) == ["[error] ./tide --verbose"]
    add_run(log, "go test ./wind | grep -v skip", "?")
    assert commands(digest_of(log.events)) == ["go test ./wind"]
    add_run(log, "go vet ./...", "")
    assert commands(digest_of(log.events)) == ["go test ./wind", "[ok] go vet ./..."]
    add_run(log, "go test ./...", "ok  \ttide\t0.2s")
    assert commands(digest_of(log.events)) == ["[ok] go vet ./...", "[ok] go test ./..."]


def test_an_edit_of_plain_text_leaves_checks_as_new_as_they_were() -> None:
    log = Log()
    add_run(log, "go test ./...", "ok  \ttide\t0.2s")
    add_edit(log, "/srv/tide/docs/limits.md")
    assert commands(digest_of(log.events)) == ["[ok] go test ./..."]


def test_an_edit_that_was_taken_back_leaves_checks_as_new_as_they_were() -> None:
    log = Log()
    add_run(log, "go test ./...", "ok  \ttide\t0.2s")
    add_edit(log)
    assert commands(digest_of(log.events)) == ["[ok] go test ./... # before the code last changed"]
    add_edit(log, old="b", new="a")
    assert commands(digest_of(log.events)) == ["[ok] go test ./..."]


def test_a_check_is_as_new_as_before_a_change_of_settings_in_a_hidden_folder() -> None:
    log = Log()
    add_run(log, "go test ./...", "ok  \ttide\t0.2s")
    add_run(log, "rm -f .gauge/settings.json /srv/.vscode/launch.json", "")
    assert commands(digest_of(log.events)) == ["[ok] go test ./..."]
    add_run(log, "rm -f .worktrees/3/tide/settings.json", "")
    assert commands(digest_of(log.events)) == ["[ok] go test ./... # before the code last changed"]


def test_of_a_scripts_runs_with_several_arguments_only_the_newest_outranks_other_checks() -> None:
    log = Log()
    for command in ("mise run test", "tools/tide-test.sh high", "tools/tide-test.sh low", "go test ./tide"):
        add_run(log, command, "ok  \ttide\t0.2s")
    runs = ("tools/tide-test.sh high", "mise run test", "tools/tide-test.sh low", "go test ./tide")
    assert commands(digest_of(log.events)) == [f"[ok] {command}" for command in runs]


def test_a_check_is_older_than_the_changes_that_git_brought_in() -> None:
    log = Log()
    add_run(log, "go test ./...", "ok  \ttide\t0.2s")
    add_run(log, "git pull --rebase", "Current branch main is up to date.")
    assert commands(digest_of(log.events)) == ["[ok] go test ./..."]
    add_run(log, "git pull --rebase", "Successfully rebased and updated refs/heads/main.")
    assert commands(digest_of(log.events)) == ["[ok] go test ./... # before the code last changed"]


def test_a_command_with_a_long_argument_is_left_out_once_it_succeeded() -> None:
    log = Log()
    add_run(log, "gh api comments -f body=\"$(cat <<'EOF'\nfine\nEOF\n)\"", "Exit code 1\ngh: Not Found (HTTP 404)")
    assert commands(digest_of(log.events)) != []
    add_run(log, "gh api comments -F body=fine", "{}")
    assert "[error]" not in "".join(commands(digest_of(log.events)))


def test_where_room_is_short_failures_are_listed_and_unknown_outcomes_left_out_first() -> None:
    log = Log()
    add_run(log, "go test ./tide", "Exit code 1\n--- FAIL: TestTide (0.1s)\nFAIL")
    for name in range(9):
        add_run(log, f"go test ./harbour{name}", f"ok  \tharbour{name}\t0.2s")
    add_run(log, "go test ./wind | grep -v skip", "ok  \twind\t0.2s")
    shown = appendix(digest_of(log.events), COUNTER, 70)
    assert "[error] go test ./tide # failed: TestTide" in shown
    assert "./wind" not in shown


def test_a_command_that_failed_is_left_out_once_it_was_continued() -> None:
    log = Log()
    add_run(log, "git cherry-pick ea85138", "Exit code 1\nerror: could not apply ea85138")
    assert commands(digest_of(log.events)) == ["[error] git cherry-pick ea85138"]
    add_run(log, "git add gauge.go && git cherry-pick --continue --no-edit", "fine")
    assert "[error]" not in "".join(commands(digest_of(log.events)))
