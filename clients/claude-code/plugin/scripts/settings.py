"""Additions to a project's settings, and their removal: pure functions over the bytes of the file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

ADDRESS = "ANTHROPIC_BASE_URL"
WINDOW = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
GATEWAY = "/gateway/anthropic"


class Change(NamedTuple):
    """A changed file: its bytes before (None if it did not exist) and after, and the variables that were added."""

    before: bytes | None
    after: bytes
    added: dict[str, str]


def variables_of(server: str, upstream: str) -> dict[str, str]:
    """Return the variables that send Claude Code's calls to a server whose gateway forwards to `upstream`."""
    host = urlsplit(upstream).hostname or ""
    variables = {ADDRESS: server + GATEWAY}
    if host == "anthropic.com" or host.endswith(".anthropic.com"):  # otherwise the larger window does not exist there
        variables[WINDOW] = "1"
    return variables


def conflict_of(settings: Mapping[str, Any], variables: Mapping[str, str]) -> str | None:
    """Return the name of a variable that settings set already, to whatever value."""
    own = settings.get("env")
    return next((name for name in variables if isinstance(own, dict) and name in own), None)


def add(before: bytes | None, variables: Mapping[str, str]) -> Change:
    """Return the settings with variables added; none of them is in the file yet."""
    settings = parse(before)
    settings["env"] = {**settings.get("env", {}), **variables}
    return Change(before, _bytes(settings), dict(variables))


def remove(change: Change, now: bytes | None) -> bytes | None:
    """Return the file without the additions; None if it is to be deleted.

    A file that nobody has edited since becomes byte for byte what it was. Of an edited one, only additions that still
    have their value are removed.
    """
    if now is None or now == change.after:
        return change.before if now is not None else None
    settings = parse(now)
    env = settings.get("env")
    if isinstance(env, dict):
        left = {name: value for name, value in env.items() if change.added.get(name) != value}
        had_env = "env" in parse(change.before)
        settings["env"] = left
        if not left and not had_env:
            del settings["env"]
    if settings == parse(change.before):
        return change.before
    return _bytes(settings)


def parse(content: bytes | None) -> dict[str, Any]:
    """Return the settings in a file; raise ValueError if they are no object, or `env` of them is none."""
    settings = json.loads(content.decode("utf-8-sig")) if content and content.strip() else {}
    if not isinstance(settings, dict) or not isinstance(settings.get("env", {}), dict):
        raise ValueError("not an object")
    return settings


def dump(change: Change, folders: list[str]) -> bytes:
    """Return the record of a change, and of the folders that were created for it."""
    before = None if change.before is None else base64.b64encode(change.before).decode()
    after = base64.b64encode(change.after).decode()
    return _bytes({"before": before, "after": after, "added": change.added, "folders": folders})


def load(record: bytes) -> tuple[Change, list[str]]:
    """Return the change and the folders of a record."""
    told = json.loads(record)
    before = None if told["before"] is None else base64.b64decode(told["before"])
    return Change(before, base64.b64decode(told["after"]), told["added"]), told["folders"]


def _bytes(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
