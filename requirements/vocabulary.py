"""Put tiktoken's vocabularies into a folder: `python -m requirements.vocabulary [FOLDER]` in the source folder.

`make` does this for an environment that runs the source folder, and setup.py for every sdist and wheel that is built.
The files come unchanged, under tiktoken's names, from the wheel that vocabulary.lock pins. tiktoken's own download
would need the network when a server first counts.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from app.vocabulary import ENVIRONMENT, FILES, fault

LOCK: Final = Path(__file__).parent / "vocabulary.lock"
INSIDE_WHEEL: Final = "llama_index/core/_static/tiktoken_cache"


class Unavailable(Exception):
    """The wheel could not be downloaded, does not hold the vocabularies, or they could not be written."""


def install(folder: Path, lock: Path = LOCK, source: Path = ENVIRONMENT) -> bool:
    """Install the vocabularies; return whether any was missing.

    They are copied from `source` if all are there, else downloaded in the wheel that `lock` pins. Raises Unavailable.
    """
    if _complete(folder):
        return False
    with tempfile.TemporaryDirectory(prefix="palimpsest-vocabulary-") as scratch:
        if not _complete(source):
            source = _unpack(_download(lock, Path(scratch)), Path(scratch))
        for file, _ in FILES.values():
            try:
                _copy(source / file, folder / file)
            except OSError as error:
                raise Unavailable(f"cannot write to {folder}: {error.strerror}") from None
    return True


def _complete(folder: Path) -> bool:
    return all(fault(folder / file, sha256) is None for file, sha256 in FILES.values())


def _download(lock: Path, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:"]
    done = subprocess.run(  # noqa: S603 - pip, with our own lock file
        [*command, "--dest", str(scratch), "--requirement", str(lock)], capture_output=True, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = done.stderr.strip().splitlines()[-1:] or ["nothing was downloaded"]
        raise Unavailable(f"the tokenizer vocabularies could not be downloaded: {reason[0]}")
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        for file, sha256 in FILES.values():
            try:
                data = archive.read(f"{INSIDE_WHEEL}/{file}")
            except KeyError:
                raise Unavailable(f"{wheel.name} does not hold {file}") from None
            (folder / file).write_bytes(data)
            if fault(folder / file, sha256) is not None:
                raise Unavailable(f"{file} in {wheel.name} is not what tiktoken expects")
    return folder


def _copy(source: Path, path: Path) -> None:
    """Write the file atomically, even if several processes write it concurrently."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    os.close(descriptor)
    try:
        shutil.copyfile(source, name)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:  # leave no partial file after a signal either
        Path(name).unlink(missing_ok=True)
        raise


def main() -> int:
    """Run the command; return its exit status."""
    try:
        install(Path(sys.argv[1]) if sys.argv[1:] else ENVIRONMENT)
    except Unavailable as error:
        sys.stderr.write(f"palimpsest: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
