"""The OpenAPI document, for tests that look something up in it."""

from functools import cache
from pathlib import Path
from typing import Final

COMMITTED: Final = Path(__file__).parent.parent.parent / "openapi" / "palimpsest.json"


@cache
def document() -> str:
    """Return the committed document, since generating it takes half a second; `test_openapi` checks that it is
    current.
    """
    return COMMITTED.read_text()
