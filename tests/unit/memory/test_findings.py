"""Statements of agents: decisions and findings with their reason, against refuted statements and narration."""

import pytest

from app.core.memory.digest import digest_of
from app.core.memory.digest.record import Digest
from app.core.memory.digest.sentences import sentences
from app.core.memory.extractive.changes import finished_work
from app.core.memory.extractive.quotes import condense
from app.core.memory.extractive.sections import CONTEXT, DECISIONS, SectionLine, dated
from app.core.memory.extractive.statements import (
    findings,
    finished_statements,
    has_content,
    is_narration,
    is_observation,
    refutes,
    reports_success,
    statements,
    states_next_step,
)
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract


def findings_of(text: str) -> list[str]:
    return [one for _, one in findings(text, ends_turn=False)]


@pytest.mark.parametrize(
    "text",
    [
        "Heights stay in the report because the gauge has no unit.",
        "I should leave the column as it is to avoid a migration rather than rename it.",
        "The root cause is a missing import in `tide.py`.",
        "We went with the report instead of the gauge.",
        "The gauge package cannot import the report since the report imports it.",
    ],
)
def test_a_decision_or_finding_is_found_whole_in_a_long_answer(text: str) -> None:
    assert findings_of(f"I looked at the gauge. It is {'very ' * 50}old. {text}\n\n## Files\n- `tide.py`") == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Let me read the gauge because it prints feet.",
        "If the gauge is wet, it prints feet because its unit is lost.",
        "The issue is likely that the gauge is wet.",
        "Shall I sort the tides instead of printing them?",
        "### Timeline\n- The gauge prints feet because its unit is lost.",
        "This new table would:\n- Print metres instead of feet.",
        "**Options:**\n1. Print metres instead of feet.",
        "## Code review\nThe report prints metres because the gauge does.",
        "```\n# The gauge prints feet because its unit is lost.\n```",
        "> The gauge prints feet because its unit is lost.",
        "`unit` is no longer needed since the gauge is metric.",
        "The reasons are clear, because:",
        "Since these are tests, the simplest fix is a comment. But actually, nobody reads it.",
        "The fix is to print metres instead of feet or to drop the unit.",
        "Now update `tide.py` to sort instead of printing.",
    ],
)
def test_suppositions_announcements_and_quotes_are_no_findings(text: str) -> None:
    assert findings_of(text) == []


def test_a_sentence_is_not_split_after_the_number_of_an_item() -> None:
    text = "I changed the gauge so that it: 1. Never fails, because the report has no unit."
    assert findings_of(text) == [text]


def test_a_number_at_the_end_of_a_sentence_ends_it() -> None:
    assert list(sentences("Go with option 1. Then keep to it.")) == ["Go with option 1.", "Then keep to it."]


def test_a_contrast_is_kept_with_what_it_contrasts() -> None:
    assert findings_of("The gauge prints feet. But the report passed since it reads no unit.") == [
        "The gauge prints feet. But the report passed since it reads no unit."
    ]
    assert findings_of("So the report passed since it reads no unit.") == []


def test_a_statement_is_kept_with_the_one_it_refers_to() -> None:
    assert findings_of("The gauge has no unit. This means heights are in feet.") == [
        "The gauge has no unit. This means heights are in feet."
    ]
    assert findings_of("The bug is in the gauge:\n\n- **Feet** are printed.") == [
        "The bug is in the gauge: Feet are printed."
    ]


def test_emphasis_is_never_cut_in_half() -> None:
    assert [one.text for one in statements("**5. Removed `feet` from the gauge** (`gauge.py`). Then **more**.")] == [
        "5. Removed `feet` from the gauge (`gauge.py`).",
        "Then more.",
    ]
    assert "**" not in condense("**The gauge is dry now.** It was wet. " * 20, 100)


@pytest.mark.parametrize(
    "text",
    ["Let me check the gauge:", "Now let me verify that the fix works.", "Good question. I'll look at it.", "Perfect!"],
)
def test_narration_is_no_finding(text: str) -> None:
    assert not has_content(text)


def test_statements_with_content_are_no_narration() -> None:
    assert has_content("Let me know. The gauge prints feet.")
    assert not is_narration("Good, only the gauge prints feet.")


def decided(log: Log) -> str:
    text = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    return "".join(text.partition(heading)[2].partition("\n#")[0] for heading in (DECISIONS, CONTEXT))


