"""The shell command that sends a request, for any contents."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.record.reading import curl_command

HOSTILE = st.text(max_size=40) | st.sampled_from(
    ["'", '"; rm -rf ~ #', "$(id)", "`id`", "!!", "\nEND_OF_REQUEST\nid\n", "\\", "é\x1b[0m\r\n", "{model}", "%00"]
)
FORMATS = st.sampled_from(["openai", "openai-responses", "anthropic", "gemini"])


@given(FORMATS, HOSTILE, HOSTILE)
def test_a_command_is_one_call_of_curl_with_the_request_on_one_line(form: str, model: str, text: str) -> None:
    command = curl_command(form, model, {"messages": [{"role": "user", "content": text}]})
    assert command is not None and command.isascii() and "!" not in command.split("\n", 1)[1]
    head, _, rest = command.partition("<<'END_OF_REQUEST'\n")
    assert shlex.split(head)[:2][0] == "curl" and shlex.split(head)[-2:] == ["--data-binary", "@-"]
    body, end = rest.splitlines()
    assert end == "END_OF_REQUEST" and json.loads(body)["messages"][0]["content"] == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a command `curl` that prints its last header and its input."""
    made = tmp_path_factory.mktemp("bin")
    fake = made / "curl"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$1"\ncat\n')
    fake.chmod(0o755)
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=FORMATS, model=HOSTILE, text=HOSTILE)
def test_a_shell_sends_exactly_the_request(folder: Path, form: str, model: str, text: str) -> None:
    command = curl_command(form, model, {"input": text})
    assert command is not None
    environment = {"PATH": f"{folder}{os.pathsep}/usr/bin:/bin", "OPENAI_API_KEY": "k"}
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, env=environment, check=True)
    address, body = done.stdout.splitlines()
    assert done.stderr == "" and address.startswith("https://")
    assert json.loads(body)["input"] == text


@pytest.mark.parametrize(
    ("form", "fields"),
    [("openai", {"model"}), ("openai-responses", {"model"}), ("anthropic", {"model", "max_tokens"}), ("gemini", set())],
)
def test_a_body_has_the_fields_that_the_provider_requires(form: str, fields: set[str]) -> None:
    command = curl_command(form, None, {})
    assert command is not None
    body: dict[str, Any] = json.loads(command.splitlines()[-2])
    assert body.keys() == fields


def test_the_neutral_format_has_no_command() -> None:
    assert curl_command("blocks", None, {}) is None
