"""`python .ci/interpreter.py 3.12`: print the path of a Python of at least this version, if there is one."""

import os
import subprocess
import sys
from pathlib import Path


def interpreter(minor: int) -> str | None:
    """Return the first Python 3 of at least this minor version: this one, those of the path, and pyenv's."""
    newer = [f"python3.{number}" for number in range(minor, minor + 4)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    names = [sys.executable, *newer, *(str(path) for path in sorted(pyenv.glob("3.*/bin/python")))]
    return next(filter(None, (_path(name, minor) for name in names)), None)


def _path(name: str, minor: int) -> str | None:
    command = [name, "-c", f"import sys; print(sys.executable); sys.exit(sys.version_info < (3, {minor}))"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - an interpreter
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


if __name__ == "__main__":
    sys.stdout.write(interpreter(int(sys.argv[1].partition(".")[2])) or "")
