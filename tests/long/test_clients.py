"""Clients that send their whole conversations, with new examples at every run."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Servers
from tests.support.clients import Clients, Step, programs

EXAMPLES = 400
_numbers = itertools.count(1)


@pytest.mark.long
@settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(program=programs, room=st.integers(0, 2))
async def test_the_model_sees_each_clients_conversation(
    servers: Servers,
    program: list[Step],
    room: int,
) -> None:
    await Clients(servers, f"s{next(_numbers)}", room).run(program)
