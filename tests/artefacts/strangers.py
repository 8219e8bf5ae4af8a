"""A user with the built artefacts and an index, and nothing else: an empty home, no cache, no source folder."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conftest import CERTIFICATES

LENT: Final = ("PIP_", "UV_", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Beginnings of the variables that say how this machine reaches the index. A cache is not among them."""
SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin"
HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Stranger:
    """A home folder, and the folder of artefacts that the README's commands name."""

    home: Path
    dist: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of all commands."""
        lent = {name: value for name, value in os.environ.items() if name.upper().startswith(LENT)}
        lent = {name: value for name, value in lent.items() if "CACHE" not in name}
        if CERTIFICATES:
            lent["SSL_CERT_FILE"] = CERTIFICATES
        own = {"HOME": str(self.home), "PATH": f"{self.home / 'bin'}:{SYSTEM}", "LANG": "C.UTF-8", "COLUMNS": "120"}
        return lent | {"PIP_CONFIG_FILE": str(self._pip_conf())} | own

    def run(self, *command: object, **variables: str) -> str:
        """Run a command to its end, and return its output."""
        done = subprocess.run(
            [*map(str, command)], cwd=self.home, env=self.variables | variables, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fails(self, *command: object) -> str:
        """Run a command that must fail, and return its standard error."""
        words = [*map(str, command)]
        done = subprocess.run(words, cwd=self.home, env=self.variables, capture_output=True, text=True)
        assert done.returncode != 0, done.stdout
        return done.stderr

    @asynccontextmanager
    async def serving(self, *command: object, **variables: str) -> AsyncIterator[str]:
        """Run a command that serves; yield the address that it prints, and interrupt it at the end."""
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=self.home,
            env=self.variables | variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        printed = []
        try:
            async for line in process.stdout:
                printed.append(line.decode())
                if "serving on " in printed[-1]:
                    break
            else:
                raise AssertionError("".join(printed))
            reading = asyncio.create_task(process.stdout.read())  # so that the pipe never fills
            yield printed[-1].split("serving on ")[1].strip()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        await reading
        assert process.returncode == 0

    def _pip_conf(self) -> Path:
        """Return a copy of pip's settings of this machine, which are in the home that the stranger does not have."""
        path = self.home.parent / "pip.conf"
        if not path.exists():
            pip = [sys.executable, "-m", "pip", "config", "list"]
            listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
            convert = [sys.executable, str(HERE.parent / "image" / "pip_conf.py")]
            path.touch(0o600)
            path.write_text(subprocess.run(convert, input=listed, capture_output=True, text=True, check=True).stdout)
        return path


class Clock:
    """The time of the steps of one way, to be printed."""

    def __init__(self) -> None:
        self._last = self._now()

    def lap(self, until: float | None = None) -> str:
        """Return the seconds since the lap before, and those of the CPU, which do not depend on the machine's load."""
        before, self._last = self._last, self._now()
        end = self._last[0] if until is None else until
        return f"{end - before[0]:.1f} s ({self._last[1] - before[1]:.1f} s of CPU)"

    def _now(self) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), used.ru_utime + used.ru_stime


def megabytes(folder: Path, *, bytecode: bool = True) -> float:
    """Return the space of a folder's files, as du counts it; linked files once."""
    found = [path.lstat() for path in folder.rglob("*") if bytecode or path.suffix != ".pyc"]
    return sum({(one.st_dev, one.st_ino): one.st_blocks * 512 for one in found}.values()) / 1e6
