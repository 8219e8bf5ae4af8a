"""Prove that wings can be removed, with copies of the repository that run the quick tests of what they contain.

python .ci/wings.py [WING …]                keep one wing, and run its tests; `kernel` keeps none and runs all of its
                                            tests; by default the kernel and each of the wings
python .ci/wings.py without WING [PATH …]   keep all but this wing, and run all tests that do not need it, or those in
                                            these paths; CI does not run this
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNEL = "kernel"
WITHOUT = "without"
QUICK = re.findall(r'^QUICK := "(.+)"$', (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0]
"""The tests that `make test` runs."""

ONLY_THE_COPY = """import sys
sys.meta_path[:] = [one for one in sys.meta_path if not one.__module__.startswith("__editable__")]
"""
"""A sitecustomize: the finder of an editable installation would import what the copy lacks from the repository."""


def wings() -> list[str]:
    """Return the names of all wings."""
    return sorted(path.parent.name for path in (ROOT / "app" / "wings").glob("*/__init__.py"))


def copy(folder: Path, removed: set[str]) -> None:
    """Copy the tracked files to a folder, without these wings; if they are all, without their package."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607 - the git of the PATH
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "sitecustomize.py").write_text(ONLY_THE_COPY, encoding="utf-8")
    if removed == set(wings()):
        shutil.rmtree(folder / "app" / "wings")
    for wing in removed:
        shutil.rmtree(folder / "app" / "wings" / wing, ignore_errors=True)


def run(removed: set[str], *options: str) -> bool:
    """Run pytest with these options in a copy without these wings; return whether the tests pass."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy(folder, removed)
        paths = os.pathsep.join(map(str, (folder, folder / "clients" / "python", folder / "tools")))
        sys.stdout.write(f"tests without {', '.join(sorted(removed))}\n")
        sys.stdout.flush()
        environment = os.environ | {"PYTHONPATH": paths}
        export = [sys.executable, "-m", "app.main", "openapi/palimpsest.json"]  # tests take their cases from it
        subprocess.run(export, cwd=folder, env=environment, check=True)  # noqa: S603 - our own code
        command = [sys.executable, "-m", "pytest", "-m", QUICK, "--numprocesses", "auto", *options]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0  # noqa: S603 - ours


def run_kept(name: str) -> bool:
    """Run the tests of the kernel, or of one wing, without the other wings; return whether they pass."""
    return run(set(wings()) - {name}, *([] if name == KERNEL else ["--wing", name]))


def main(arguments: list[str]) -> int | str:
    """Run the command; return its exit code or its error."""
    if arguments[:1] == [WITHOUT]:
        removed = set(arguments[1:2])
        if not removed or not removed <= set(wings()):
            return f"usage: python .ci/wings.py without WING [PATH …], with one of {', '.join(wings())}"
        return 0 if run(removed, *arguments[2:]) else 1
    if unknown := set(arguments) - {KERNEL, *wings()}:
        return f"no wings: {', '.join(sorted(unknown))}"
    failed = [name for name in arguments or [KERNEL, *wings()] if not run_kept(name)]
    return f"failed: {', '.join(failed)}" if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
