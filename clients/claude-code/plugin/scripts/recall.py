"""Forward Claude Code's MCP messages (lines of standard input) to the server, bound to the session of this process."""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.parse import quote

from server import address_of, ask

UNREACHABLE = -32000
SESSION = "palimpsest_session"
"""An argument that bind.py adds: a session that is resumed keeps its id, but this process was started with another."""


def forward(line: bytes, session: str | None) -> bytes | None:
    """Return the server's answer to one message; None if it needs none."""
    message: dict[str, Any] = json.loads(line)
    given = message.get("params", {}).get("arguments", {}) if message.get("method") == "tools/call" else {}
    if isinstance(given, dict) and SESSION in given:
        session = given.pop(SESSION)
        line = json.dumps(message).encode()
    path = "/mcp/" if session is None else f"/mcp/s/{quote(session, safe='')}"
    try:
        answer = ask(path, line)
    except OSError as error:
        text = f"Palimpsest at {address_of(os.environ)} cannot be asked: {error}"
        wrong = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": UNREACHABLE, "message": text}}
        answer = json.dumps(wrong).encode()
    return answer.replace(b"\n", b" ") if "id" in message else None


def main() -> None:
    """Answer until standard input ends."""
    session = os.environ.get("CLAUDE_CODE_SESSION_ID")
    for line in sys.stdin.buffer:
        if line.strip() and (answer := forward(line, session)):
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
