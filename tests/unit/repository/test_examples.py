"""The number of examples that a property is tried on, and the suite that tries all of them."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.examples import ALL, SEEK, SHORT

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("profile", "number"), [(SHORT, 17), (ALL, 100), (SEEK, 100)])
def test_a_property_that_names_no_number_has_that_of_the_profile(profile: str, number: int) -> None:
    found = settings.get_profile(profile)
    assert (found.max_examples, found.deadline, found.derandomize) == (number, None, profile != SEEK)


def test_the_suite_of_examples_has_every_property() -> None:
    command = ["make", "--dry-run", "--no-print-directory", "test-more", "NAME=examples"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert "--hypothesis-profile=all" in shown
    named = [ROOT / word for word in shown.split() if word.startswith("tests/")]
    properties = {
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if "\n@given(" in file.read_text(encoding="utf-8") and "long" not in file.relative_to(ROOT).parts
    }
    assert properties
    assert {file for file in properties if not any(file.is_relative_to(one) for one in named)} == set()
