"""The site as it is built, on loopback. Left out unless `make test-more NAME=site` has made its environments."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tests.browser.conftest import ENVIRONMENT, chromium
from website.source import ROOT

__all__ = ["chromium"]

PYTHON: Final = ROOT / "build" / "website" / "bin" / "python"
COMMITTER: Final = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "Site"), ("EMAIL", "site@example.org"))
}
collect_ignore_glob = [] if ENVIRONMENT and PYTHON.exists() else ["test_*.py"]


def website(*options: str) -> str:
    """Run `python -m website` in the site's environment, and return its output."""
    return run(str(PYTHON), "-m", "website", *options)


def git(*words: str) -> str:
    """Run git, and return its output."""
    return run("git", *words)


def run(*command: str) -> str:
    """Run a command in the source folder, as a committer, and return its output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment | COMMITTER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built site."""
    return Path(website()).parent


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    """The address of the built site."""
    yield from served(html)


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sites of two releases, the newer one published first, each by a push to an empty repository."""
    folder = tmp_path_factory.mktemp("releases")
    repository = folder / "repository.git"
    git("init", "--quiet", "--bare", str(repository))
    for version in ("0.10.0", "0.9.0"):
        run(str(ROOT / ".ci" / "site.sh"), repository.as_uri(), version, "https://docs.example.org/")
    git("clone", "--quiet", "--branch", "site", repository.as_uri(), str(folder / "site"))
    return folder / "site"


@pytest.fixture(scope="session")
def published(releases: Path) -> Iterator[str]:
    """The address of those releases."""
    yield from served(releases)
