"""The figures of a window, and the content that a later context newly leaves out."""

from typing import Any

import pytest

from app.core.policy.policy import parse_policy
from app.core.record.reading import window_figures

TOKENS: dict[str, Any] = {
    "estimate": 5_000,
    "target": 7_500,
    "limit": 10_000,
    "reserve": 1_000,
    "outside": 500,
    "by_source": {
        "tools": 100,
        "system": 200,
        "summaries": 300,
        "history": 3_000,
        "current_turn": 1_000,
        "ephemeral": 400,
    },
}
INJECTED = [{"mark": "injected", "tokens": 150}, {"mark": "layer", "tokens": 200}]


@pytest.mark.parametrize("since", [0, 1_000, 2_650, 4_000])
def test_the_parts_of_a_window_add_up_to_it(since: int) -> None:
    figures = window_figures(TOKENS, INJECTED, parse_policy({}), since)
    assert sum(figures.parts.values()) == 10_000 + max(0, since - 3_500)
    assert (figures.parts["layers"], figures.parts["injections"]) == (250, 150)
    assert (figures.left, figures.bound, figures.target) == (7_500 - 4_850 - since, 7_500, 8_000)


def test_the_room_ends_at_the_threshold_where_it_is_lower() -> None:
    figures = window_figures(TOKENS, [], parse_policy({"trigger": {"ratio": 0.6}}), 0)
    assert (figures.threshold, figures.bound, figures.left) == (6_000, 5_500, 500)
