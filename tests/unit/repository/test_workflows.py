"""Workflows are pinned and have only the permissions that they need; `make test-more NAME=workflows` lints them."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.releases import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"^\s*(?:- )?uses: (\S+)(.*)$", re.MULTILINE)
PINNED = re.compile(r"([\w-]+/[\w-]+)@([0-9a-f]{40})")
WRITES = {
    ("release.yml", "pypi"): {"id-token"},
    ("release.yml", "npm"): {"id-token"},
    ("release.yml", "image"): {"packages", "id-token", "attestations"},
    ("release.yml", "release"): {"contents"},
    ("release.yml", "site"): {"contents"},
}
"""The permissions to write that jobs have; all others only read."""


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def test_an_action_is_pinned_to_one_commit_whose_version_is_named() -> None:
    pins: dict[str, set[tuple[str, str]]] = {}
    for file in FILES:
        for used, comment in USES.findall(file.read_text(encoding="utf-8")):
            if used.startswith("./"):
                continue
            pinned = PINNED.fullmatch(used)
            assert pinned and re.fullmatch(r" # v\d+\.\d+\.\d+", comment), (file.name, used, comment)
            pins.setdefault(pinned[1], set()).add((pinned[2], comment))
    assert len(pins) > 5
    assert [name for name, found in pins.items() if len(found) > 1] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_job_has_an_end_and_its_own_permissions(file: Any) -> None:
    found = workflow(file.name)
    assert found["permissions"] == {} and found["concurrency"]
    for name, job in found["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 150, name
        allowed = {key for key, value in job["permissions"].items() if value == "write"}
        assert allowed == WRITES.get((file.name, name), set()), name
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_what_is_published_was_tested_and_built_before() -> None:
    jobs = workflow("release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert jobs["pypi"]["needs"] == jobs["npm"]["needs"] == ["test", "build"]
    assert jobs["image"]["needs"] == ["test"]
    assert jobs["release"]["needs"] == ["pypi", "npm", "image"]
    assert jobs["site"]["needs"] == ["release"]


def test_the_matrix_has_each_python_and_each_postgres_that_is_supported() -> None:
    matrix = workflow("ci.yml")["jobs"]["anywhere"]["strategy"]["matrix"]
    pairs = {(python, postgres) for python in matrix["python"] for postgres in matrix["postgres"]}
    pairs |= {(one["python"], one["postgres"]) for one in matrix["include"]}
    assert {python for python, _ in pairs} == {"3.11", "3.12", "3.13", "3.14"}
    assert {postgres for _, postgres in pairs} == {"15", "16", "17", "18"}
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert oldest == f">={min(matrix['python'])}"
