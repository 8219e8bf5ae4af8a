"""Folders for the tests' databases: in memory, where the machine has a place there."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 2 * 1024**3
"""What must be free there; containers often have 64 MB."""


@contextmanager
def data_folder() -> Iterator[Path]:
    """An empty folder for a Postgres, with a path short enough for a socket; gone when the block ends.

    Not below pytest's own: every other pytest that starts takes from that the right of Postgres' user to pass.
    """
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-", dir=_memory()) as name:
        yield Path(name)


def _memory() -> Path | None:
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN else None
    except OSError:
        return None
