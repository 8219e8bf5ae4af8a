"""Conversion of times: total over the calendar, and made in one module only."""

import ast
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.lexicon.times import EARLIEST, LATEST, from_seconds, in_utc, parse_time, time_text, to_seconds

CONVERTER = Path("app/core/lexicon/times.py")
CONVERSIONS = frozenset(
    {"fromtimestamp", "utcfromtimestamp", "timestamp", "astimezone", "fromisoformat", "strptime", "strftime"}
)
zones = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439))


@given(st.datetimes(timezones=st.none() | st.just(UTC) | zones))
def test_every_time_of_the_calendar_is_converted_there_and_back(moment: datetime) -> None:
    try:
        utc = in_utc(moment)
    except ValueError:
        with pytest.raises(OverflowError):
            moment.astimezone(UTC)
        return
    assert EARLIEST <= utc <= LATEST
    assert parse_time(moment.isoformat()) == parse_time(time_text(moment)) == utc
    back = from_seconds(to_seconds(moment))
    assert EARLIEST <= back <= LATEST
    assert abs(back - utc) < timedelta(milliseconds=1)


@given(st.floats(-62_135_596_800.0, 253_402_300_800.0))
def test_every_second_of_the_calendar_is_a_time(seconds: float) -> None:
    assert abs(to_seconds(from_seconds(seconds)) - seconds) < 0.001


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -62_135_596_801.0, 253_402_300_801.0])
def test_seconds_outside_the_calendar_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="years 1 to 9999"):
        from_seconds(seconds)


def conversions(tree: ast.AST) -> set[str]:
    """Return the names of the conversions that code calls or refers to."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CONVERSIONS


def test_times_are_converted_in_one_module() -> None:
    found = {path: conversions(ast.parse(path.read_text())) for path in Path("app").rglob("*.py")}
    assert {path for path, names in found.items() if names} == {CONVERTER}
