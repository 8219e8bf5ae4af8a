"""How many examples a property is tried on, and whether they are sought anew in every run."""

from typing import Final

from hypothesis import settings

SHORT: Final = "short"
"""The profile of `make test`: a part of the examples, the same ones in every run of the same code."""
ALL: Final = "all"
"""The profile of `make test-examples`: all examples, the same ones in every run of the same code."""
SEEK: Final = "seek"
"""The profile of `make test-long`: all examples, sought anew in every run."""
PART: Final = 6


def register() -> None:
    """Register the profiles and load the short one. None has a deadline: a loaded machine is no fault."""
    for name in (SHORT, ALL, SEEK):
        settings.register_profile(name, deadline=None, derandomize=name != SEEK)
    settings.load_profile(SHORT)


def examples(number: int, part: int = PART) -> int:
    """`number`, or that part of it in the short profile."""
    return -(-number // part) if settings.get_current_profile_name() == SHORT else number
