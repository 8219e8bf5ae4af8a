"""A real Palimpsest server on an embedded Postgres for all tests, and a gate to it for each."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from palimpsest import Palimpsest
from tests.adapters.support import Gate, gate, until

ROOT = Path(__file__).parents[4]


@contextmanager
def serving(**settings: str) -> Iterator[str]:
    """Yield the URL of a server with these settings, which runs in the repository's own environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    with tempfile.TemporaryDirectory(prefix="palimpsest-adapters-") as folder:
        command = [ROOT / ".venv/bin/palimpsest", "serve", "--port", str(port), "--data-dir", f"{folder}/data"]
        with Path(folder, "log").open("w+") as log:
            given = clean | settings
            process = subprocess.Popen([*command, "--processes", "1"], env=given, stdout=log, stderr=log)
            try:
                until(lambda: process.poll() is not None or _ready(url), 120)
                log.seek(0)
                assert process.poll() is None, log.read()
                yield url
            finally:
                process.terminate()
                process.wait(30)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Return the URL of the server of all tests."""
    with serving() as url:
        yield url


def _ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def palimpsest(server: str) -> Iterator[Gate]:
    """Return a gate to the server, which a test can close. Calibrations of other tests are deleted."""
    Palimpsest(base_url=server).delete_calibrations()
    with gate(server) as state:
        yield state


@pytest.fixture
def sid(request: pytest.FixtureRequest) -> str:
    """Return a session id of the test's own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.nodeid.rpartition("/")[2])[-100:]
