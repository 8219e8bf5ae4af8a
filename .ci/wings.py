"""Prove that wings can be removed: `python .ci/wings.py [WING …]`, with `kernel` for no wing at all; all by default.

For each, a copy of the repository without the other wings runs the tests that do not need them. For the kernel these
are all quick tests, for a wing its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNEL = "kernel"
QUICK = "not slow and not long and not pages and not generators and not monitoring and not citus"

ONLY_THE_COPY = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if not one.__module__.startswith("__editable__")]
"""
"""A sitecustomize: the finder of an editable installation would import what the copy lacks from the repository."""


def wings() -> list[str]:
    """Return the names of all wings."""
    return sorted(path.parent.name for path in (ROOT / "app" / "wings").glob("*/__init__.py"))


def copy(folder: Path, keep: str) -> None:
    """Copy the tracked files to a folder, without the wings other than `keep`."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607 - the git of the PATH
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "sitecustomize.py").write_text(ONLY_THE_COPY, encoding="utf-8")
    if keep == KERNEL:
        shutil.rmtree(folder / "app" / "wings")
    for wing in set(wings()) - {keep}:
        shutil.rmtree(folder / "app" / "wings" / wing, ignore_errors=True)


def run(name: str) -> bool:
    """Run the tests of the kernel or of one wing; return whether they pass."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy(folder, name)
        only = [] if name == KERNEL else ["--wing", name]
        paths = os.pathsep.join(map(str, (folder, folder / "clients" / "python", folder / "tools")))
        sys.stdout.write(f"{name}: tests without {'all' if name == KERNEL else 'the other'} wings\n")
        sys.stdout.flush()
        environment = os.environ | {"PYTHONPATH": paths}
        export = [sys.executable, "-m", "app.export", "openapi/palimpsest.json"]  # tests take their cases from it
        subprocess.run(export, cwd=folder, env=environment, check=True)  # noqa: S603 - our own code
        command = [sys.executable, "-m", "pytest", "-m", QUICK, "--numprocesses", "auto", *only]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0  # noqa: S603 - ours


if __name__ == "__main__":
    failed = [name for name in sys.argv[1:] or [KERNEL, *wings()] if not run(name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
