"""The client that openapi-python-client makes from the API's document parses each problem into its own model."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.generators.conftest import DOCUMENT

HERE = Path(__file__).parent
GENERATOR = HERE / ".venv" / "bin" / "openapi-python-client"

pytestmark = pytest.mark.generators


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a generated client that can be imported."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "config.yml").write_text("post_hooks: []\n")  # formatting is not needed
    places = ["--path", DOCUMENT, "--output-path", folder / "palimpsest_client", "--config", folder / "config.yml"]
    command = [GENERATOR, "generate", *places, "--meta", "none", "--fail-on-warning"]
    made = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def problems() -> list[Any]:
    """Return an example of every problem of every operation."""
    found = []
    for operations in json.loads(DOCUMENT.read_text())["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                examples = answer.get("content", {}).get("application/problem+json", {}).get("examples", {})
                found += [(operation, int(status), one["value"]) for one in examples.values()]
    return found


def test_every_problem_of_every_operation_is_parsed_into_its_own_model(package: Path) -> None:
    schemas = json.loads(DOCUMENT.read_text())["components"]["schemas"]
    names = {one["properties"]["type"]["const"]: name for name, one in schemas.items() if name.endswith("Problem")}
    client = importlib.import_module("palimpsest_client").Client(base_url="http://server")
    seen = problems()
    assert len(seen) > 500
    for operation, status, body in seen:
        tag = operation["tags"][0].lower().replace(" ", "_").replace("-", "_")
        module = importlib.import_module(f"palimpsest_client.api.{tag}.{operation['operationId']}")
        answer = httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json"})
        parsed = module._parse_response(client=client, response=answer)
        assert type(parsed).__name__ == names[body["type"]], (operation["operationId"], status)
        assert parsed.to_dict() == body


async def test_the_servers_problems_are_parsed(package: Path, server: str) -> None:
    made = importlib.import_module("palimpsest_client")
    models = importlib.import_module("palimpsest_client.models")
    append = importlib.import_module("palimpsest_client.api.events.append_events")
    body = models.EventsIn.from_dict({"events": [{"type": "user.message", "content": "Hello."}], "expected_head": 0})
    async with made.Client(base_url=server) as http:
        first = await append.asyncio("s", client=http, body=body)
        assert isinstance(first, models.AppendedOut), first
        again = await append.asyncio("s", client=http, body=body)
        assert isinstance(again, models.HeadConflictProblem), again
        assert again.head == first.head
        bad = await append.asyncio("a b", client=http, body=body)
        assert isinstance(bad, models.InvalidRequestProblem), bad


def test_a_typed_program_names_every_problem(package: Path) -> None:
    assert check_types(package, (HERE / "problems.py").read_text()) == ""


def test_a_problem_without_a_case_is_found(package: Path) -> None:
    fewer = (HERE / "problems.py").read_text().replace("TooSlowProblem() | ", "")
    assert "TooSlowProblem" in check_types(package, fewer)


def check_types(package: Path, program: str) -> str:
    """Return mypy's output for a program, empty without errors."""
    (package / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--config-file", "", "--cache-dir", str(package / ".mypy"), "program.py"],
        capture_output=True,
        text=True,
        cwd=package,
        timeout=600,
    )
    assert done.stderr == ""
    return done.stdout
