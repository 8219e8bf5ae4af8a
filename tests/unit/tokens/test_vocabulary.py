"""Vocabularies from the pinned wheel, installed by the real pip from a local folder."""

import hashlib
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.runtime.settings import Settings
from app.vocabulary import FILES, fault
from requirements import vocabulary
from requirements.vocabulary import INSIDE_WHEEL, Unavailable

INSTALLED = Settings().tiktoken_cache_dir
NAMES = {file for file, _ in FILES.values()}
PROJECT, VERSION = "llama_index_core", "1.0"


def contents() -> dict[str, bytes]:
    return {file: (INSTALLED / file).read_bytes() for file in NAMES}


def lock_for(folder: Path, files: Mapping[str, bytes], *, sha256: str | None = None) -> Path:
    """Write a wheel that contains `files` among others, and a lock file that pins it."""
    wheel = folder / f"{PROJECT}-{VERSION}-py3-none-any.whl"
    info = f"{PROJECT}-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{INSIDE_WHEEL}/{name}", data)
        archive.writestr("llama_index/core/__init__.py", "raise SystemExit('never run')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = folder / "vocabulary.lock"
    lock.write_text(f"--no-index\n--find-links {folder.as_uri()}\n{PROJECT}=={VERSION} --hash=sha256:{digest}\n")
    return lock


def install(folder: Path, lock: Path) -> bool:
    """Install from the wheel of `lock`: nothing can be copied."""
    return vocabulary.install(folder, lock, folder / "none")


def assert_installed(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == NAMES
    assert all(fault(folder / file, sha256) is None for file, sha256 in FILES.values())


def test_installs_the_two_files_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "share" / "tiktoken"
    assert install(folder, lock_for(tmp_path, contents())) is True
    assert_installed(folder)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_existing_files_need_no_network(tmp_path: Path) -> None:
    assert install(INSTALLED, tmp_path / "no such lock file") is False


def test_replaces_a_broken_file(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(INSTALLED, tmp_path / "tiktoken"))
    (folder / min(NAMES)).write_bytes(b"half a downl")
    assert install(folder, lock_for(tmp_path, contents())) is True
    assert_installed(folder)


def test_refuses_a_wheel_that_is_not_the_pinned_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="could not be downloaded"):
        install(tmp_path / "tiktoken", lock_for(tmp_path, contents(), sha256="0" * 64))
    assert not (tmp_path / "tiktoken").exists()


def test_refuses_a_wheel_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not hold"):
        install(tmp_path / "tiktoken", lock_for(tmp_path, {}))
    assert not (tmp_path / "tiktoken").exists()


def test_refuses_other_vocabularies_than_tiktokens(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not what tiktoken expects"):
        install(tmp_path / "tiktoken", lock_for(tmp_path, dict.fromkeys(NAMES, b"IQ== 0\n")))
    assert not (tmp_path / "tiktoken").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot write to") as caught:
        install(tmp_path / "file" / "tiktoken", lock_for(tmp_path, contents()))
    assert "\n" not in str(caught.value)


def test_files_of_the_environment_are_copied_without_the_network(tmp_path: Path) -> None:
    assert vocabulary.install(tmp_path / "tiktoken", tmp_path / "no such lock file", INSTALLED) is True
    assert_installed(tmp_path / "tiktoken")


def test_a_broken_file_of_the_environment_is_not_copied(tmp_path: Path) -> None:
    source = Path(shutil.copytree(INSTALLED, tmp_path / "broken"))
    (source / min(NAMES)).write_bytes(b"half a downl")
    vocabulary.install(tmp_path / "tiktoken", lock_for(tmp_path, contents()), source)
    assert_installed(tmp_path / "tiktoken")


def test_the_command_fails_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["vocabulary", str(INSTALLED)])
    assert vocabulary.main() == 0
    assert capsys.readouterr().err == ""

    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "tiktoken"
    monkeypatch.setattr("sys.argv", ["vocabulary", str(folder)])
    assert vocabulary.main() == 1
    assert capsys.readouterr().err == f"palimpsest: cannot write to {folder}: Not a directory\n"
