"""The server that the tools use, and the commands that `palimpsest` finds."""

import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import httpx2
import pytest
from palimpsest import AsyncPalimpsest
from typer.testing import CliRunner

from app.cli import main as cli
from palimpsest_tools.server import PatientClient, address

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "HOST", "PORT", "API_KEY", "API_KEY_FILE"):
        monkeypatch.delenv(f"PALIMPSEST_{name}", raising=False)


@pytest.mark.parametrize(
    ("given", "url", "named"),
    [
        ({}, "http://127.0.0.1:8700", False),
        ({"HOST": "0.0.0.0", "PORT": "81"}, "http://127.0.0.1:81", False),
        ({"HOST": "::"}, "http://[::1]:8700", False),
        ({"HOST": "10.0.0.7"}, "http://10.0.0.7:8700", False),
        ({"HOST": "0.0.0.0", "URL": "https://context.example"}, "https://context.example", True),
    ],
)
def test_the_server_is_where_it_listens_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], url: str, named: bool
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"PALIMPSEST_{name}", value)
    found = address(None, None)
    assert (found.url, found.named, found.key) == (url, named, None)
    assert address("http://other", "pal_key").url == "http://other"


def test_the_key_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("pal_from_a_file\n", encoding="utf-8")
    monkeypatch.setenv("PALIMPSEST_API_KEY_FILE", str(file))
    assert address(None, None).key == "pal_from_a_file"
    assert address(None, "pal_given").key == "pal_given"


async def test_a_request_that_is_too_early_is_repeated_until_it_is_taken() -> None:
    answers = [httpx2.Response(429, headers={"retry-after": "0"})] * 5
    answers.append(httpx2.Response(200, json={"service": "palimpsest"}))
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return answers[len(asked) - 1]

    http = PatientClient(transport=httpx2.MockTransport(answer))
    async with AsyncPalimpsest(base_url="http://wire", http_client=http, max_retries=0) as client:
        assert await client.healthz() == {"service": "palimpsest"}
    assert len(asked) == 6


def test_the_commands_are_listed_with_those_of_the_server() -> None:
    help = CliRunner().invoke(cli.app, ["--help"]).output
    assert all(f" {name} " in help for name in ("serve", "replay", "explain", "verify", "import", "export"))


def test_a_help_imports_neither_the_tools_nor_what_only_a_running_server_needs() -> None:
    program = "import sys; from app.cli.main import app; app(['serve', '--help'], standalone_mode=False)"
    needless = ["httpx2", "fastapi", "asyncpg"]
    told = f"{program}; print([one for one in sys.modules if one.startswith('palimpsest') or one in {needless}])"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_is_not_installed_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda **_: EntryPoints())
    done = CliRunner().invoke(cli.app, ["replay", "x.json"])
    assert (done.exit_code, done.output) == (
        1,
        "palimpsest: replay is not installed: it is in palimpsest-context-tools"
        " (in a clone: .venv/bin/palimpsest replay)\n",
    )
    assert "The extra `tools` of palimpsest-context adds bench, calls" in CliRunner().invoke(cli.app, ["--help"]).output
    assert CliRunner().invoke(cli.app, ["no-such-command"]).exit_code == 2
