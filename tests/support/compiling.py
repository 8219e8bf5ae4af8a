"""Imports of all tests, divided among the processes of a run.

The first process to import a module in a fresh clone compiles it. Processes that import in the same order would all
compile the same modules, so each begins with a share of its own.
"""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests.support import wings

TESTS: Final = Path(__file__).parents[1]
LARGE: Final = ["anthropic.types", "openai.types", "google.genai.types", "schemathesis", "mcp", "app.cli.main"]
"""Modules of many others, which take longest to compile."""


def is_excluded(path: Path, config: pytest.Config) -> bool:
    """Return whether `-m` excludes the marker that a folder is named after, and that all of its tests have."""
    return path.parent == TESTS and f"not {path.name} " in f"{config.option.markexpr} "


def import_share(config: pytest.Config, number: int, processes: int) -> None:
    """Import the share of process `number` of the modules that all processes import later."""
    files = [
        path
        for folder in sorted(TESTS.iterdir())
        if folder.is_dir() and not is_excluded(folder, config)
        for path in sorted(folder.rglob("test_*.py"))
        if not wings.is_left_out(path)
    ]
    names = [".".join(path.relative_to(TESTS.parent).with_suffix("").parts) for path in files]
    for name in [*LARGE, *names][number::processes]:
        with suppress(Exception, pytest.skip.Exception):  # the collection reports the error
            import_module(name)
