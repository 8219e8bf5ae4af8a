"""The tests' list of wings is that of the product."""

import pytest

from tests.support.wings import ALL, WINGS


@pytest.mark.wing("all")
def test_every_wing_is_listed() -> None:
    assert [path.parent.name for path in sorted(WINGS.glob("*/__init__.py"))] == list(ALL)
