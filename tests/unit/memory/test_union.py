"""Several summaries united into one text."""

from dataclasses import replace

import pytest

from app.core.memory.cover import Summary
from app.core.plan.state.frontier import LATER, NEWER, OLDER, SINGLE, SPARSE
from app.core.plan.state.union import unite
from app.core.plan.state.wording import WITHOUT_FOLD, join_summaries

FIRST = """## Goal
- Sort the gauge.

<requests>
- Sort the gauge.
- Then print it.
</requests>
<modified-files>
src/b.py
</modified-files>
<read-files>
src/a.py
src/c.py
</read-files>
<commands>
[error] make test
make lint | tail
</commands>
<identifiers>
sort_rows port: 8700 Gauge
</identifiers>"""
SECOND = """## Agent Messages at the End of This Part
- Sorted.

<modified-files>
src/a.py
src/b.py
</modified-files>
<commands>
[ok] make test
</commands>
<identifiers>
Gauge by_time port: 9000 port: 8700
</identifiers>"""


def summary(text: str, turns: tuple[int, int] = (0, 0), times: tuple[str, str] = ("", "")) -> Summary:
    return Summary(
        "s", 277, 284, 0, 10, text, starts_at=times[0], ends_at=times[1], first_turn=turns[0], last_turn=turns[1]
    )


def test_a_file_is_marked_as_removed_if_the_newest_summary_that_lists_it_says_so() -> None:
    there, gone = ("<modified-files>\n/srv/a.go\n/srv/b.go" + end + "\n</modified-files>" for end in ("", " (removed)"))
    assert unite([there, gone]).sections == gone
    assert unite([gone, there]).sections == there
    assert unite([there, "<modified-files>\nb.go (removed)\n</modified-files>"]).sections == gone


def test_each_section_occurs_once_and_newer_lines_replace_older_ones() -> None:
    union = unite([FIRST, SECOND])
    assert union.words == ("## Goal\n- Sort the gauge.", "## Agent Messages at the End of This Part\n- Sorted.")
    assert union.sections == (
        "<requests>\n- Then print it.\n</requests>\n"
        "<modified-files>\nsrc/a.py\nsrc/b.py\n</modified-files>\n"
        "<read-files>\nsrc/c.py\n</read-files>\n"
        "<commands>\nmake lint | tail\n[ok] make test\n</commands>\n"
        "<identifiers>\nsort_rows Gauge by_time port: 9000 port: 8700\n</identifiers>"
    )


def test_runs_of_the_same_command_have_the_newest_state() -> None:
    runs = ["<commands>\n[error] make test | tail -3\n</commands>", "<commands>\ncd a && make test\n</commands>"]
    assert unite(runs).sections == "<commands>\ncd a && make test\n</commands>"


EDITED = "- Changed gauge.py: added sort_rows."


def test_a_failure_leaves_with_a_later_pass_of_more() -> None:
    other = "- The change of a.go failed when it was last tried."
    blocked = f"### Blocked\n- `go test ./tide -run…` failed when it was last run.\n{other}\n## Next Steps\n- Sort."
    failed = f"{blocked}\n<commands>\n[error] go test ./tide -run TestSort # failed: TestSort\n</commands>"
    passed = "<commands>\n[ok] go test ./...\n</commands>"
    union = unite([failed, passed])
    assert union.words[0] == f"### Blocked\n{other}\n## Next Steps\n- Sort."
    assert union.sections == passed
    again = unite([passed, failed])
    assert "go test ./tide" in again.words[1] and "[error] go test ./tide" in again.sections


def test_a_failed_change_leaves_with_a_later_change_of_the_file() -> None:
    failed = "### Blocked\n- The last attempt to change /srv/a.go in this part failed."
    assert unite([failed, "<modified-files>\n/srv/b.go\n</modified-files>"]).words[0] == failed
    assert unite([failed, "<modified-files>\n/srv/a.go\n</modified-files>"]).words[0] == ""
    assert unite(["<modified-files>\n/srv/a.go\n</modified-files>", failed]).words[1] == failed


def test_a_heading_over_failures_leaves_with_the_last_of_them() -> None:
    failed, passed = (
        "### Blocked\n- `make test` failed when it was last run.",
        "<commands>\n[ok] make test\n</commands>",
    )
    assert unite([failed, passed]).words == ("", "")


