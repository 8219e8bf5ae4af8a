"""Lines of summaries that later messages make out of date."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.log.event import content_text
from app.core.memory.cover import Summary
from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.memory.extractive.sections import LATEST
from app.core.plan.pipeline import Plan, PlanInputs, plan
from app.core.plan.state.frontier import START, from_json, to_json
from app.core.plan.state.settled import ANNOUNCED_CALLS, settled_lines, without_lines
from app.core.plan.state.wording import RESUMED
from app.core.policy.policy import PRESETS
from app.core.render.request import arrange
from app.core.tokens.budget import Budget
from tests.unit.builders import COUNTER, Log

SUMMARY = """## Goal
- Sort the gauge.
## Progress
### In Progress
- Sort by time
### Not Started
- Print a page
### Blocked
- `pytest tests` failed when it was last run in this part: test_sort.
- `git rebase main` failed when it was last run in this part: Merge conflict in a.go.
- The last attempt to change /srv/gauge.py in this part failed.
- Not resolved when this part ended: The rows are not sorted.
## Key Decisions
- Rows are sorted in the store.

<tasks>
#1 [pending] Port the gauge
#2 [in_progress] Port the report
</tasks>
<commands>
[error] pytest tests # failed: test_sort
[ok] make lint
[ok] npm install tide
</commands>"""


def summary(text: str, last_turn: int = 1) -> Summary:
    return Summary("s", 1, 9, 0, 300, text, 900, last_turn=last_turn)


def ran(command: str, says: str = "", **more: Any) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    return "Bash", {"command": command}, says, more


def edited(path: str) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    return "Edit", {"file_path": path, "old_string": "a", "new_string": "b"}, "done", {}


def task(number: int, status: str) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    return "TaskUpdate", {"taskId": str(number), "status": status}, "Updated", {}


def planned(status: str) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    return "TodoWrite", {"todos": [{"content": "Print a page", "status": status}]}, "done", {}


def log_of(*calls: tuple[str, dict[str, Any], str, dict[str, Any]]) -> Log:
    log = Log()
    log.user(body={"content": "go on"})
    for tool, arguments, says, more in calls:
        log.result(log.call(tool, body={"arguments": arguments}), body={"content": says}, gist=says, **more)
    return log


def gone(*calls: tuple[str, dict[str, Any], str, dict[str, Any]]) -> list[str]:
    """Return the lines of the summary that are left out after the calls."""
    text = without_lines(SUMMARY, settled_lines([summary(SUMMARY)], log_of(*calls).events), precise=True)
    return [line for line in SUMMARY.splitlines() if line not in text.splitlines()]


BLOCKED = "- `pytest tests` failed when it was last run in this part: test_sort."
RAN = "[error] pytest tests # failed: test_sort"
REBASE = "- `git rebase main` failed when it was last run in this part: Merge conflict in a.go."
UNCHANGED = "- The last attempt to change /srv/gauge.py in this part failed."
UNRESOLVED = "- Not resolved when this part ended: The rows are not sorted."


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        (ran("cd /srv && pytest tests 2>&1", "12 passed in 0.1s"), [BLOCKED, UNRESOLVED, RAN]),
        (ran("pytest -q", "42 passed in 0.1s"), [BLOCKED, UNRESOLVED, RAN]),
        (ran("pytest tests", "1 failed, 11 passed", is_error=True), [BLOCKED, RAN]),
        (ran("pytest tests | head -3"), []),
        (ran("pytest tests/other", "3 passed in 0.1s"), [UNRESOLVED]),
        (ran("make lint", "make: *** [lint] Error 1", is_error=True), ["[ok] make lint"]),
        (ran("npm install wind"), []),
        (ran("git rebase --abort"), [REBASE]),
        (edited("/srv/gauge.py"), [UNCHANGED, UNRESOLVED]),
        (edited("/srv/other.py"), [UNRESOLVED]),
        (task(1, "completed"), ["#1 [pending] Port the gauge"]),
        (task(1, "in_progress"), []),
        (planned("in_progress"), ["### In Progress", "- Sort by time", "### Not Started", "- Print a page"]),
    ],
)
def test_a_later_call_settles_what_it_shows_anew(call: Any, lines: list[str]) -> None:
    assert gone(call) == lines


def test_a_call_without_a_result_or_that_the_user_rejected_settles_nothing() -> None:
    log = log_of()
    log.call("Bash", body={"arguments": {"command": "pytest -q"}})
    assert not settled_lines([summary(SUMMARY)], log.events)
    assert not settled_lines(
        [summary(SUMMARY)], [replace(event, body=None) for event in log_of(ran("pytest", "1 passed")).events]
    )
    assert not gone(ran("pytest -q", "The user doesn't want to proceed with this tool use.", is_error=True))


def test_headings_and_sections_without_lines_are_left_out() -> None:
    calls = (ran("pytest -q", "42 passed"), ran("git rebase --abort"), edited("/srv/gauge.py"), planned("completed"))
    log = log_of(*calls, task(1, "completed"), task(2, "deleted"))
    text = without_lines(SUMMARY, settled_lines([summary(SUMMARY)], log.events), precise=True)
    assert text == (
        "## Goal\n- Sort the gauge.\n## Key Decisions\n- Rows are sorted in the store.\n\n"
        "<commands>\n[ok] make lint\n[ok] npm install tide\n</commands>"
    )


def test_messages_that_only_announce_are_left_out_where_another_summary_follows() -> None:
    told = "- The gauge counts twice. Let me fix that:"
    announced = "- Let me sort the gauge first. Now print the table:"
    text = f"## Goal\n- Sort the gauge.\n{LATEST}\n{told}\n{announced}\n\n<commands>\n[ok] make lint\n</commands>"
    assert not settled_lines([summary(SUMMARY), summary(text)], [])
    shown = without_lines(text, settled_lines([summary(text), summary(SUMMARY)], []), precise=True)
    assert shown == text.replace(f"{announced}\n", "")
    alone = text.replace(f"{told}\n", "")
    shown = without_lines(alone, settled_lines([summary(alone), summary(SUMMARY)], []), precise=True)
    assert shown == "## Goal\n- Sort the gauge.\n\n<commands>\n[ok] make lint\n</commands>"


def test_failures_are_left_out_some_turns_later_if_files_were_changed_since() -> None:
    changed = summary("## Progress\n### Done\n- Changed gauge.py.", 4)
    later = summary("## Goal\n- Draw the tides.", 7)
    failures = [BLOCKED, REBASE]
    for others, lines in (
        ([changed, later], failures),
        ([changed], []),
        ([replace(changed, last_turn=6)], failures),
        ([later], []),
    ):
        text = without_lines(SUMMARY, settled_lines([summary(SUMMARY, 3), *others], []), precise=True)
        assert [line for line in SUMMARY.splitlines() if line not in text.splitlines()] == lines


def folded(log: Log, to_seq: int, text: str) -> Plan:
    tree = (Summary("s", 1, to_seq, 0, 300, text, sum(event.tokens for event in log.events[:to_seq]), 1),)
    inputs = PlanInputs(log.events, log.turn, COUNTER, tree=tree, folded=tree)
    return plan(inputs, Budget(1_500, 0, 0, 1_500, 1_500, low_water=1.0), PRESETS["default"], START)


def test_a_fold_leaves_out_what_the_messages_behind_it_settle_and_says_the_same_when_planned_again() -> None:
    log = log_of(ran("pytest -q", "=== FAILURES ===\ntest_sort\n1 failed", is_error=True))
    log.add(log.events[-1].type, 3_000, call_id="c9", tool="read", call_seq=None)
    to_seq = len(log.events)
    text = write_summary(log.events, (), "", digest_of(log.events), 800, COUNTER)
    assert "`pytest` failed" in text
    log.user(body={"content": "and now?"})
    log.result(log.call("Bash", body={"arguments": {"command": "pytest -q"}}), body={"content": "2 passed in 0.1s"})
    done = folded(log, to_seq, text)
    shown = content_text(done.context.summaries[0].content)
    assert "failed" not in shown and "[error]" not in shown
    assert done.context.summary_tokens == COUNTER.message(shown)
    assert from_json(to_json(done.state)) == done.state


def test_a_next_step_is_left_out_once_a_later_turn_has_ended() -> None:
    log = Log()
    log.user()
    log.assistant(3_000)
    text = "## Goal\n- Sort the gauge.\n\n## Next Steps\n- I'll write the report."
    log.user(body={"content": "go on"})
    log.result(log.call("Read", body={"arguments": {"path": "gauge.py"}}), body={"content": "x"})
    shown = content_text(folded(log, 2, text).context.summaries[0].content)
    assert shown.endswith("## Next Steps\n- I'll write the report.")
    log.user(body={"content": "now print it"})
    shown = content_text(folded(log, 2, text).context.summaries[0].content)
    assert shown.endswith("## Goal\n- Sort the gauge.")
    planned = text.replace("I'll write", "Write")
    assert content_text(folded(log, 2, planned).context.summaries[0].content).endswith("- Write the report.")


def test_a_line_ends_the_messages_that_are_kept_from_the_summarized_part() -> None:
    log = log_of(edited("/srv/gauge.py"))
    log.add(log.events[-1].type, 3_000, call_id="c9", tool="read", call_seq=None)
    to_seq = len(log.events)
    log.assistant(body={"content": "Done."})
    log.user(body={"content": "and now?"})
    done = folded(log, to_seq, "## Goal\n- Sort the gauge.")
    assert [item.event.seq for item in done.context.items] == [2, 3, to_seq + 1, to_seq + 2]
    texts = [content_text(block.content) for block in arrange(done.context, done.state).blocks]
    assert "up to a line that ends them; others between them are left out" in texts[0]
    assert texts[3:] == [RESUMED, "Done.", "and now?"]
    assert done.context.summary_tokens == COUNTER.message(texts[0]) + COUNTER.message(RESUMED)


def test_no_line_ends_messages_if_all_are_newer_than_the_summaries() -> None:
    log = Log()
    log.user()
    log.assistant(3_000)
    log.user(body={"content": "and now?"})
    done = folded(log, 2, "## Goal\n- Sort the gauge.")
    texts = [content_text(block.content) for block in arrange(done.context, done.state).blocks]
    assert "The messages below are newer" in texts[0] and texts[1:] == ["and now?"]


def test_announced_next_steps_and_lines_on_nothing_are_left_out_where_another_summary_follows() -> None:
    text = "Nothing was decided or changed; called Read x3."
    announced = "## Next Steps\n- First, let me sort the gauge.\n- Print the table by name."
    settled = settled_lines([summary(text), summary(announced), summary(SUMMARY)], [])
    assert without_lines(text, settled, precise=True) == ""
    assert without_lines(announced, settled, precise=True) == "## Next Steps\n- Print the table by name."
    alone = settled_lines([summary(SUMMARY), summary(text)], [])
    assert without_lines(text, alone, precise=True) == text


def test_an_announced_next_step_is_left_out_after_a_few_calls() -> None:
    text = "## Next Steps\n- Let me sort the gauge."
    runs = [ran(f"cat {number}.txt", "x") for number in range(ANNOUNCED_CALLS)]
    for count, left in ((ANNOUNCED_CALLS - 1, text), (ANNOUNCED_CALLS, "")):
        assert without_lines(text, settled_lines([summary(text)], log_of(*runs[:count]).events), precise=True) == left
