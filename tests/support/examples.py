"""How many examples a property is tried on: all in `make test-long`, a part in `make test`."""

from typing import Final

from hypothesis import settings

SHORT: Final = "short"
"""The profile of `make test`."""
LONG: Final = "long"
"""The profile of `make test-long` (`--hypothesis-profile=long`)."""
PART: Final = 3


def register() -> None:
    """Register both profiles and load the short one. Neither has a deadline: a loaded machine is no fault."""
    for name in (SHORT, LONG):
        settings.register_profile(name, deadline=None)
    settings.load_profile(SHORT)


def examples(number: int) -> int:
    """`number` in the long profile, else a third of it."""
    return number if settings.get_current_profile_name() == LONG else -(-number // PART)
