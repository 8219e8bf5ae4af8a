"""I1 to I7 and I9 hold after every step of clients over HTTP, redactions, erasures, forks and outcomes included.

Each request goes to either of two servers on one database. This is a short form with fixed examples;
`tests/long/test_state_machine.py` draws new ones.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app import tokenizers
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tokenizers import Counting
from tests.conftest import Servers
from tests.support.machine import Machine, Program, programs


async def run(servers: Servers, database: Database, program: Program, seed: int) -> None:
    """Run a program on a machine of its own; `seed` fixes the server of each request."""
    set_up = Settings()
    compaction = wiring.compaction(set_up, database, Counting(tokenizers.load(set_up.tiktoken_cache_dir)))
    try:
        await Machine(servers, database, compaction, seed).run(program)
    finally:
        await compaction.aclose()


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@settings(
    max_examples=3,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(program=programs, seed=st.integers(0, 1_000))
async def test_everything_holds_after_every_step(
    servers: Servers, database: Database, program: Program, seed: int
) -> None:
    await run(servers, database, program, seed)
