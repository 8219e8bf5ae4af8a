"""Log records of failures: they show the place, and no values."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys, structlog
from app.cli import options as telemetry
from app.runtime.settings import Settings

telemetry.configure_logging(Settings(log_json=sys.argv[1] == "json"))

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


UNWRITABLE = """
import logging, structlog
from app.cli import options as telemetry
from app.runtime.settings import Settings

telemetry.configure_logging(Settings())
structlog.get_logger().error("ours")
logging.getLogger("library").error("theirs")
print("went on")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file that is always full")
def test_a_line_that_cannot_be_written_fails_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([sys.executable, "-c", UNWRITABLE], stdout=subprocess.PIPE, stderr=full, text=True)
    assert ran.stdout == "went on\n"


REPEATED = """
import logging
from app.cli import options as telemetry
from app.runtime.settings import Settings

telemetry.configure_logging(Settings())
queue = logging.getLogger("pgqueuer")
for number in range(100):
    try:
        raise OSError("no room")
    except OSError:
        queue.exception("Flush failed, requeuing %d items", number)
queue.error("something else")
"""


def test_the_queue_logs_a_failure_once_a_minute() -> None:
    ran = subprocess.run([sys.executable, "-c", REPEATED], capture_output=True, text=True, check=True)
    assert [ran.stderr.count(word) for word in ("Flush failed", "OSError: no room", "something else")] == [1, 1, 1]
