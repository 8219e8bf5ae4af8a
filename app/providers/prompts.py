"""Instructions for a summarizing model."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

_SUFFIX: Final = ".md"


def load() -> Mapping[str, str]:
    """Read all prompts, by name and version, such as `structured.v1`. A version's text never changes."""
    folder = files("app") / "prompts"
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(_SUFFIX)
    }
