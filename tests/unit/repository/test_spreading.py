"""The distribution of tests over processes."""

from tests.support.spreading import COMMANDS, are_few, scope_of

COMMAND = "tests/acceptance/test_stream.py::test_a"
FORKING = "tests/contract/http/test_log.py::test_b"
PURE = "tests/unit/memory/test_parts.py::test_c"
SHARING = "tests/contract/store/test_tenant_isolation.py::test_d"


def test_tests_that_start_commands_share_a_process() -> None:
    found = {one: scope_of(one, commands_together=True) for one in (COMMAND, FORKING, PURE, SHARING)}
    assert found == {COMMAND: COMMANDS, FORKING: COMMANDS, PURE: PURE, SHARING: SHARING.partition("::")[0]}


def test_tests_that_start_commands_are_spread_where_others_are_few() -> None:
    assert scope_of(COMMAND, commands_together=False) == COMMAND
    assert not are_few([COMMAND, *[PURE] * 9])
    assert are_few([COMMAND, *[PURE] * 10])
    assert not are_few([])
