"""How many examples a property is tried on: all in `make test-long`, a part in `make test`."""

from typing import Final

from hypothesis import settings

LONG: Final = "long"
"""The profile of `make test-long` (`--hypothesis-profile=long`)."""
PART: Final = 3


def examples(number: int) -> int:
    """`number` in the long profile, else a third of it."""
    return number if settings.get_current_profile_name() == LONG else -(-number // PART)