def test_choices_are_decisions_and_observations_are_context() -> None:
    log = Log()
    log.user(body={"content": "Print the heights in metres."})
    log.assistant(body={"content": "The issue was that the report converts every height."})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    log.assistant(body={"content": "We convert heights in the report instead of the gauge."})
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    text = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    assert f"{DECISIONS}\n- We convert heights in the report instead of the gauge.\n#" in text
    assert f"{CONTEXT}\n- The issue was that the report converts every height.\n#" in text


def test_of_the_observations_before_a_change_only_causes_stay_as_found_earlier() -> None:
    log = Log()
    log.user(body={"content": "Print the heights in metres."})
    log.assistant(body={"content": "Right now the depths show twice because we print both tables."})
    log.assistant(body={"content": "The issue is that the report never converts the heights."})
    arguments = {"file_path": "report.py", "old_string": "h", "new_string": "h / 3.28"}
    log.result(log.call("Edit", body={"arguments": arguments}), body={"content": "fine"})
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    text = decided(log)
    assert "- Found earlier: The issue is that the report never converts the heights." in text
    assert "Right now" not in text
    log.assistant(body={"content": "The depths are wrong because nobody measured them."})
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    assert "\n- The depths are wrong because nobody measured them." in decided(log)


@pytest.mark.parametrize(
    ("text", "is_choice"),
    [
        ("The report is creating a second file instead of reading the first.", False),
        ("The gauge incorrectly prints feet because it stops at the first gap.", False),
        ("`gauge.py` - Added the unit so that readers know it.", True),
        ("Since the report has the width, I can use it for the column.", False),
        ("The simplest fix is to merge both tables since they are alike.", True),
    ],
)
def test_a_decision_states_a_choice_or_work(text: str, is_choice: bool) -> None:
    assert is_observation(text) is not is_choice


def test_items_under_a_heading_over_decisions_are_decisions() -> None:
    text = (
        "## Key design decisions\n\n- The unit stands in the head of the table\n\n## Files\n\n- The report of heights"
    )
    assert findings_of(text) == ["The unit stands in the head of the table"]


@pytest.mark.parametrize(
    "text",
    [
        "The gauge was removed in commit 9d754fb.",
        "The branch name has changed since the test was written.",
        "In real use, both files are committed to the repository.",
    ],
)
def test_a_sentence_on_what_happened_before_is_no_finished_work(text: str) -> None:
    assert not list(finished_statements(text))


def test_a_reason_within_a_report_is_no_next_step() -> None:
    report = "## Fixed the gauge\n\nA second run changes its own work, so we should always continue on the same branch."
    sentence = "A second run changes its own work, so we should always continue on the same branch."
    assert not states_next_step(sentence, report)
    assert states_next_step(sentence, sentence)
    assert not states_next_step("Let me look at the gauge.", "Let me look at the gauge.")


def test_a_report_with_headings_is_shortened_to_its_outline() -> None:
    sections = [f"### {n}. Fixed harbour {n}\n\nIt printed feet. {'Rain falls. ' * 20}" for n in (1, 2, 3)]
    text = "\n\n".join(["All tests pass.", *sections])
    assert condense(text, 126) == (
        "All tests pass. Fixed harbour 1: It printed feet. … Fixed harbour 2: It printed feet. …"
        " Fixed harbour 3: It printed feet. …"
    )
    assert condense(text, 80) == "All tests pass. Fixed harbour 1: … Fixed harbour 2: … Fixed harbour 3: …"
    assert "harbour 2" not in condense(text, 60)


def test_an_observation_is_left_out_rather_than_cut() -> None:
    log = Log()
    log.user(body={"content": "Print the heights in metres."})
    log.assistant(body={"content": f"The issue was that the report converts every {'tall ' * 60}height."})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    texts = [extract(log.events, "", digest_of(log.events), tokens, COUNTER) for tokens in range(60, 300, 20)]
    assert not any("tall…" in text for text in texts)


def test_of_the_diagnoses_of_a_turn_the_last_one_stays() -> None:
    log = Log()
    log.user(body={"content": "Why does the gauge print feet?"})
    log.assistant(body={"content": "The issue is that the gauge is wet and cold."})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    log.assistant(body={"content": "The issue is that the report converts every height."})
    log.result(log.call("read", body={"arguments": {"path": "report.py"}}))
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    assert "report converts" in decided(log) and "wet" not in decided(log)


