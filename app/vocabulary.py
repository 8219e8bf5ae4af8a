"""Install tiktoken's vocabularies where the server looks for them: `python -m app.vocabulary`.

They come unchanged, under tiktoken's file names, from the wheel that requirements/vocabulary.lock pins, not from
tiktoken's own download. Does nothing if they are installed already.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from app.tokenizers import FILES, intact

LOCK: Final = Path("requirements") / "vocabulary.lock"
"""The path relative to the source folder, which is the one this module is in, else the working folder."""
INSIDE_WHEEL: Final = "llama_index/core/_static/tiktoken_cache"


class Unavailable(Exception):
    """The wheel could not be downloaded, does not hold the vocabularies, or they could not be written."""


def install(folder: Path, lock: Path | None = None) -> bool:
    """Install the vocabularies; return whether any was missing. `lock` pins the wheel. Raises Unavailable."""
    if all(intact(folder / file, sha256) for file, sha256 in FILES.values()):
        return False
    lock = _find_lock() if lock is None else lock
    with tempfile.TemporaryDirectory(prefix="palimpsest-vocabulary-") as scratch:
        wheel = _download(lock, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            for file, sha256 in FILES.values():
                try:
                    data = archive.read(f"{INSIDE_WHEEL}/{file}")
                except KeyError:
                    raise Unavailable(f"{wheel.name} does not hold {file}") from None
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise Unavailable(f"{file} in {wheel.name} is not what tiktoken expects")
                try:
                    _write(folder / file, data)
                except OSError as error:
                    raise Unavailable(f"cannot write to {folder}: {error.strerror}") from None
    return True


def _find_lock() -> Path:
    for source in (Path(__file__).parent.parent, Path.cwd()):
        if (source / LOCK).is_file():
            return source / LOCK
    raise Unavailable(f"there is no {LOCK} here: run this in the source folder")


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


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically, even if several processes write it concurrently."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:  # leave no partial file after a signal either
        Path(name).unlink(missing_ok=True)
        raise


def main() -> int:
    """Run the command; return its exit status."""
    from app.runtime.settings import Settings

    folder = Settings().tiktoken_cache_dir
    try:
        install(folder)
    except Unavailable as error:
        print(f"palimpsest: {error}", file=sys.stderr)  # noqa: T201 - a command's own output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
