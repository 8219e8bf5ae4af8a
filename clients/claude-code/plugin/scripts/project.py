"""Commands of the plugin for one project: install, status, uninstall, and the greeting of a session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import server
import settings

START = "start it with: PALIMPSEST_GATEWAY_ANTHROPIC_URL=https://api.anthropic.com palimpsest serve"


class Refusal(Exception):
    """A reason to change nothing, for the user."""


def install(project: Path) -> Iterator[str]:
    """Add the gateway's variables to the project's local settings, unless the user has settings of their own."""
    file, record = _file(project), _record(project)
    if record.exists():
        raise Refusal("Palimpsest is installed in this project already; /palimpsest:status says whether it works.")
    variables = settings.variables_of(server.address_of(os.environ), _upstream())
    for path in (*_others(project), file):
        name = settings.conflict_of(_parsed(path), variables)
        if name is not None:
            raise Refusal(f"{path} sets {name}, which stays as it is. Nothing was changed.")
    used = os.environ.get(settings.ADDRESS)
    if used is not None and used.rstrip("/") != variables[settings.ADDRESS]:
        raise Refusal(f"{settings.ADDRESS} is {used} in your environment, which stays as it is. Nothing was changed.")
    if server.key_of(os.environ) is not None and server.sent_key(os.environ) is None:
        text = f'set ANTHROPIC_CUSTOM_HEADERS="{server.KEY_HEADER}: …" to the key of the server'
        raise Refusal(f"Claude Code does not send the server's key: {text}. Nothing was changed.")
    folders = [] if file.parent.exists() else [file.parent.name]
    change = settings.add(_read(file), variables)
    file.parent.mkdir(exist_ok=True)
    _write(record, settings.dump(change, folders))  # first, so that whatever happens next can be undone
    _write(file, change.after)
    yield f"Palimpsest is installed in this project: {' and '.join(variables)} added to {file}."
    yield "Start Claude Code again here to use it. /palimpsest:uninstall restores the file."
    yield f"Sessions: {server.address_of(os.environ)}/ui/"


def status(project: Path) -> Iterator[str]:
    """Yield whether the project uses a server, and whether that works."""
    record, address = _record(project), server.address_of(os.environ)
    if record.exists():
        change, _ = settings.load(record.read_bytes())
        missing = [name for name, value in change.added.items() if _env(project).get(name) != value]
        yield f"Installed in this project: {', '.join(change.added)} in {_file(project)}."
        if missing:
            yield f"Changed or removed since: {', '.join(missing)}."
    else:
        yield "Not installed in this project; /palimpsest:install does that."
    used = os.environ.get(settings.ADDRESS, "").rstrip("/").endswith(settings.GATEWAY)
    yield "This session goes through the gateway." if used else "This session does not go through the gateway."
    yield f"The server at {address} forwards to {_upstream()}."
    session = os.environ.get("CLAUDE_CODE_SESSION_ID")
    if session is not None:
        yield f"Recall reads session {session}: {address}/ui/sessions/{session}"


def uninstall(project: Path) -> Iterator[str]:
    """Restore the project's local settings."""
    file, record = _file(project), _record(project)
    if not record.exists():
        yield "Palimpsest is not installed in this project. Nothing was changed."
        return
    change, folders = settings.load(record.read_bytes())
    content = settings.remove(change, _read(file))
    if content is not None:
        _write(file, content)
    elif file.exists():
        file.unlink()
    record.unlink()
    if folders and not any(file.parent.iterdir()):
        file.parent.rmdir()
    restored = content == change.before
    yield f"{file} is {'what it was before' if restored else 'without the additions; your later edits are kept'}."
    yield "Start Claude Code again here: this session still has the old address."


def greet(project: Path) -> Iterator[str]:
    """Yield a message for the user if the project's server does not work."""
    if not _record(project).exists():
        return
    try:
        _upstream()
    except Refusal as error:
        text = f"{error} Until then, calls of this project fail; /palimpsest:uninstall and a restart do without."
        yield json.dumps({"systemMessage": text}, ensure_ascii=False)


def _upstream() -> str:
    address = server.address_of(os.environ)
    try:
        upstreams: dict[str, str] = server.gateway()["upstreams"]
    except HTTPError as error:
        hint = " Set PALIMPSEST_API_KEY to its key." if error.code in (401, 403) else ""
        raise Refusal(f"The server at {address} answers with status {error.code}.{hint}") from None
    except (OSError, ValueError, KeyError):
        raise Refusal(f"No Palimpsest server answers at {address}: {START}") from None
    if "anthropic" not in upstreams:
        raise Refusal(f"The gateway of the server at {address} does not forward to Anthropic: {START}")
    return upstreams["anthropic"]


def _others(project: Path) -> list[Path]:
    """Return the files whose settings the local ones of the project would override."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    return [home / "settings.json", project / ".claude" / "settings.json"]


def _file(project: Path) -> Path:
    return project / ".claude" / "settings.local.json"


def _record(project: Path) -> Path:
    return project / ".claude" / "palimpsest.local.json"


def _env(project: Path) -> dict[str, str]:
    env: dict[str, str] = _parsed(_file(project)).get("env", {})
    return env


def _parsed(path: Path) -> dict[str, object]:
    try:
        return settings.parse(_read(path))
    except ValueError:
        raise Refusal(f"{path} is not valid JSON for settings: repair it first. Nothing was changed.") from None


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _write(path: Path, content: bytes) -> None:
    """Replace a file's content as a whole, and keep its permissions and its links."""
    path = path.resolve()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    if path.exists():
        scratch.chmod(path.stat().st_mode & 0o7777)
    scratch.replace(path)


COMMANDS = {"install": install, "status": status, "uninstall": uninstall, "greet": greet}


def main() -> None:
    """Run a command for the project of this process; status 0, since its lines are for the user in any case."""
    project = Path(os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd())
    try:
        for line in COMMANDS[sys.argv[1]](project):
            sys.stdout.write(f"{line}\n")
    except Refusal as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    main()