@pytest.mark.parametrize(
    "message", ["that is wrong, it does", "I still see feet", "No, it prints feet", "it is still wet"]
)
def test_statements_refuted_by_the_user_are_not_listed(message: str) -> None:
    assert refutes(message)
    log = Log()
    log.user(body={"content": "Make the gauge print metres."})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    log.assistant(body={"content": "I fixed the gauge of the harbour. Feet were printed because the unit was lost."})
    log.user(body={"content": message})
    log.assistant(body={"content": "The estuary has another gauge. It prints feet."})
    text = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    assert "unit was lost" not in text and "I fixed" not in text


@pytest.mark.parametrize("message", ["no problem, go on", "now print the tides", "still, thank you"])
def test_other_words_refute_nothing(message: str) -> None:
    assert not refutes(message)


@pytest.mark.parametrize(
    ("text", "is_report"),
    [
        ("I've fixed the bug of the midnight tide by keeping its date.", True),
        ("Increased the width of the table to 200 columns.", True),
        ("I've fixed the table, but the bug of the midnight tide remains.", False),
        ("I've added the table. An error remains.", True),
    ],
)
def test_a_fault_that_was_mended_is_finished_work(text: str, is_report: bool) -> None:
    assert bool(list(finished_statements(text))) is is_report


def test_the_first_sentence_of_each_report_stands_with_its_request_or_before_the_counts_of_edits() -> None:
    tides = ("I moved the sorting of the tides into the report.", "I renamed the oldest harbour on its map.")
    gauges = ("I extracted the printing of the gauges into a module.", "I deleted three broken sensors of the estuary.")
    log = Log()
    log.user(body={"content": "Look after the stations, please."})
    for name, report in (("tides", tides), ("gauges", gauges)):
        log.user(body={"content": f"Tidy up the {name} of all stations."})
        arguments = {"file_path": f"{name}.py", "old_string": "a", "new_string": "b"}
        log.result(log.call("Edit", body={"arguments": arguments}), body={"content": "fine"})
        log.assistant(body={"content": " ".join(report)})
    log.user(body={"content": "Thank you."})
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    digest = digest_of(log.events)
    text = extract(log.events, "", digest, 600, COUNTER)
    assert f'Tidy up the tides of all stations. (then reported: "{tides[0]}")' in text
    done = text.partition("### Done\n")[2].partition("\n#")[0]
    expected = ["Changed tides.py.", tides[1], "Changed gauges.py.", *gauges]
    assert done.splitlines() == [f"- {line}" for line in expected]
    short = extract(log.events, "", digest, 120, COUNTER)
    assert gauges[0] in short and "Changed" not in short
    texts = [(3, " ".join(tides)), (6, " ".join(gauges)), (7, "I added the depths of the open sea.")]
    assert [line.seq for line in finished_work(texts, {3, 6})] == [6, 3, 6, 3, 7]


def test_an_item_of_a_description_is_no_finished_work() -> None:
    log = Log()
    log.user(body={"content": "What do the packages do, and what is done?"})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    described = "## `gauge` package\n- Committed heights of old harbours"
    log.assistant(body={"content": f"{described}\n\n## Changes\n- Added the estuary gauge of Oslo"})
    for number in range(3):
        log.assistant(body={"content": f"Harbour number {number} is dry."})
    done = extract(log.events, "", digest_of(log.events), 600, COUNTER).partition("### Done")[2].partition("\n#")[0]
    assert "Added the estuary gauge of Oslo" in done and "Committed" not in done


@pytest.mark.parametrize("text", ["Tests pass and lint is clean.", "All 42 tests pass.", "This makes the test pass."])
def test_a_check_that_passed_is_no_finished_work(text: str) -> None:
    assert not list(finished_statements(text))
    assert reports_success(text)
    assert list(finished_statements(f"I added the column. {text}")) == ["I added the column."]


def test_a_finding_before_a_change_does_not_say_found_twice() -> None:
    words = ("Found another fault. The issue is that nobody reads it.", "Found it. The issue is that nobody reads it.")
    assert [line.text for line in dated([SectionLine(one, 1) for one in words], 2)] == [
        "Found earlier: another fault. The issue is that nobody reads it.",
        "Found earlier: Found it. The issue is that nobody reads it.",
    ]


def test_findings_and_work_in_the_latest_messages_of_earlier_summaries_live_on() -> None:
    heading = "## Agent Messages at the End of This Part"
    first = f"{heading}\n- I found the bug. The report converts each height twice. Let me fix it:"
    second = f"{heading}\n- I fixed the report of heights for every harbour. The estuary is next."
    third = f"{heading}\n- All tests of the estuary pass."
    text = extract([], f"{first}\n\n{second}\n\n{third}", Digest(), 600, COUNTER)
    assert "## Critical Context\n- Found earlier: I found the bug. The report converts each height twice." in text
    assert "### Done\n- I fixed the report of heights for every harbour." in text
    assert text.endswith("## Agent Messages at the End of This Part\n- All tests of the estuary pass.")


