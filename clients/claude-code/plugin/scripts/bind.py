"""A hook before each call of the recall tool: add the session that Claude Code is in now to the tool's arguments."""

from __future__ import annotations

import json
import sys
from typing import Any

from recall import SESSION


def bind(event: dict[str, Any]) -> dict[str, Any]:
    """Return the hook's answer to an event; an agent's calls have a session of their own, as in the gateway."""
    session = ":".join(filter(None, (event["session_id"], event.get("agent_id"))))
    changed = {**event["tool_input"], SESSION: session}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": changed}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bind(json.load(sys.stdin))))
