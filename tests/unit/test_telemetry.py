"""What a log tells of a failure: where it was, and nothing of what was being handled."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, structlog
from app import telemetry
from app.settings import Settings

telemetry.configure(Settings(log_json=sys.argv[1] == "json"))

def fail(said):
    raise ValueError("cannot")

try:
    fail(" ".join(["own", "words"]))
except ValueError as error:
    structlog.get_logger().error("ours", exc_info=error)
    logging.getLogger("library").error("theirs", exc_info=error)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_values(form: str) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert [ran.stderr.count(word) for word in ("ours", "theirs", "in fail", "ValueError: cannot")] == [1, 1, 2, 2]
    assert "own words" not in ran.stderr
