"""The distribution of tests over processes.

pytest-xdist's own groups (`xdist_group`) silently have no effect with pytest 9.2 (pytest-xdist issue 1386), so each
process built the fixtures of a module again, a database with every operation for one.
"""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]


@cache
def shares_fixtures(module: str) -> bool:
    """Return whether a module of tests, a path below the repository, has fixtures that all of its tests share."""
    return 'scope="module"' in (ROOT / module).read_text(encoding="utf-8")


class Spreading(LoadScopeScheduling):
    """A scheduler that gives modules with shared fixtures to one process each and spreads all other tests singly.

    The largest scopes go first, so that none is left at the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if shares_fixtures(module) else nodeid
