"""The lock files agree: a server's environment extended by the development tools keeps its pinned versions."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[3] / "requirements"


def pins(name: str) -> set[str]:
    """Return the pinned versions of a lock file, with their markers."""
    text = (REQUIREMENTS / f"{name}.lock").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w.\[\]-]+==[^\\\n]*?)\s*\\?$", text, re.MULTILINE))


def test_the_development_environment_extends_that_of_a_server() -> None:
    assert len(pins("runtime")) > 50
    assert {pin.split(" ;")[0] for pin in pins("runtime")} <= {pin.split(" ;")[0] for pin in pins("dev")}


def test_the_package_is_built_with_one_version() -> None:
    assert len(pins("build")) == 1
    assert pins("build") <= pins("dev")


def test_a_server_needs_no_tools_of_development() -> None:
    names = {pin.split("==")[0] for pin in pins("runtime")}
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "httpx", "setuptools", "kubernetes-validate"}


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_a_lock_is_installed_without_resolving(file: str) -> None:
    """Locks are not resolved: the pip of Python 3.11 takes the newest release of requirements with extras."""
    lines = [line for line in (REQUIREMENTS.parent / file).read_text().splitlines() if "--require-hashes" in line]
    assert lines
    assert [line for line in lines if "--no-deps" not in line] == []
