"""The selection of tests by the option that names their database."""

import re
from pathlib import Path

import pytest

from tests.support import databases, pooler

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[3]
HOOKS = """
from tests.support.databases import add_options as pytest_addoption, select_tests as pytest_collection_modifyitems
"""
TESTS = """
import pytest

@pytest.fixture
def postgres():
    return "a URL"

def test_of_a_database(postgres): pass

def test_of_none(): pass

@pytest.mark.embedded("it is killed")
def test_of_the_embedded_one(): pass

@pytest.mark.embedded("it is killed")
def test_of_a_database_that_is_killed(postgres): pass
"""
NAMED = "postgresql://me@somewhere/postgres"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers = embedded\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest(HOOKS)
    pytester.makepyfile(TESTS)
    return pytester


def test_without_an_option_all_are_run(suite: pytest.Pytester) -> None:
    suite.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_on_a_named_server_tests_with_a_database_run_and_embedded_ones_are_listed(
    suite: pytest.Pytester,
) -> None:
    done = suite.runpytest("-p", "no:cacheprovider", "-rs", "--database-url", NAMED)
    done.assert_outcomes(passed=1, skipped=2, deselected=1)
    done.stdout.fnmatch_lines("SKIPPED*of the embedded Postgres: it is killed")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--database-url", ""), "*--database-url is no URL*"),
        (("--database-url", "mysql://me@somewhere/x"), "*--database-url must begin with postgresql://*"),
        (("--database-url", NAMED, "--citus"), "*--database-url and --citus do not go together*"),
    ],
)
def test_invalid_options_are_refused(suite: pytest.Pytester, options: tuple[str, ...], said: str) -> None:
    done = suite.runpytest("-p", "no:cacheprovider", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(said)


def _there(name: str) -> bool:
    path, _, function = name.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    return not function or re.search(rf"^(async )?def {function}\(", text, re.MULTILINE) is not None


def test_excluded_paths_exist() -> None:
    assert not _there("tests/unit/repository/test_databases.py::test_that_was_renamed")
    assert [name for name in {**pooler.NOT_POOLED, **databases.NOT_DISTRIBUTED} if not _there(name)] == []
