"""The TypeScript client: its operations are those of the API's document, and its own tests pass."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.client.wire import polite, provider
from tests.typescript.conftest import NEEDS_NPM, PACKAGE, blocks, npm, run, run_page

pytestmark = NEEDS_NPM
DOCUMENT = json.loads((PACKAGE.parents[1] / "openapi" / "palimpsest.json").read_text())
RENAMED = {"fork_session": "fork", "rewind_session": "rewind", "stream_session": "stream"}


def method_of(operation: str) -> str:
    first, *rest = RENAMED.get(operation, operation).split("_")
    return first + "".join(word.capitalize() for word in rest)


async def test_every_operation_has_one_method_that_sends_its_request(built: Path) -> None:
    found = json.loads(await run(built, "operations.js"))
    for path, methods in DOCUMENT["paths"].items():
        pattern = re.compile(re.sub(r"\\{\w+\\}", "(sid|first|second)", re.escape(path)))
        for verb, operation in methods.items():
            sent = [one.split(" ") for one in found.pop(method_of(operation["operationId"]))]
            assert [one for one in sent if one[0] == verb.upper() and pattern.fullmatch(one[1])], (operation, sent)
    assert set(found) == {"system", "tools", "user", "log", "results", "call", "turn"}


async def test_requests_are_retried_and_errors_are_typed(built: Path) -> None:
    await run(built, "wire.test.js")


@pytest.mark.wing("all")
async def test_sessions_log_what_happened(built: Path, server: str) -> None:
    await run(built, "session.test.js", PALIMPSEST_URL=server)


def test_a_program_that_misuses_a_request_does_not_compile(built: Path) -> None:
    """The compiler finds each line that is marked in `wrong.ts`, since an unused mark is an error too."""
    assert (PACKAGE / "tests" / "wrong.ts").read_text().count("@ts-expect-error") >= 5  # `built` has compiled it


IMPORTS = """
import * as aiSdk from "palimpsest-context-client/ai-sdk";
import * as mastra from "palimpsest-context-client/mastra";
import * as openclaw from "palimpsest-context-client/openclaw";
import * as opencode from "palimpsest-context-client/opencode";
import { Palimpsest } from "palimpsest-context-client";
export { aiSdk, mastra, openclaw, opencode };
export const turn = await new Palimpsest().session("s", { format: "openai" }).turn("Hello.");
"""


def test_its_declarations_need_only_the_default_libraries(built: Path, tmp_path: Path) -> None:
    """They are checked in a project with no packages but this one, and without `skipLibCheck`."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "palimpsest-context-client").symlink_to(PACKAGE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "agent.ts").write_text(IMPORTS)
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext")
    compiler = PACKAGE / "node_modules" / ".bin" / "tsc"
    done = subprocess.run([compiler, *options, "agent.ts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_is_formatted() -> None:
    npm("check")


def test_what_is_published_has_no_dependency_and_no_test() -> None:
    done = subprocess.run(["npm", "pack", "--dry-run", "--json", "--ignore-scripts"], cwd=PACKAGE, capture_output=True)
    (packed,) = json.loads(done.stdout)
    names = {one["path"] for one in packed["files"]}
    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts"} <= names
    beside = {"package.json", "openclaw.plugin.json", "README.md", "LICENSE"}
    assert all(name.startswith("dist/") or name in beside for name in names)
    package = json.loads((PACKAGE / "package.json").read_text())
    assert "dependencies" not in package
    assert {one[2:] for paths in package["exports"].values() for one in paths.values()} <= names
    assert {one[2:] for one in package["openclaw"]["extensions"]} <= names


README = (PACKAGE / "README.md").read_text()
BLOCKS = blocks(README)


@pytest.mark.wing("all")
async def test_its_readme_runs_as_printed(built: Path, server: str) -> None:
    async with provider(polite) as models:
        printed = await run_page(BLOCKS, PALIMPSEST_URL=server, **models.environment)
    assert "It is 80,087." in printed
    assert printed.count("Hello there.") == 4
    assert "the last event is" in printed


def test_the_ten_lines_that_name_us_are_ten() -> None:
    (block,) = [block for block in BLOCKS if "turn.results" in block]
    ours = [line for line in block.splitlines() if re.search(r"memory|turn|reply|palimpsest", line)]
    assert len(ours) <= 10, ours


def test_its_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (PACKAGE / target).exists(), target
