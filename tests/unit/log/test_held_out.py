"""The draw of the sessions that are held out of reduction."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.log.segments import is_held_out

NAMES = st.text(min_size=1, max_size=40)


@given(tenant=st.uuids(), name=NAMES, shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_session_held_out_of_a_share_is_held_out_of_every_larger_one(
    tenant: UUID, name: str, shares: tuple[float, float]
) -> None:
    smaller, larger = sorted(shares)
    assert is_held_out(tenant, name, smaller) <= is_held_out(tenant, name, larger)
    assert not is_held_out(tenant, name, 0.0)
    assert is_held_out(tenant, name, 1.0)


def test_the_share_is_held_out_and_tenants_draw_independently() -> None:
    first, second = UUID(int=1), UUID(int=2)
    names = [f"session-{number}" for number in range(20_000)]
    drawn = [(is_held_out(first, name, 0.1), is_held_out(second, name, 0.1)) for name in names]
    assert sum(one for one, _ in drawn) == pytest.approx(2_000, abs=150)
    assert sum(one and other for one, other in drawn) == pytest.approx(200, abs=50)


def test_ids_are_drawn_alike_at_any_time() -> None:
    assert is_held_out(UUID(int=3), "a session", 0.5) == is_held_out(UUID(int=3), "a session", 0.5)
    assert len({is_held_out(uuid4(), "a session", 0.5) for _ in range(64)}) == 2
