"""I1 to I7 and I9 after every step of random client programs, with new examples at every run."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.store.engine import Database
from tests.conftest import Servers
from tests.property.test_state_machine import run
from tests.support.machine import Program, programs

EXAMPLES = 150


@pytest.mark.long
@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(program=programs, seed=st.integers(0, 1_000))
async def test_everything_holds_after_every_step(
    servers: Servers, database: Database, program: Program, seed: int
) -> None:
    await run(servers, database, program, seed)