def test_a_span_that_concludes_nothing_names_the_called_tools() -> None:
    log = Log()
    log.assistant(body={"content": "Now let me look at the gauges:"})
    for number in range(2):
        log.result(log.call("read", body={"arguments": {"path": f"gauge{number}.py"}}), body={"content": "fine"})
    text = extract(log.events, "", digest_of(log.events), 200, COUNTER)
    assert text == "Nothing was decided or changed; called read x2."
    assert extract(log.events, "", digest_of(log.events), 5, COUNTER) != ""


def test_a_long_text_is_shortened_to_whole_sentences() -> None:
    text = (
        "| File | Fix |\n|---|---|\n| gauge | metres |\n\nFixes:\n\n- The gauge prints metres now.\n"
        + "Rain falls. " * 50
    )
    assert condense(text, 100) == (
        "File | Fix: - gauge | metres. Fixes: - The gauge prints metres now. Rain falls. … Rain falls."
    )
    text += "The report has no unit and no table of harbours. These would help."
    assert condense(text, 130).endswith(" … The report has no unit and no table of harbours. These would help.")
    assert condense("Heights " * 50, 60, may_cut=False) == ""


def test_a_row_of_a_table_keeps_the_head_and_its_empty_cells() -> None:
    text = "| Done | Pending |\n|:--|--:|\n| `Gauge` | |\n| | Harbours |\n\nShall I go on?"
    assert condense(text, 200) == "Done | Pending: - `Gauge` | (none) - (none) | Harbours. Shall I go on?"
    assert condense("| A | B |\n|---|---|\n| tide | ebb |\n| | |\n| flood | 1 |", 200) == (
        "A | B: - tide | ebb - (none) | (none) - flood | 1"
    )
    long = f"{text} " + "Or shall I wait? " * 20
    assert condense(long, 100).startswith("Done | Pending: - `Gauge` | (none) - (none) | Harbours")


LISTS = """The tests cover:

- `Gauge` itself
- Harbours

But **no test** checks:
- Ebb after flood
- Flood after ebb, in a year that has no summer

## Files

1. `tide.py`:
   - Added `Ebb`
   - Added `Flood` and nothing else that could be seen from outside
2. `gauge.py` is as before
"""


def test_an_item_of_a_list_keeps_its_mark_and_the_words_that_it_depends_on() -> None:
    assert condense(LISTS, 400) == (
        "The tests cover: - `Gauge` itself - Harbours. But no test checks: - Ebb after flood - Flood after ebb, in a"
        " year that has no summer. Files: 1. `tide.py`: - Added `Ebb` - Added `Flood` and nothing else that could be"
        " seen from outside 2. `gauge.py` is as before."
    )
    assert condense(LISTS, 150) == (
        "The tests cover: - `Gauge` itself - Harbours. But no test checks: - Ebb after flood … `tide.py`: - Added"
        " `Ebb` … Files: 2. `gauge.py` is as before"
    )
    late = LISTS.replace("- Ebb after flood", "- Ebb after flood, " + "and again, " * 30 + "and so on")
    assert "But no test checks: - Flood after ebb" in condense(late, 250)


def test_a_nested_item_is_told_with_the_one_above_it() -> None:
    text = "## Changes\n\n1. **`tide.py`**:\n   - Removed the unused import\n2. **`gauge.py`**:\n   - Added `metres`"
    assert list(finished_statements(text)) == ["`tide.py`: Removed the unused import", "`gauge.py`: Added `metres`"]


def test_an_item_that_is_a_finding_is_told_with_the_line_before_its_list() -> None:
    assert findings_of("After a flood:\n\n1. The gauge can no longer be read") == [
        "After a flood: The gauge can no longer be read"
    ]
    assert findings_of("There are two reasons:\n\n1. The gauge can no longer be read") == [
        "The gauge can no longer be read"
    ]


def test_items_under_a_heading_over_faults_are_not_finished_work() -> None:
    text = "## Issues to fix\n\n1. **Removed the check of units** - Lost the fallback of the gauge"
    assert not list(finished_statements(text))
    fixed = text.replace("Issues to fix", "Issues fixed")
    assert list(finished_statements(fixed)) == ["Removed the check of units - Lost the fallback of the gauge"]
