"""How tests are spread over processes.

pytest-xdist's own groups (`xdist_group`) do nothing with pytest 9.2, and say nothing of it (pytest-xdist issue 1386):
each process then made what a module's tests share anew.
"""

from typing import Final

from xdist.scheduler import LoadScopeScheduling

SHARING: Final = ("_lived.py", "_plans.py", "test_immutability.py", "contract/test_walls.py")
"""Endings of the modules whose tests share a database that takes seconds to fill."""


class Spreading(LoadScopeScheduling):
    """A process takes all tests of a module that shares a database, and of the others one by one.

    The largest go first, so that none is left when all else is done.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if module.endswith(SHARING) else nodeid
