"""The number of examples a property is tried on, and whether each run seeks new ones."""

from typing import Final

from hypothesis import settings

SHORT: Final = "short"
"""The profile of `make test`: a fraction of the examples, the same in every run."""
ALL: Final = "all"
"""The profile of `make test-more NAME=examples`: all examples, the same in every run."""
SEEK: Final = "seek"
"""The profile of `make test-more NAME=long`: all examples, different in every run."""
PART: Final = 6
DEFAULT: Final = 100
"""The examples of a property that names no number."""


def register() -> None:
    """Register the profiles and load the short one; none has a deadline, because a loaded machine is no failure."""
    for name in (ALL, SEEK, SHORT):
        settings.register_profile(name, deadline=None, derandomize=name != SEEK)
        settings.load_profile(name)
        settings.register_profile(name, settings(max_examples=examples(DEFAULT)))
    settings.load_profile(SHORT)


def examples(number: int, part: int = PART) -> int:
    """Return `number`, or `number / part` rounded up in the short profile."""
    return -(-number // part) if settings.get_current_profile_name() == SHORT else number
