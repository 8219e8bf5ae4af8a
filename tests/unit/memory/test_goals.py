"""The goal of a summary: the first request and the newest one."""

import pytest

from app.core.memory.digest import digest_of
from app.core.memory.digest.record import Digest
from app.core.memory.extractive.changes import LATER_REQUEST_CHARS_MAX, goals
from app.core.memory.extractive.sections import GOAL, HEADINGS, LATER_REQUEST, Section, SectionLine, fill_sections
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract

FIRST = "Heights are printed in feet, find out where."


def goals_of(*texts: str) -> list[str]:
    return [line.text for line in goals([], [SectionLine(text, at) for at, text in enumerate(texts)])]


def test_a_goal_is_a_request_and_no_short_answer() -> None:
    assert goals_of("hi", "ok, let's go (about: \"I'd sort the tides.\")", "/review", FIRST) == [FIRST]
    assert goals_of("hi", "go on") == ["hi"]
    assert goals_of() == []


def test_the_newest_request_is_given_with_the_first() -> None:
    newest = "Sort the harbour table by name."
    assert goals_of(FIRST, newest, "why is the table so long now?", "commit this") == [
        FIRST,
        f"Later request: {newest}",
    ]
    assert goals_of(FIRST, "why is the harbour table so long?", "--- FAIL: the tide table is not sorted") == [FIRST]


def test_a_first_message_that_was_corrected_immediately_is_no_goal() -> None:
    assert goals_of("Look at the harbour ticket 108", "Look at the harbour ticket 208") == [
        "Look at the harbour ticket 208"
    ]


@pytest.mark.parametrize("seqs", [(3, 93), (-10, -9)], ids=["messages", "an earlier summary"])
def test_a_similar_request_after_the_agent_has_worked_does_not_replace_the_first(seqs: tuple[int, int]) -> None:
    tidal, lunar = (f"Test the harbour repository with the {name} strategy" for name in ("tidal", "lunar"))
    requests = [SectionLine(text, seq) for text, seq in zip((tidal, lunar), seqs, strict=True)]
    assert [line.text for line in goals([], requests)] == [tidal, LATER_REQUEST + lunar]


def test_the_newest_request_is_given_once_and_whole_if_it_fits() -> None:
    newest = "Now sort the harbour table by name, " + "then print it, " * 20 + "please."
    log = Log()
    log.user(body={"content": FIRST})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    log.user(body={"content": newest})
    text = extract(log.events, "", digest_of(log.events), 600, COUNTER)
    assert f"- Later request: {newest}" in text and text.count("sort the harbour table") == 1
    again = extract(
        [], f"{text}\n\n## Goal\n- go on\n- Later request: Draw the estuary as a map.", Digest(), 600, COUNTER
    )
    assert again.startswith(
        f"## Goal\n- First request: {FIRST}\n## User Messages\n- {newest}\n- go on\n- Later request: Draw the"
    )


def test_a_rejected_call_is_no_goal_and_a_shortened_goal_gives_way_to_the_whole_one() -> None:
    assert goals_of("Rejected: Bash git push") == []
    assert (
        goals_of("go on (rejecting: Bash git push)", "go on (rejected: Bash git push)", "Rejected: Bash git push") == []
    )
    answer = 'go on (asked: "' + "Shall I sort the table by harbour and by tide and by name? " * 3 + '")'
    text = extract([], f"## Goal\n- {answer}", Digest(), 300, COUNTER)
    assert text == f"## Goal\n- {answer}"


def test_a_later_request_stands_after_the_messages_of_its_summary_once_summaries_are_merged() -> None:
    parts = [
        "## Goal\n- Sort the harbour table by height.\n- Later request: Print the third table of the estuary.\n"
        "## User Messages\n- Sort the second table of the estuary.\n- No, by its name and its height, please.",
        "## Goal\n- Draw the fourth table of the estuary.\n## User Messages\n- And the fifth one, with all its names.",
    ]
    text = extract([], "\n\n".join(parts), digest_of([]), 400, COUNTER)
    said = text.partition("## User Messages\n")[2].partition("\n#")[0].splitlines()
    assert said == [
        "- Sort the second table of the estuary.",
        "- No, by its name and its height, please.",
        "- Print the third table of the estuary.",
        "- Later request: Draw the fourth table of the estuary.",
        "- And the fifth one, with all its names.",
    ]
    assert extract([], text, digest_of([]), 400, COUNTER) == text


def test_a_message_that_was_interrupted_and_sent_again_corrected_is_no_goal() -> None:
    first = "have a look at tide ticket 108 please"
    later = "have a look at tide ticket 109 please"
    assert goals_of(f"{first} (the user then interrupted the agent)", later) == [later]


def test_requests_of_a_part_without_other_messages_stay_before_those_of_the_next_part() -> None:
    parts = [
        "## Goal\n- Sort the harbour table by height.",
        "## Goal\n- Later request: Print the third table of the estuary.\n- Later request: Draw the map of the tides.",
        "## User Messages\n- go on, please do\n- Later request: Show the report of the gauges.",
    ]
    text = extract([], "\n\n".join(parts), digest_of([]), 400, COUNTER)
    said = text.partition("## User Messages\n")[2].splitlines()
    assert said == [
        "- Print the third table of the estuary.",
        "- Draw the map of the tides.",
        "- go on, please do",
        "- Later request: Show the report of the gauges.",
    ]


