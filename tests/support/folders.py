"""Data folders for test databases, in memory if there is enough."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 2 * 1024**3
"""The free space required in /dev/shm; containers often have 64 MB."""


@contextmanager
def data_folder() -> Iterator[Path]:
    """Yield an empty folder for a Postgres, removed when the block ends; its path is short enough for a socket.

    It is not in pytest's temporary folder, to which every other pytest process denies the Postgres user access.
    """
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-", dir=_memory()) as name:
        yield Path(name)


def _memory() -> Path | None:
    try:
        return MEMORY if shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN else None
    except OSError:
        return None
