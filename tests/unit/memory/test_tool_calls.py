"""Lines on tool calls: their numbers and arguments, also after summaries were merged."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.memory.extractive.sections import NOTHING
from app.core.memory.extractive.work import LINE_CHARS_MAX, ToolCalls, parse_calls, plain_arguments
from tests.unit.builders import COUNTER, Log
from tests.unit.memory.parts import extract

Call = tuple[str, dict[str, Any]]
TOOLS: Final = st.sampled_from(["get_order", "mcp__desk__move", "ping"])
ARGUMENTS: Final = st.one_of(
    st.just({}),
    st.builds(lambda number: {"order": number}, st.integers(0, 30)),
    st.fixed_dictionaries({"harbour": st.sampled_from(["Oslo", "a; b: c."]), "berth": st.integers(7, 12)}),
)
CALLS: Final = st.lists(st.tuples(TOOLS, ARGUMENTS), max_size=30)


def _merged(previous: str, calls: Iterable[Call]) -> str:
    """Return the lines of a summary of calls that also replaces an earlier one."""
    found: dict[str, ToolCalls] = {}
    for tool, times, seq, arguments in parse_calls(previous):
        found.setdefault(tool, ToolCalls()).add(times, seq, arguments)
    for seq, (tool, arguments) in enumerate(calls, start=1):
        found.setdefault(tool, ToolCalls()).add(1, seq, plain_arguments(arguments))
    return "".join(f"- {one.line(tool).text}\n" for tool, one in found.items())


def _listed(text: str) -> set[tuple[str, str]]:
    """Return every tool with each of its arguments, ranges spelled out."""
    found = set()
    for tool, _, _, arguments in parse_calls(text):
        numbers = re.fullmatch(r"(.*?)(\d+) to (\d+)", arguments)
        spelled = [arguments] if arguments else []
        if numbers is not None:
            spelled = [f"{numbers[1]}{n}" for n in range(int(numbers[2]), int(numbers[3]) + 1)]
        found |= {(tool, one) for one in spelled}
    return found


@given(CALLS, st.lists(st.integers(0, 30), max_size=3))
def test_merged_lines_have_every_call(calls: Sequence[Call], cuts: list[int]) -> None:
    text = ""
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(calls)], strict=True):
        text = _merged(text, calls[first:last])
    times: Counter[str] = Counter()
    for tool, count, _, _ in parse_calls(text):
        times[tool] += count
    assert times == Counter(tool for tool, _ in calls)
    assert all(len(line) <= LINE_CHARS_MAX + 60 for line in text.split("\n"))
    if "…" not in text:
        assert _listed(text) == {(tool, plain) for tool, arguments in calls if (plain := plain_arguments(arguments))}


def test_successive_numbers_are_a_range() -> None:
    assert _merged("", [("get_order", {"order": n}) for n in (1, 2, 3, 7, 8, 2)]) == (
        "- Called get_order x6: order 1 to 3; order 7 to 8; order 2.\n"
    )
    assert _merged("", [("pay", {"sum": "1.5"}), ("pay", {"sum": "1.6"})]) == "- Called pay x2: sum 1.5; sum 1.6.\n"
    assert _merged("", [("pay", {"id": "007"}), ("pay", {"id": "008"})]) == "- Called pay x2: id 007; id 008.\n"


def test_the_newest_arguments_are_kept() -> None:
    text = ""
    for n in range(40):
        text = _merged(text, [("find_guest", {"name": f"guest {'abcdefghij'[n % 10] * (n // 10 + 3)}"})])
    assert text.startswith("- Called find_guest x40: …; ")
    assert text.endswith(f"name guest {'j' * 6}.\n")


@pytest.mark.parametrize(
    ("earlier", "merged"),
    [
        ("- Called get with order 4.\n- Called get with order 3.\n", "- Called get x2: order 4; order 3.\n"),
        ("- Called get with order 9.\n- Called get x5.\n", "- Called get x5: order 9.\n"),
        (
            "- Called get with k 9.\n- Called get x4, put and 2 more.\n",
            "- Called get x4: k 9.\n- Called put.\n",
        ),
    ],
)
def test_lines_of_older_summaries_are_counted(earlier: str, merged: str) -> None:
    assert _merged(earlier, []) == merged


def test_a_merged_summary_says_which_calls_were_made() -> None:
    texts = []
    for begin in (1, 6):
        log = Log()
        for order in range(begin, begin + 5):
            log.result(log.call("get_order", body={"arguments": {"order": order}}), body={"content": "fine"})
        texts.append(extract(log.events, "", digest_of(log.events), 200, COUNTER))
    looked = Log()
    looked.result(looked.call("search", body={"arguments": {"query": "x"}}), body={"content": "none"})
    nothing = extract(looked.events, "", digest_of(looked.events), 200, COUNTER)
    assert nothing.startswith(NOTHING.rstrip("."))
    merged = extract([], "\n\n".join([texts[0], nothing, NOTHING, texts[1]]), digest_of([]), 200, COUNTER)
    assert merged == "## Progress\n### Done\n- Called get_order x10: order 1 to 10."


def test_words_that_look_like_a_call_or_a_change_are_not_counted() -> None:
    words = "## User Messages\n- Called get.\n- Changed gauge.py.\n"
    done = "## Progress\n### Done\n- Changed gauge.py.\n- Called get x2: id 4; id 9.\n"
    merged = extract(
        [], f"{words}{done}## Agent Messages at the End of This Part\n- Called get.", digest_of([]), 300, COUNTER
    )
    assert "- Called get x2: id 4; id 9." in merged
    assert "x3" not in merged and "gauge.py x" not in merged


def test_a_summary_of_cases_says_what_was_changed() -> None:
    log = Log()
    log.user(body={"content": "Hi, I want to cancel my trip to Oslo, but I must have left the number at home."})
    results = {
        "get_user": '{"user_id": "mia_brown_7", "payment_methods": [{"id": "card_12", "user_id": "mia_brown_7"}]}',
        "search_flights": '[{"flight_number": "HAT12", "available_seats": 3}]',
        "cancel_booking": '{"booking_id": "ZFA04Y", "status": "cancelled"}',
        "check_refund": "fine",
    }
    for tool, content in results.items():
        log.result(log.call(tool, body={"arguments": {"booking_id": "ZFA04Y"}}), body={"content": content})
        log.assistant(body={"content": "One moment."})
    log.user(body={"content": "Thank you so much for your help! ###STOP###"})
    digest = digest_of(log.events)
    for tokens in (90, 400):
        text = write_summary(log.events, (), "", digest, tokens, COUNTER)
        assert "- Called cancel_booking: booking_id ZFA04Y." in text
    assert "- Called get_user: booking_id ZFA04Y." in text
    assert "STOP" not in text
    assert digest.constraints == ()
    names = {name for name, _ in digest.identifiers}
    assert names >= {"mia_brown_7", "card_12", "HAT12", "ZFA04Y"}
    assert not names & {"user_id", "payment_methods", "flight_number", "available_seats", "booking_id"}