def test_a_failure_that_a_later_summary_reports_again_leaves_with_its_headings() -> None:
    first = "## Goal\n- Sort.\n## Progress\n### Blocked\n- `make test` failed when it was last run: TestSort."
    second = "### Blocked\n- `make test | tail -3` failed when it was last run: TestPrint."
    assert unite([first, second]).words == ("## Goal\n- Sort.", second)
    assert unite([f"{first}\n- It rains.\n## Next Steps\n- Wait.", second]).words[0] == (
        "## Goal\n- Sort.\n## Progress\n### Blocked\n- It rains.\n## Next Steps\n- Wait."
    )


def test_a_problem_leaves_with_a_later_edit_or_pass() -> None:
    open_one = "### Blocked\n- Not resolved when this part ended: The test fails because of a cycle."
    for later in ("- Changed gauge.py.", "<commands>\n[ok] make test\n</commands>"):
        assert unite([open_one, later]).words[0] == ""
        assert unite([later, open_one]).words[1] == open_one
    assert unite([open_one, "## Goal\n- Sort."]).words[0] == open_one


def test_plans_leave_with_a_later_edit() -> None:
    plans = "## Progress\n### In Progress\n- Sort.\n### Not Started\n- Print.\n- Test.\n## Next Steps\n- I'll sort."
    done = "## Goal\n- Go.\n## Progress\n### Done\n- It rains."
    assert unite([f"## Goal\n- Go.\n{plans}", EDITED]).words == ("## Goal\n- Go.", EDITED)
    assert unite([f"{done}\n{plans.removeprefix('## Progress')[1:]}", EDITED]).words[0] == done
    assert unite([plans, "## Goal\n- Go."]).words[0] == plans
    assert unite([EDITED, plans]).words[1] == plans


def test_names_that_the_text_shows_elsewhere_and_shorter_paths_leave() -> None:
    first = (
        "- Wrote `load_rows`.\n\n<modified-files>\nsrc/tide/gauge.py\n</modified-files>\n"
        "<identifiers>\nstore_rows gauge.py Gauge.unit rate: 90\n</identifiers>"
    )
    second = (
        "<modified-files>\n/srv/src/tide/gauge.py\n/srv/other/tide/gauge.py\n</modified-files>\n"
        "<identifiers>\nload_rows unit tide/gauge.py Row\n</identifiers>"
    )
    assert unite([first, second]).sections == (
        "<modified-files>\n/srv/other/tide/gauge.py\n/srv/src/tide/gauge.py\n</modified-files>\n"
        "<identifiers>\nstore_rows Gauge.unit rate: 90 Row\n</identifiers>"
    )


def test_a_failure_of_something_else_stays() -> None:
    failed = "### Blocked\n- `go build ./...` failed when it was last run: a.go:3."
    for later in ("[ok] go test ./...", "[ok] go build ./tide", "go build ./...", "[error] go build ./..."):
        assert unite([failed, f"<commands>\n{later}\n</commands>"]).words[0] == failed


def test_a_check_that_ran_before_later_edits_says_so() -> None:
    ran = "<commands>\n[ok] make test # 42 passed\n[ok] git push\nmake lint\n</commands>"
    dated = "<commands>\n[ok] make test # 42 passed; before the last edits\n[ok] git push\nmake lint\n</commands>"
    assert unite([ran, EDITED]).sections == dated
    assert unite([ran, EDITED, ""]).sections == dated
    assert unite([EDITED, ran]).sections == ran
    for mark in ("before the last edits", "before the code last changed"):
        marked = f"<commands>\n[ok] make lint # {mark}\n</commands>"
        assert unite([marked, EDITED]).sections == marked


def test_a_heading_without_its_lines_is_removed() -> None:
    assert unite(["## Goal\n[... 90 characters of this summary left out]", ""]).words == (
        "[... 90 characters of this summary left out]",
        "",
    )


