"""The geometry of the strata."""

import re
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wings.pages.strata import HEIGHT, SOURCES, WIDTH, CallColumn, EpochStart, draw_strata, tick_step

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def column(number: int, parts: dict[str, int], target: int = 1000, **more: object) -> CallColumn:
    """Return a column of one call."""
    values = {
        "first": number,
        "last": number,
        "number": number,
        "call_id": UUID(int=number),
        "created_at": NOW,
        "epoch": 1,
        "estimate": sum(parts.values()),
        "target": target,
        "input_tokens": None,
        "refused": 0,
        "failed": 0,
        "by_source": parts,
        "stalled": None,
        "unfit": False,
    }
    return CallColumn(**(values | more))  # type: ignore[arg-type]  # fields by name


def start(epoch: int, number: int) -> EpochStart:
    """Return the beginning of an epoch at a call."""
    return EpochStart(epoch, number, UUID(int=number), None, NOW, "cold_cache", 10, 5)


def points(path: str) -> list[tuple[float, float]]:
    """Return the points of a path."""
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", path)]


PARTS = st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 10_000), min_size=1)


@given(st.lists(PARTS, min_size=1, max_size=40), st.integers(1, 20_000))
def test_strata_lie_on_each_other_within_the_chart(parts: list[dict[str, int]], target: int) -> None:
    columns = [column(number, one, target) for number, one in enumerate(parts, 1)]
    chart = draw_strata(columns, [])
    for _, path in (*chart.layers, ("target", chart.target)):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(path))
    most = chart.ticks[-1][0]
    assert most >= max(target, *(one.estimate for one in columns))
    top = {source: min(y for _, y in points(path)) for source, path in chart.layers}
    if top:
        highest = max(one.estimate for one in columns)
        assert min(top.values()) == pytest.approx(HEIGHT * (1 - highest / most), abs=0.1)
    assert [slot[2] for slot in chart.slots] == columns


def test_a_call_without_figures_by_source_is_history() -> None:
    chart = draw_strata([column(1, {}, estimate=700)], [])
    assert [source for source, _ in chart.layers] == ["history"]


def test_marks_name_epochs_refusals_and_degraded_calls() -> None:
    columns = [
        column(1, {"history": 10}, last=4),
        column(5, {"history": 20}, last=8, refused=2, failed=1),
        column(9, {"history": 30}, stalled="would_not_pay", unfit=True),
    ]
    chart = draw_strata(columns, [start(9, 9), start(4, 8), start(3, 7), start(2, 6), start(1, 5)])
    assert [mark.text for mark in chart.epochs] == [
        "Epochs 1 (cold cache) at call 5, 2 (cold cache) at call 6, 3 (cold cache) at call 7 and 1 more",
        "Epoch 9 (cold cache) at call 9",
    ]
    assert [mark.text for mark in chart.refused] == ["Calls 5 to 8: 2 refused as too long, 1 failed otherwise"]
    assert [mark.text for mark in chart.degraded] == [
        "Call 9 stayed above its trigger (would not pay) and held content that its format cannot express"
    ]


@given(st.floats(0.01, 1e9))
def test_ticks_are_round_and_no_finer_than_needed(least: float) -> None:
    step = tick_step(least)
    assert step >= least and (step == 1 or step <= 2.5 * least)
    assert str(step).rstrip("0") in ("1", "2", "25", "5")
