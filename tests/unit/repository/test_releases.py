"""All files name the same version, and the records of earlier releases match the git history."""

import itertools
import json
import re

import palimpsest
import pytest

import palimpsest_tools
from app.store.migrate import revisions
from app.version import VERSION
from tests.support.releases import ROOT, git, is_here, releases, suits

SECTION = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)\n\nSchema (\d{4})\.", re.MULTILINE)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
UNRELEASED, _, RELEASED = CHANGELOG.partition("\n## [Unreleased]\n")[2].partition("\n## [")
SECTIONS = SECTION.findall("## [" + RELEASED)


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_newest_release_has_the_version_of_all_files() -> None:
    assert SECTIONS[0][0] == VERSION
    assert palimpsest.__version__ == VERSION
    assert palimpsest_tools.VERSION == VERSION
    assert json.loads((ROOT / "openapi" / "palimpsest.json").read_text())["info"]["version"] == VERSION
    typescript = ROOT / "clients" / "typescript"
    assert json.loads((typescript / "package.json").read_text())["version"] == VERSION
    lock = json.loads((typescript / "package-lock.json").read_text())
    assert lock["version"] == lock["packages"][""]["version"] == VERSION
    assert f'VERSION = "{VERSION}"' in (typescript / "src" / "version.ts").read_text()
    assert f"newTag: {VERSION}\n" in (ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text()


def test_every_release_has_a_date_and_a_schema_and_they_grow() -> None:
    assert len(SECTIONS) == len(re.findall(r"^## \[\d", CHANGELOG, re.MULTILINE))
    for newer, older in itertools.pairwise(SECTIONS):
        assert number(newer[0]) > number(older[0])
        assert newer[1:] >= older[1:]


def test_the_changelog_names_the_schema_of_this_code() -> None:
    """The changelog's unreleased section names its schema in its first line if it is newer than the last release's."""
    said = re.match(r"\n*Schema (\d{4})\.", UNRELEASED)
    assert (said[1] if said else SECTIONS[0][2]) == revisions()[-1]


def test_releases_that_are_recorded_are_those_of_the_changelog() -> None:
    schemas = {version: schema for version, _, schema in SECTIONS}
    recorded = releases()
    assert [one.version for one in recorded] == sorted((one.version for one in recorded), key=number)
    assert set(schemas) - {one.version for one in recorded} <= {VERSION}, (
        "only the newest one's commit is not known yet"
    )
    for release in recorded:
        assert release.schema == schemas[release.version]


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.version)
def test_the_commit_of_a_release_has_its_version_and_its_schema(release: object) -> None:
    found = next(one for one in releases() if one == release)
    if not is_here(found):
        pytest.skip(f"the commit of {found.version} is not in this clone's history: git fetch --unshallow")
    check(found.commit, found.version, found.schema)


def test_a_tag_is_named_by_the_version_of_its_commit() -> None:
    tags = (git("tag", "--list", "v*") or b"").decode().split()
    if not tags:
        pytest.skip("there are no tags in this clone: git fetch --tags")
    schemas = {version: schema for version, _, schema in SECTIONS}
    recorded = {release.version: release.commit for release in releases()}
    for tag in tags:
        version = tag.removeprefix("v")
        check(tag, version, schemas[version])
        commit = (git("rev-list", "-n1", tag) or b"").decode().strip()
        assert recorded.get(version, commit) == commit, tag


def check(commit: str, version: str, schema: str) -> None:
    """Assert the version in a commit's files, and its newest migration."""
    told = git("show", f"{commit}:app/version.py")
    assert told is not None, commit
    assert f'VERSION = "{version}"' in told.decode()
    document = git("show", f"{commit}:openapi/palimpsest.json")
    assert document is not None, commit
    assert json.loads(document)["info"]["version"] == version
    files = (git("ls-tree", "--name-only", commit, "migrations/versions/") or b"").decode()
    assert max(re.findall(r"/\d{8}_(\d{4})_", files)) == schema


def test_a_release_runs_here_only_where_it_pins_what_is_installed() -> None:
    lock = (ROOT / "requirements" / "runtime.lock").read_text()
    assert suits(lock)
    assert not suits(re.sub(r"^(fastapi==)\S+", r"\g<1>0.1.0", lock, flags=re.MULTILINE))
    assert not suits(lock + "no-such-package==1.0\n")
    assert suits(lock + "no-such-package==1.0 ; sys_platform == 'win32'\n")