def test_one_message_in_two_shortened_forms_is_given_once_in_the_longer_one() -> None:
    words = "Look at the harbours and at the tides of last year, then at the table of the gauges"
    for goal, message in (
        (f"{words[:60]}…", f"{words}… Why is it empty?"),
        (f"{words} and of the wind… Why is it empty?", f"{words}…"),
        (f"…{words}", f"…the wind. {words}"),
    ):
        earlier = f"## Goal\n- {goal}\n## User Messages\n- Print the third table, too, please.\n- {message}"
        text = extract([], earlier, Digest(), 400, COUNTER)
        longer = max(goal, message, key=len)
        assert longer in text and text.count("at the tides of last year") == 1


def test_a_request_that_is_shortened_is_not_given_again_still_shorter() -> None:
    pasted = " ".join(f"- v [ NEW ] list {number} of the tides (14 steps)" for number in range(60))
    request = f"One more thing, the lists of the tides are too long, can we cut them? {pasted} (21 steps)"
    others = "\n".join(f"- Print table {number} of the estuary, with the names of all gauges." for number in range(60))
    earlier = f"## Goal\n- Later request: {request}\n## User Messages\n{others}"
    for tokens in range(150, 1500, 50):
        assert extract([], earlier, Digest(), tokens, COUNTER).count("One more thing") == 1


def test_a_request_that_begins_with_a_quotation_is_shortened_beside_another_one() -> None:
    quoted = " ".join(f"the gauge of harbour {number} is dry" for number in range(60))
    requests = [f"> {quoted} Please mend this gauge, too.", "Print the tables of the tides."]
    lines = [SectionLine(LATER_REQUEST + text, -at) for at, text in enumerate(requests[::-1], start=1)]
    goal = Section(GOAL, lines, 1.0)
    text = fill_sections(HEADINGS, [goal], lambda text: len(text) // 4, 80, spare=GOAL)
    assert text.endswith("Please mend this gauge, too.")


def test_a_request_just_above_the_limit_of_a_goal_is_given_once() -> None:
    newest = f"Sort the harbour table by name {'and the tides ' * 14}too. Why is it empty?"
    assert LATER_REQUEST_CHARS_MAX < len(newest) < LATER_REQUEST_CHARS_MAX + len(LATER_REQUEST)
    log = Log()
    log.user(body={"content": FIRST})
    log.result(log.call("Write", body={"arguments": {"file_path": "/a.py", "content": "x"}}))
    log.user(body={"content": newest})
    log.user(body={"content": "go on"})
    assert extract(log.events, "", digest_of(log.events), 900, COUNTER).count("Sort the harbour table by name") == 1


def test_two_messages_that_begin_alike_are_both_given() -> None:
    begin = "Look at the harbours and at the tides of last year, "
    earlier = f"## Goal\n- {begin}and print them…\n## User Messages\n- {begin}then sort them.\n- {begin}then draw them."
    text = extract([], earlier, Digest(), 400, COUNTER)
    assert text.count(begin) == 3


def test_a_complaint_is_no_goal() -> None:
    assert goals_of("uh...you got blatted again it looks like...", FIRST) == [FIRST]


def test_requests_of_later_parts_keep_their_order_and_none_of_them_becomes_the_first() -> None:
    first = "## Goal\n- Sort the harbour table by height.\n## User Messages\n- go on, please do"
    later = [
        "## User Messages\n- Is the estuary sorted too?\n- Later request: Print the third table of the estuary.",
        "## Goal\n- Later request: Draw the map of the tides.",
    ]
    half = extract([], "\n\n".join(later), digest_of([]), 400, COUNTER)
    assert half.splitlines() == [
        "## User Messages",
        "- Is the estuary sorted too?",
        "- Later request: Print the third table of the estuary.",
        "- Later request: Draw the map of the tides.",
    ]
    whole = extract([], f"{first}\n\n{half}", digest_of([]), 400, COUNTER)
    assert whole.splitlines() == [
        "## Goal",
        "- First request: Sort the harbour table by height.",
        "## User Messages",
        "- go on, please do",
        "- Is the estuary sorted too?",
        "- Print the third table of the estuary.",
        "- Later request: Draw the map of the tides.",
    ]


def test_an_answer_is_no_later_request() -> None:
    log = Log()
    log.user(body={"content": FIRST})
    log.assistant(body={"content": "It is in the gauge. Shall I fix the gauge table now?"})
    begun = len(log.events)
    log.user(body={"content": "yes"})
    log.result(log.call("read", body={"arguments": {"path": "gauge.py"}}))
    text = extract(log.events[begun:], "", digest_of(log.events[begun:]), 400, COUNTER)
    assert text.startswith("## User Messages\n- yes")


def test_a_goal_in_a_longer_form_is_marked_once() -> None:
    words = "Print the third table of the estuary by the height of its harbours and by their names"
    parts = [
        f"## User Messages\n- go on, please do\n- Later request: {words[:70]}…",
        f"## User Messages\n- Later request: {words}, {words}, {words}, {words}.",
    ]
    assert extract([], "\n\n".join(parts), digest_of([]), 400, COUNTER).count("Later request: ") == 1
