"""The distribution of tests over processes.

pytest-xdist's own groups (`xdist_group`) silently have no effect with pytest 9.2 (pytest-xdist issue 1386), so each
process built the shared databases again.
"""

from typing import Final

from xdist.scheduler import LoadScopeScheduling

SHARING: Final = ("_lived.py", "_plans.py", "test_immutability.py", "contract/test_walls.py")
"""Endings of the modules whose tests share a database that takes seconds to fill."""


class Spreading(LoadScopeScheduling):
    """A scheduler that gives modules with a shared database to one process and spreads all other tests singly.

    The largest scopes go first, so that none is left at the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if module.endswith(SHARING) else nodeid
