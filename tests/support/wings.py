"""Selection of tests by wings: a test whose wing has been removed is left out.

A file needs the wings that it imports, and those that its `pytestmark` names: `pytest.mark.wing("webhooks")`. A single
test may be marked as well. What compares the whole product with its pages, or needs its repository, is marked with
"all". With `--wing NAME` only the tests of that wing run.
"""

import re
from functools import cache
from pathlib import Path

import pytest

WINGS = Path(__file__).parents[2] / "app" / "wings"
ALL = (
    "audit",
    "compare",
    "gateway",
    "ledger",
    "pages",
    "recall",
    "replica",
    "retention",
    "sealing",
    "shards",
    "stream",
    "summarizers",
    "telemetry",
    "warmings",
    "webhooks",
)
"""The wings of the whole product."""
FIXTURES = {"fake_summarizers": "summarizers"}
"""The wings that a test with a fixture needs."""
PROBES = ("/healthz", "/readyz", *(["/metrics"] if (WINGS / "telemetry" / "__init__.py").exists() else []))
"""The paths of the operations that are not limited, and logged only at `debug`."""
_NEEDED = re.compile(r"app\.wings\.(\w+)|^pytestmark = .*\bmark\.wing\(\"(\w+)\"\)", re.MULTILINE)


def add_option(parser: pytest.Parser) -> None:
    """Add the option `--wing`."""
    parser.addoption("--wing", help="run only the tests of this wing")


@cache
def needed(path: Path) -> frozenset[str]:
    """Return the wings that a file of tests needs."""
    return frozenset(imported or marked for imported, marked in _NEEDED.findall(path.read_text(encoding="utf-8")))


def is_left_out(path: Path) -> bool:
    """Return whether a file needs a wing that is not there."""
    return path.name.startswith("test_") and path.suffix == ".py" and not all(map(_exists, needed(path)))


def select_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose wing is not there, and with `--wing` those of no wing or of another."""
    only: str | None = config.getoption("--wing")
    out = [item for item in items if not all(map(_exists, _wings(item))) or (only and only not in _wings(item))]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _wings(item: pytest.Item) -> frozenset[str]:
    used = {wing for fixture, wing in FIXTURES.items() if fixture in getattr(item, "fixturenames", ())}
    return needed(item.path) | used | {str(mark.args[0]) for mark in item.iter_markers("wing")}


def _exists(wing: str) -> bool:
    return all(map(_exists, ALL)) if wing == "all" else (WINGS / wing / "__init__.py").exists()
