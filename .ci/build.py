"""Build everything that a release publishes: `.venv/bin/python .ci/build.py [--no-npm] [FOLDER]`, after `make setup`.

FOLDER is `dist` by default; it is emptied first. It gets an sdist and a wheel of the server, the client and the tools,
and the npm package of the TypeScript client. Each wheel is built of its sdist, with the setuptools of the environment.
Wheels of one commit are equal, byte for byte: the times in them are the commit's.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DISTRIBUTIONS: Final = (".", "clients/python", "tools")
NPM_PACKAGE: Final = ROOT / "clients" / "typescript"


def build(folder: Path, *, npm: bool) -> None:
    """Build all artefacts into an empty folder. Raises CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    for place in DISTRIBUTIONS:
        _run([*uv, "--no-create-gitignore", "--out-dir", str(folder), place], ROOT)
    if npm:
        ready = NPM_PACKAGE / "node_modules" / ".ready"  # of the Makefile, too
        if not ready.exists():
            _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"], NPM_PACKAGE)
            ready.touch()
        _run(["npm", "pack", "--silent", "--pack-destination", str(folder)], NPM_PACKAGE)


def _run(command: list[str], folder: Path) -> None:
    """Run a command with its output on standard error."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": _time_of_commit()}
    subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=True)  # noqa: S603 - constants


def _time_of_commit() -> str:
    """Return the commit's time in seconds; where there is no repository, the first that a zip archive can state."""
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - git
    except (OSError, subprocess.CalledProcessError):
        return "315532800"


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="build.py")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-npm", action="store_true", help="leave the npm package out")
    arguments = parser.parse_args()
    npm = not arguments.no_npm
    if npm and shutil.which("npm") is None:
        parser.error("npm is not installed; --no-npm leaves its package out")
    folder = arguments.folder.resolve()
    build(folder, npm=npm)
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sys.stdout.write(f"{path.stat().st_size / 1e6:7.2f} MB  sha256:{digest}  {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
