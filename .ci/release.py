"""Make a release, in the steps that CONTRIBUTING.md describes.

python .ci/release.py cut VERSION    write the version everywhere, and end the changelog's Unreleased with today's date
python .ci/release.py record         add the commit that HEAD is to tests/migration/releases.toml
python .ci/release.py tags           tag the recorded releases that have no tag yet
python .ci/release.py notes TAG      print the changelog's section of this version, if TAG is its tag
"""

import datetime
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CODE: Final = 'VERSION = "{}"'
PACKAGE: Final = '"version": "{}"'
PLACES: Final = {
    "app/version.py": (CODE, 1),
    "clients/python/palimpsest/_version.py": (CODE, 1),
    "tools/palimpsest_tools/__init__.py": (CODE, 1),
    "clients/typescript/src/version.ts": (CODE, 1),
    "clients/typescript/package.json": (PACKAGE, 1),
    "clients/typescript/package-lock.json": (PACKAGE, 2),
    "deploy/kubernetes/kustomization.yaml": ("newTag: {}", 1),
}
"""Files that have the version, its form there and how often: each distribution is built from its own folder alone."""

RELEASES: Final = Path("tests/migration/releases.toml")
UNRELEASED: Final = "\n## [Unreleased]\n"
SECTION: Final = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - .*\n\n(Schema (\d{4})\.)", re.MULTILINE)
ENTRY: Final = '\n[[release]]\nversion = "{}"\ncommit = "{}"\nschema = "{}"\n'


class RefusedError(Exception):
    """A release that cannot be made, and why."""


def git(root: Path, *arguments: str) -> str:
    """Return the output of a git command. Raises RefusedError with its complaint."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607 - the git of the PATH
    if done.returncode:
        raise RefusedError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def number(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise RefusedError(f"{version} is no version: three numbers, as in 0.4.0")
    return tuple(map(int, version.split(".")))


def version_of(root: Path) -> str:
    """Return the version of the working tree."""
    return str(re.findall(CODE.format("(.*)"), (root / "app/version.py").read_text(encoding="utf-8"))[0])


def cut(root: Path, version: str, today: datetime.date) -> None:
    """Write a version into all files that have it, and end Unreleased. Refuses before anything is written."""
    changelog = cut_changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"), version, today)
    written = {"CHANGELOG.md": changelog}
    old = version_of(root)
    for name, (form, times) in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        if form.format(old) not in text:
            raise RefusedError(f"{name} does not have the version {old}")
        written[name] = text.replace(form.format(old), form.format(version), times)
    for name, text in written.items():
        (root / name).write_text(text, encoding="utf-8")


def cut_changelog(text: str, version: str, today: datetime.date) -> str:
    """Return a changelog whose Unreleased became a version, with the schema in its first line."""
    before, found, rest = text.partition(UNRELEASED)
    unreleased, _, older = rest.partition("\n## [")
    [(last, _, schema), *_] = SECTION.findall("## [" + older)
    if not found or not re.search(r"^\* ", unreleased, re.MULTILINE):
        raise RefusedError("Unreleased of CHANGELOG.md has no changes")
    if number(version) <= number(last):
        raise RefusedError(f"{version} is not newer than {last}")
    if "\n### Upgrading\n" in unreleased and number(version)[:2] == number(last)[:2]:
        raise RefusedError(f"Unreleased asks something of users (Upgrading), so the version must not begin as {last}")
    body = unreleased.strip("\n")
    if not body.startswith("Schema "):
        body = f"Schema {schema}.\n\n{body}"
    return f"{before}{UNRELEASED}\n## [{version}] - {today.isoformat()}\n\n{body}\n\n## [{older}"


def record(root: Path) -> str:
    """Add HEAD to the recorded releases, and return its version. The files of HEAD must be those of a release."""
    if git(root, "status", "--porcelain"):
        raise RefusedError("commit first: the recorded commit is HEAD")
    version, head = version_of(root), git(root, "rev-parse", "HEAD")
    text = (root / RELEASES).read_text(encoding="utf-8")
    if version in {one["version"] for one in tomllib.loads(text)["release"]}:
        raise RefusedError(f"{version} is recorded: cut the next version first")
    schemas = {found[0]: found[2] for found in SECTION.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))}
    if version not in schemas:
        raise RefusedError(f"CHANGELOG.md has no section of {version}")
    (root / RELEASES).write_text(text + ENTRY.format(version, head, schemas[version]), encoding="utf-8")
    return version


def tags(root: Path) -> list[str]:
    """Tag each recorded release that has no tag, and return the new tags. A tag at another commit is refused."""
    releases = tomllib.loads((root / RELEASES).read_text(encoding="utf-8"))["release"]
    known = set(git(root, "tag", "--list", "v*").split())
    for one in releases:
        git(root, "cat-file", "-e", f"{one['commit']}^{{commit}}")
        if (tag := f"v{one['version']}") in known:
            commit = git(root, "rev-parse", f"{tag}^{{commit}}")
            if commit != one["commit"]:
                raise RefusedError(f"{tag} is at {commit}, and {RELEASES} has {one['commit']}")
    missing = [one for one in releases if f"v{one['version']}" not in known]
    for one in missing:
        git(root, "tag", "--annotate", f"v{one['version']}", "--message", f"Palimpsest {one['version']}", one["commit"])
    return [f"v{one['version']}" for one in missing]


def notes(root: Path, tag: str) -> str:
    """Return the changelog's section of the version of the working tree, whose tag this must be."""
    version = version_of(root)
    if tag != f"v{version}":
        raise RefusedError(f"{tag} is not the tag of {version}")
    typescript = json.loads((root / "clients/typescript/package.json").read_text(encoding="utf-8"))["version"]
    if typescript != version:
        raise RefusedError(f"the TypeScript client has the version {typescript}")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## [{version}] - ")[2].partition("\n## [")[0]
    if not section:
        raise RefusedError(f"CHANGELOG.md has no section of {version}")
    return section.partition("\n")[2].strip() + "\n"


def main(arguments: Sequence[str], root: Path = Path(__file__).parent.parent) -> int | str:
    """Run a command; return its exit code or its error."""
    try:
        match arguments:
            case ["cut", version]:
                cut(root, version, datetime.date.today())
                sys.stdout.write(f"{version} is in all files; next: make openapi\n")
            case ["record"]:
                sys.stdout.write(f"{record(root)} is recorded; commit {RELEASES}\n")
            case ["tags"]:
                sys.stdout.writelines(f"{tag}\n" for tag in tags(root))
            case ["notes", tag]:
                sys.stdout.write(notes(root, tag))
            case _:
                return __doc__ or ""
    except RefusedError as error:
        return f"refused: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
