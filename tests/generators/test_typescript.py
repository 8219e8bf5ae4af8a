"""The types that openapi-typescript makes from the API's document: problems are a union discriminated by type."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.generators.conftest import DOCUMENT

HERE = Path(__file__).parent
TOOLS = HERE / "node_modules" / ".bin"
OPTIONS = ("--default-non-nullable=false",)  # fields with a default may be left out of a body

pytestmark = [
    pytest.mark.generators,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: no types for TypeScript are made"),
]


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the types and the program."""
    folder = tmp_path_factory.mktemp("typescript")
    made = run(TOOLS / "openapi-typescript", DOCUMENT, "--output", folder / "api.d.ts", *OPTIONS)
    assert made.returncode == 0, made.stderr
    assert "warn" not in (made.stdout + made.stderr).lower(), made.stdout + made.stderr
    shutil.copy(HERE / "problems.ts", folder)
    return folder


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=300)


def compile_program(folder: Path, name: str) -> str:
    """Return the compiler's output, empty without errors."""
    options = (
        "--noEmit",
        "--strict",
        "--noUncheckedIndexedAccess",
        "--exactOptionalPropertyTypes",
        "--target",
        "es2022",
    )
    done = run(TOOLS / "tsc", *options, folder / name)
    assert (done.returncode == 0) is (done.stdout == "")
    return done.stdout


def test_a_strict_program_names_every_problem_and_no_unknown_field(types: Path) -> None:
    assert compile_program(types, "problems.ts") == ""


def test_a_problem_without_a_case_does_not_compile(types: Path) -> None:
    whole = (types / "problems.ts").read_text()
    (types / "fewer.ts").write_text(whole.replace('        case "/problems/too-slow":\n', ""))
    assert "TooSlowProblem" in compile_program(types, "fewer.ts") or "too-slow" in compile_program(types, "fewer.ts")
