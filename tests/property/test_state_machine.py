"""I1 to I7 and I9 after every step of what clients do over HTTP, redactions, erasures, forks and outcomes in it, each
request to any of two servers on one database.

A short form, the same at every run; `tests/long/test_state_machine.py` draws anew.
"""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app import tokenizers, wiring
from app.services.counting import Counting
from app.settings import Settings
from app.store.engine import Database
from tests.conftest import Servers
from tests.support.machine import Machine, Program, programs


async def run(servers: Servers, database: Database, program: Program, seed: int) -> None:
    """A program, by a machine of its own; `seed` says which request comes to which server."""
    set_up = Settings()
    compaction = wiring.compaction(set_up, database, Counting(tokenizers.load(set_up.tiktoken_cache_dir)))
    try:
        await Machine(servers, database, compaction, seed).run(program)
    finally:
        await compaction.aclose()


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
