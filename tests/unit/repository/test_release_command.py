"""`.ci/release.py` cuts, records and tags a release in a clone of this repository."""

import datetime
import runpy
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.releases import LIST, ROOT, is_here, releases

COMMAND = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "release.py")))
DAY = datetime.date(2026, 12, 1)
CHANGED = "Schema 0028.\n\n### Added\n\n* A thing.\n"


def changelog(unreleased: str, last: str = "1.2.3") -> str:
    return f"# Changelog\n\n## [Unreleased]\n\n{unreleased}\n## [{last}] - 2026-11-23\n\nSchema 0019.\n\n* Old.\n"


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone without tags, with the files of this working tree that a release changes or reads."""
    if not all(map(is_here, releases())):
        pytest.skip("the releases are not in this clone's history: git fetch --unshallow")
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--shared", "--no-tags", str(ROOT), str(folder))
    for name, value in (("user.name", "A Maintainer"), ("user.email", "maintainer@example.org")):
        git(folder, "config", name, value)
    for name in (*COMMAND.PLACES, "CHANGELOG.md", str(LIST.relative_to(ROOT))):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    git(folder, "commit", "--quiet", "--all", "--allow-empty", "--message", "as it is here")
    return folder


def test_tags_are_made_where_the_releases_are_recorded_and_only_once(clone: Path) -> None:
    made = COMMAND.tags(clone)
    assert made == [f"v{release.version}" for release in releases()]
    for release in releases():
        assert git(clone, "cat-file", "-t", f"v{release.version}") == "tag", "annotated"
        assert git(clone, "rev-parse", f"v{release.version}^{{commit}}") == release.commit
    assert COMMAND.tags(clone) == []


def test_a_tag_at_another_commit_is_refused_and_none_is_made(clone: Path) -> None:
    newest = f"v{releases()[-1].version}"
    git(clone, "tag", newest, "HEAD")
    with pytest.raises(COMMAND.RefusedError, match=f"{newest} is at"):
        COMMAND.tags(clone)
    assert git(clone, "tag", "--list") == newest


def test_a_release_is_cut_recorded_and_tagged(clone: Path) -> None:
    path = clone / "CHANGELOG.md"
    path.write_text(
        path.read_text().replace("\n## [Unreleased]\n", "\n## [Unreleased]\n\n### Fixed\n\n* A fault.\n", 1)
    )
    COMMAND.cut(clone, "99.0.0", DAY)
    assert COMMAND.version_of(clone) == "99.0.0"
    changed = set(git(clone, "diff", "--name-only").split())
    assert changed == {*COMMAND.PLACES, "CHANGELOG.md"}
    old = COMMAND.version_of(ROOT)
    removed = [line for line in git(clone, "diff", "--unified=0").splitlines() if line.startswith("-") and old in line]
    assert len(removed) == sum(times for _, times in COMMAND.PLACES.values()), "every place, and no other package's"
    with pytest.raises(COMMAND.RefusedError, match="commit first"):
        COMMAND.record(clone)

    git(clone, "commit", "--quiet", "--all", "--message", "release 99.0.0")
    assert COMMAND.record(clone) == "99.0.0"
    newest = tomllib.loads((clone / LIST.relative_to(ROOT)).read_text())["release"][-1]
    assert newest["version"] == "99.0.0" and newest["commit"] == git(clone, "rev-parse", "HEAD")
    assert COMMAND.tags(clone)[-1] == "v99.0.0"
    assert "* A fault." in COMMAND.notes(clone, "v99.0.0")
    with pytest.raises(COMMAND.RefusedError, match=r"not the tag of 99\.0\.0"):
        COMMAND.notes(clone, "v98.0.0")

    git(clone, "commit", "--quiet", "--all", "--message", "record 99.0.0")
    with pytest.raises(COMMAND.RefusedError, match="is recorded"):
        COMMAND.record(clone)


def test_a_cut_dates_what_was_unreleased() -> None:
    cut = COMMAND.cut_changelog(changelog(CHANGED), "1.3.0", DAY)
    assert cut.startswith(
        "# Changelog\n\n## [Unreleased]\n\n## [1.3.0] - 2026-12-01\n\nSchema 0028.\n\n### Added\n\n* A thing"
    )
    assert cut.endswith("\n\n## [1.2.3] - 2026-11-23\n\nSchema 0019.\n\n* Old.\n")


def test_a_release_without_migrations_has_the_schema_of_the_last_one() -> None:
    cut = COMMAND.cut_changelog(changelog("### Fixed\n\n* A fault.\n"), "1.2.4", DAY)
    assert "## [1.2.4] - 2026-12-01\n\nSchema 0019.\n\n### Fixed" in cut


@pytest.mark.parametrize(
    ("unreleased", "version", "why"),
    [
        ("", "1.3.0", "no changes"),
        (CHANGED, "1.2.3", "not newer"),
        (CHANGED, "1.10", "no version"),
        (f"{CHANGED}\n### Upgrading\n\n* `x` is `y` now.\n", "1.2.4", "must not begin as"),
    ],
)
def test_a_cut_is_refused(unreleased: str, version: str, why: str) -> None:
    with pytest.raises(COMMAND.RefusedError, match=why):
        COMMAND.cut_changelog(changelog(unreleased), version, DAY)
