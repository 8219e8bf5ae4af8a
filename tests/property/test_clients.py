"""Several clients that send their whole conversations, in one session and to two servers.

After every response the model sees each client's conversation, nothing is logged twice, and nothing is lost. The
examples are fixed; `tests/long/test_clients.py` draws new ones.
"""

import itertools

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Servers
from tests.support.clients import Clients, Step, programs

_numbers = itertools.count(1)


@settings(
    max_examples=12,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(program=programs, room=st.integers(0, 2))
async def test_the_model_sees_each_clients_conversation(servers: Servers, program: list[Step], room: int) -> None:
    await Clients(servers, f"s{next(_numbers)}", room).run(program)