@pytest.mark.parametrize(
    ("turns", "times", "span"),
    [
        ((3, 12), ("2026-01-22T09:14:00Z", "2026-01-22T10:02:59Z"), "turns 3 to 12, 2026-01-22 09:14 to 10:02 UTC"),
        ((4, 4), ("2026-01-22T23:14:00Z", "2026-01-23T00:02:00Z"), "turn 4, 2026-01-22 23:14 to 2026-01-23 00:02 UTC"),
        ((4, 4), ("2026-01-22T23:14:00Z", "2026-01-22T23:14:30Z"), "turn 4, 2026-01-22 23:14 UTC"),
        ((1, 2), ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"), "turns 1 to 2"),
        ((0, 0), ("", ""), "its earlier part"),
    ],
)
def test_one_summary_says_its_turns_and_times(turns: tuple[int, int], times: tuple[str, str], span: str) -> None:
    shown = join_summaries((summary("## Goal", turns, times),), recall=False)
    rest = "Of that part, only messages that are still needed follow."
    age = "Failures, open tasks and plans are as of the end of each summary; messages after it are newer."
    undated = replace(WITHOUT_FOLD, dated=False)
    assert join_summaries((summary("## Goal", turns, times),), recall=False, last=undated) == shown.replace(
        f" {age}", ""
    )
    rest = f"{rest} {age}"
    assert shown == f"[The conversation was compacted: this summary stands for {span}. {rest}]\n\n## Goal"


def test_several_summaries_have_one_header_and_no_number_of_an_event() -> None:
    shown = join_summaries((summary(FIRST, (1, 3)), summary(SECOND, (4, 4))), 2)
    assert shown.startswith(
        "[The conversation was compacted: these summaries stand for its earlier part, oldest first;"
    )
    assert [line for line in shown.split("\n") if line.startswith("[")][1:4] == [
        "[2 earlier summaries left out.]",
        "[Turns 1 to 3]",
        "[Turn 4]",
    ]
    assert shown.count("was compacted") == shown.count("<modified-files>") == 1
    assert "277" not in shown and "recalled" not in join_summaries((summary(FIRST), summary(SECOND)), recall=False)
    assert join_summaries((), 1) == "[1 earlier summary left out.]"


def test_headings_mark_the_turn_in_which_the_previous_summary_ended() -> None:
    parts = [
        summary(f"## Goal\n- Part {n}.", turns) for n, turns in enumerate([(1, 3), (3, 3), (3, 5), (5, 6), (7, 7)])
    ]
    shown = join_summaries(parts, last=replace(WITHOUT_FOLD, precise=True))
    assert [line for line in shown.split("\n") if line.startswith("[Turn")] == [
        "[Turns 1 to 3]",
        "[Turn 3 (continued)]",
        "[Turns 3 (continued) to 5]",
        "[Turns 5 (continued) to 6]",
        "[Turn 7]",
    ]
    assert "continued" not in join_summaries(parts)


NEEDED = "Messages of that part that are still needed follow"
PASSED = "<commands>\n[ok] make lint\n</commands>"


@pytest.mark.parametrize(
    ("follows", "rest"),
    [
        (SINGLE, "Single messages of that part follow up to a line that ends them; others between them are left out"),
        (LATER, "The messages below are newer"),
        (OLDER, f"{NEEDED}, up to a line that ends them"),
        (SPARSE, f"{NEEDED}, with gaps between them, up to a line that ends them"),
        (NEWER, "The messages below are newer"),
    ],
)
def test_the_header_mentions_states_only_if_a_summary_has_any(follows: str, rest: str) -> None:
    last = replace(WITHOUT_FOLD, follows=follows, precise=True)
    words, passed = summary("## Goal\n- Sort the gauge."), summary(PASSED)
    assert join_summaries((words,), recall=False, last=last).startswith("[The conversation was compacted: this summary")
    assert f"{rest}.]\n\n" in join_summaries((words,), recall=False, last=last)
    is_earlier = follows in (OLDER, SPARSE, NEWER)
    states = "Failures" if is_earlier else "Passed checks, failures"
    for state in ("## Next Steps\n- Print it.", "<tasks>\n#1 [pending] Print it\n</tasks>", "### Blocked\n- A gauge."):
        shown = join_summaries((words, summary(state)), recall=False, last=last)
        assert f" {states}, open tasks and plans are as of the end of each summary" in shown
    assert ("of each summary" in join_summaries((words, passed), recall=False, last=last)) is not is_earlier


def test_a_failure_from_before_later_edits_stays_in_the_words_of_its_part_alone() -> None:
    words = "### Blocked\n- `make test` failed when it was last run in this part."
    failed = "<commands>\n[error] make test\n[ok] make lint\n</commands>"
    union = unite([f"{words}\n\n{failed}", EDITED])
    assert union.words == (words, EDITED)
    assert union.sections == "<commands>\n[ok] make lint # before the last edits\n</commands>"
    assert unite([EDITED, failed]).sections == failed
