"""A token bucket never gives more than its rate plus its content, and reports exactly when enough is available."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from app.resources.sessions.service import Bucket, Rate, take

RATE = Rate(per_second=10.0, most=50.0)


def test_the_content_can_be_taken_immediately_and_then_no_more() -> None:
    bucket = Bucket(RATE.most, 100.0)
    bucket, wait = take(bucket, RATE, 50, 100.0)
    assert wait == 0
    assert take(bucket, RATE, 1, 100.0) == (bucket, 0.1)
    assert take(bucket, RATE, 30, 100.0) == (bucket, 3.0)


def test_a_refusal_takes_nothing() -> None:
    bucket = Bucket(5.0, 100.0)
    for _ in range(3):
        same, wait = take(bucket, RATE, 10, 100.0)
        assert (same, wait) == (bucket, 0.5)


def test_it_fills_up_to_its_capacity() -> None:
    empty = Bucket(0.0, 100.0)
    assert empty.amount_at(RATE, 103.0) == 30.0
    assert empty.amount_at(RATE, 1000.0) == RATE.most


@given(
    amounts=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5, allow_nan=False)), max_size=60),
    per_second=st.floats(0.1, 1000),
)
def test_at_any_time_no_more_is_taken_than_capacity_and_inflow(
    amounts: list[tuple[int, float]], per_second: float
) -> None:
    rate = Rate(per_second, 50.0)
    now, taken, bucket = 0.0, 0, Bucket(rate.most, 0.0)
    for amount, later in amounts:
        now += later
        bucket, wait = take(bucket, rate, amount, now)
        if not wait:
            taken += amount
        assert taken <= rate.most + now * per_second + 1e-3
        if wait:
            _, still = take(bucket, rate, amount, now + ceil(wait))
            assert still == 0
