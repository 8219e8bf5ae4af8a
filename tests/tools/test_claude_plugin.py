"""The Claude Code plugin: its scripts run as Claude Code runs them, against a server on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

PLUGIN = Path(__file__).parents[2] / "clients" / "claude-code" / "plugin"
UPSTREAM = "https://api.anthropic.com"
SETTINGS = b'{"permissions":   {"allow": ["Bash(ls)"]}}'


class _Server(ThreadingHTTPServer):
    paths: list[tuple[str, bytes]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({"upstreams": {"anthropic": UPSTREAM}, "calls": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append((self.path, body))
        self._answer({"jsonrpc": "2.0", "id": 1, "result": {}})

    def _answer(self, document: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


@pytest.fixture
def server() -> Iterator[_Server]:
    found = _Server(("127.0.0.1", 0), _Handler)
    found.paths = []
    thread = Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path / "project"


def _run(script: str, *arguments: str, project: Path, url: str, given: str = "", **more: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(project.parent / "home"), "PALIMPSEST_URL": url, **more}
    command = [sys.executable, "-B", str(PLUGIN / "scripts" / script), *arguments]
    found = subprocess.run(command, cwd=project, env=environment, input=given, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def _settings(project: Path) -> Path:
    return project / ".claude" / "settings.local.json"


@pytest.mark.parametrize("before", [SETTINGS, b'{"env": {"A": "1"}}\r\n', b"", None])
def test_settings_are_byte_for_byte_what_they_were(project: Path, server: _Server, before: bytes | None) -> None:
    if before is not None:
        _settings(project).parent.mkdir()
        _settings(project).write_bytes(before)
    assert "is installed" in _run("project.py", "install", project=project, url=server.url)
    env = json.loads(_settings(project).read_bytes())["env"]
    assert env["ANTHROPIC_BASE_URL"] == f"{server.url}/gateway/anthropic"
    assert env["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] == "1"
    assert "already" in _run("project.py", "install", project=project, url=server.url)
    assert "what it was before" in _run("project.py", "uninstall", project=project, url=server.url)
    assert [*project.rglob("*")] == ([] if before is None else [_settings(project).parent, _settings(project)])
    assert before is None or _settings(project).read_bytes() == before


def test_later_edits_of_the_user_are_kept(project: Path, server: _Server) -> None:
    _settings(project).parent.mkdir()
    _settings(project).write_bytes(SETTINGS)
    _run("project.py", "install", project=project, url=server.url)
    edited = json.loads(_settings(project).read_bytes())
    edited["env"] |= {"MINE": "1", "ANTHROPIC_BASE_URL": "https://mine.example"}
    _settings(project).write_text(json.dumps(edited))
    assert "Changed or removed since" in _run("project.py", "status", project=project, url=server.url)
    _run("project.py", "uninstall", project=project, url=server.url)
    left = json.loads(_settings(project).read_bytes())
    assert left == {**json.loads(SETTINGS), "env": {"ANTHROPIC_BASE_URL": "https://mine.example", "MINE": "1"}}


@pytest.mark.parametrize("place", ["project/.claude/settings.local.json", "home/.claude/settings.json"])
def test_a_setting_of_the_user_is_never_overridden(project: Path, server: _Server, place: str) -> None:
    file = project.parent / place
    file.parent.mkdir()
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://mine.example"}}')
    before = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    said = _run("project.py", "install", project=project, url=server.url)
    assert "sets ANTHROPIC_BASE_URL" in said and "Nothing was changed" in said
    assert {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()} == before


def test_a_server_that_does_not_answer_is_named_and_nothing_is_changed(project: Path, server: _Server) -> None:
    nowhere = "http://127.0.0.1:9"
    assert "No Palimpsest server answers" in _run("project.py", "install", project=project, url=nowhere)
    assert [*project.rglob("*")] == [] and _run("project.py", "greet", project=project, url=nowhere) == ""
    _run("project.py", "install", project=project, url=server.url)
    assert _run("project.py", "greet", project=project, url=server.url) == ""
    assert nowhere in json.loads(_run("project.py", "greet", project=project, url=nowhere))["systemMessage"]
    assert "what it was before" in _run("project.py", "uninstall", project=project, url=nowhere)


def test_recall_is_bound_to_the_session_that_claude_code_is_in_now(project: Path, server: _Server) -> None:
    event = {"session_id": "s-2", "agent_id": "a", "tool_input": {"query": "q"}}
    answer = json.loads(_run("bind.py", project=project, url=server.url, given=json.dumps(event)))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    bound = {**call, "params": {"name": "recall", "arguments": answer["hookSpecificOutput"]["updatedInput"]}}
    listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    given = f"{json.dumps(listed)}\n{json.dumps(bound)}\n"
    said = _run("recall.py", project=project, url=server.url, given=given, CLAUDE_CODE_SESSION_ID="s-1")
    assert len(said.splitlines()) == 2
    (first, _), (second, body) = server.paths
    assert (first, second) == ("/mcp/s/s-1", "/mcp/s/s-2%3Aa")
    assert json.loads(body)["params"]["arguments"] == {"query": "q"}


def test_recall_without_a_server_is_an_error_of_the_tool_alone(project: Path) -> None:
    given = '{"jsonrpc": "2.0", "id": 7, "method": "initialize"}\n{"jsonrpc": "2.0", "method": "notifications/x"}\n'
    said = _run("recall.py", project=project, url="http://127.0.0.1:9", given=given)
    answer = json.loads(said)
    assert answer["id"] == 7 and "cannot be asked" in answer["error"]["message"]
