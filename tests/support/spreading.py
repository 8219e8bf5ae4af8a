"""The distribution of tests over processes.

pytest-xdist's own groups (`xdist_group`) silently have no effect with pytest 9.2 (pytest-xdist issue 1386), so each
process would build the fixtures of a module again, for example a database on which every operation was done.
"""

from collections.abc import Collection
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
COMMANDS: Final = "tests that start commands"
FEW: Final = 0.1


@cache
def shares_fixtures(module: str) -> bool:
    """Return whether a module of tests, a path below the repository, has fixtures that all of its tests share."""
    return 'scope="module"' in (ROOT / module).read_text(encoding="utf-8")


@cache
def starts_commands(module: str) -> bool:
    """Return whether a module of tests forks commands from a process that has imported everything."""
    if module.startswith("tests/acceptance/"):
        return True
    text = (ROOT / module).read_text(encoding="utf-8")
    return "from tests.support.processes import" in text and " palimpsest(" in text


def are_few(nodeids: Collection[str]) -> bool:
    """Return whether few of these tests start commands, so that one process runs them while others run the rest."""
    return sum(starts_commands(nodeid.partition("::")[0]) for nodeid in nodeids) < FEW * len(nodeids)


def scope_of(nodeid: str, *, commands_together: bool) -> str:
    """Return the name that a test has in common with all tests that must run in its process."""
    module = nodeid.partition("::")[0]
    if commands_together and starts_commands(module):
        return COMMANDS
    return module if shares_fixtures(module) else nodeid


class Spreading(LoadScopeScheduling):
    """A scheduler that gives modules with shared fixtures to one process each and spreads all other tests singly.

    In a run of all tests, those that start commands also share one process: the process that commands are forked from
    needs five CPU seconds for its imports. The largest scopes go first, so that none is left at the end.
    """

    @cached_property
    def _commands_together(self) -> bool:
        return are_few(self.collection or ())

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, commands_together=self._commands_together)
