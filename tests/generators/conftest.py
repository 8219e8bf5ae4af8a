"""Fixture of the API's document, from which the generators make clients."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
DOCUMENT: Final = ROOT / "openapi" / "palimpsest.json"
