"""The soak's verdicts and parsers on data small enough to compute by hand."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.agents.traffic import a_life
from bench.soak import checks, verdicts
from bench.soak.flat import Bound, Series, trend
from bench.soak.mix import Written, spread
from bench.soak.verdicts import by_window, few, none, of_series, table
from bench.soak.wire import Listener
from palimpsest_tools.recordings import neutral
from tests.unit.bench.test_agents import LINE

BOUND = Bound(share=0.1, slack=2.0)
SECONDS = 1_800


def series(value: Callable[[float], float], every: float = 5.0) -> Series:
    return [(number * every, value(number * every)) for number in range(int(SECONDS / every) + 1)]


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (lambda at: 100.0, True),
        (lambda at: 100 + Random(at).uniform(-20, 20), True),
        (lambda at: 100 + 12 * at / SECONDS, True),  # 9.6 of it after the warm-up
        (lambda at: 100 + 20 * at / SECONDS, False),
        (lambda at: 100 + 20 * at / SECONDS + Random(at).uniform(-5, 5), False),
        (lambda at: 100 if at < SECONDS * 0.7 else 111, False),
        (lambda at: 50 if at < SECONDS * 0.2 else 100, True),
        (lambda at: 100 - 50 * at / SECONDS, True),
        (lambda at: 1_000 if at in (300, 900, 1_500) else 100, True),
        (lambda at: 0.0, True),
        (lambda at: 1.9 * at / SECONDS, True),
        (lambda at: 5 * at / SECONDS, False),
    ],
    ids=[
        *("constant", "noise", "within", "ramp", "noisy-ramp", "late-step", "warm-up", "falls", "outliers", "nothing"),
        *("within-slack", "over-slack"),
    ],
)
def test_flat_and_growing_series(value: Callable[[float], float], flat: bool) -> None:
    assert trend(series(value), BOUND).flat is flat


@given(st.floats(1, 1e6), st.floats(1.3, 100), st.integers(30, 400))
def test_growth_above_the_bound_is_never_flat(first: float, times: float, samples: int) -> None:
    """A straight line above its bound is not flat at any size and any number of samples."""
    whole = max(BOUND.slack, BOUND.share * first) * times / 0.7
    line = [(float(number), first + whole * number / samples) for number in range(samples + 1)]
    assert trend(line, BOUND).flat is False


def test_a_trend_in_figures() -> None:
    found = trend(series(lambda at: 100 + at / 60), BOUND)  # 1 more with each minute: 60 an hour
    assert found.first == pytest.approx(110, abs=0.5)
    assert found.last == pytest.approx(126, abs=0.5)
    assert found.per_hour == pytest.approx(60)
    assert found.allowed_per_hour == pytest.approx(11 / 0.4, rel=0.01)


@pytest.mark.parametrize("few", [[], [(0.0, 1.0)], [(0.0, 1.0), (1.0, 9.0), (2.0, 9.0)]], ids=len)
def test_too_few_samples_say_nothing(few: Series) -> None:
    assert trend(few, BOUND).flat is None


def test_agents_are_spread_evenly_over_all_lives() -> None:
    assert spread([2, 6], 4) == [(0, 0), (1, 0), (1, 2), (1, 4)]
    assert spread([3], 6) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2)]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_evenly_spread_sessions_are_equally_long_at_all_times(lengths: list[int]) -> None:
    """With an agent at each place, every place is still taken after all have moved by a step."""
    total = sum(lengths)
    places = spread(lengths, total)
    assert sorted(places) == [(life, step) for life, length in enumerate(lengths) for step in range(length)]


def test_latencies_are_taken_by_the_minute_of_half_an_hour_or_by_parts_of_less() -> None:
    times = [(1_000 + number * 0.5, 0.010 if number % 100 else 0.200) for number in range(3_600)]
    middle, tail = by_window(times, 1_000, SECONDS)
    assert [at for at, _ in middle] == [60.0 * number for number in range(30)]
    assert {value for _, value in middle} == {10.0}
    assert {value for _, value in tail} <= {10.0, 200.0}
    assert [at for at, _ in by_window(times, 1_000, 60.0)[0]] == [5.0 * number for number in range(12)]
    assert by_window([(1_000, 0.1)], 1_000, 60.0) == ([], [])


def test_the_table_marks_failed_conditions() -> None:
    found = [
        of_series("grows", series(lambda at: at), BOUND),
        of_series("stays", series(lambda at: 1.0), BOUND),
        of_series("seldom", [], BOUND),
        none("lost", 0),
        none("failed", 2),
        few("late", 1, 100),
        few("untold", 2, 100),
    ]
    rows = [[cell.strip() for cell in line.split("|")] for line in table(found).splitlines()[2:]]
    assert {row[1]: row[-2] for row in rows} == {
        "grows": "**not flat**",
        "stays": "flat",
        "seldom": "too little to say",
        "lost": "none",
        "failed": "**some**",
        "late": "few",
        "untold": "**many**",
    }


def test_every_sampled_quantity_has_the_bound_of_its_kind() -> None:
    assert verdicts.bound_of("api 1, MB") == verdicts.bound_of("worker 2, MB") == verdicts.MEMORY
    assert verdicts.bound_of("Postgres, private MB") == verdicts.POSTGRES
    assert verdicts.bound_of("api 2, open files") == verdicts.FILES
    assert verdicts.bound_of("jobs waiting") == verdicts.QUEUE


@pytest.mark.parametrize("piece", [1, 7, 10_000])
@pytest.mark.parametrize(("seqs", "gaps"), [((3, 4, 5), 0), ((3, 5), 1), ((4, 5), 1), ((3, 3), 1)])
def test_a_stream_is_read_in_any_pieces_and_gaps_are_seen(piece: int, seqs: tuple[int, ...], gaps: int) -> None:
    events = "".join(f'id: {seq}-0-a\nevent: appended\ndata: {{"content":"id: 9-"}}\n\n' for seq in seqs)
    chunks = f"{len(events):x}\r\n{events}\r\n"
    answer = f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}".encode()
    listener = Listener("/", 2)
    for start in range(0, len(answer), piece):
        listener.data_received(answer[start : start + piece])
    assert (listener.status, listener.read, listener.seq, listener.gaps) == (200, len(seqs), seqs[-1], gaps)


def test_the_log_is_compared_with_the_posted_messages() -> None:
    life = a_life([neutral.recording(LINE, 1)], 0, "anthropic")
    found = checks.posted(Written("one", life, steps=1), "anthropic")
    assert [one["type"] for one in found] == ["system.prompt", "user.message"]
    assert len(checks.posted(Written("one", life, steps=2), "anthropic")) == 2 + 5
