"""The figures of the list of sessions."""

import pytest

from app.wings.pages.sessions import spark, starter_of


@pytest.mark.parametrize(
    ("estimates", "targets", "points"),
    [
        ((), (), ""),
        ((50,), (100,), "0.0,12.5"),
        ((0, 100), (100, 100), "0.0,22.0 120.0,3.0"),
        ((900, 5), (100, 0), "0.0,1.1 120.0,1.1"),
    ],
)
def test_a_line_stays_within_its_picture(estimates: tuple[int, ...], targets: tuple[int, ...], points: str) -> None:
    assert spark(estimates, targets) == points


@pytest.mark.parametrize(
    ("name", "starter"), [("run:helper", "run"), ("a:b:c", "a:b"), ("run.agent-1", "run"), ("run", "")]
)
def test_the_name_of_a_sub_agent_begins_with_its_session(name: str, starter: str) -> None:
    assert starter_of(name) == starter
