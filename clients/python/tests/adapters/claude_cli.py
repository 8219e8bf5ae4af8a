#!/usr/bin/env python3
"""A stand-in for the `claude` program: it speaks the SDK's protocol, writes its transcript, and counts its entries."""

import json
import os
import re
import sys
import uuid
from pathlib import Path

Json = dict[str, object]
arguments = dict(one.removeprefix("--").partition("=")[::2] for one in sys.argv if one.startswith("--"))
session = arguments.get("resume") or arguments.get("session-id") or str(uuid.uuid4())
project = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / re.sub("[^a-zA-Z0-9]", "-", str(Path.cwd()))
transcript = project / f"{session}.jsonl"
last: str | None = None


def say(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def write(*entries: Json) -> None:
    """Write entries of the transcript, as the program does, and mirror them."""
    transcript.parent.mkdir(parents=True, exist_ok=True)
    with transcript.open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in entries)
    if "session-mirror" in arguments:
        say({"type": "transcript_mirror", "filePath": str(transcript), "entries": list(entries)})


def entry(kind: str, content: object) -> Json:
    global last
    before, last = last, str(uuid.uuid4())
    about = {"type": kind, "uuid": last, "parentUuid": before, "sessionId": session, "isSidechain": False}
    return {**about, "message": {"role": kind, "content": content}}


def turn(prompt: str) -> None:
    before = transcript.read_text().splitlines() if transcript.exists() else []
    calls = [{"type": "tool_use", "id": f"call-{len(before)}-{n}", "name": "Look", "input": {"n": n}} for n in (1, 2)]
    write({"type": "mode", "mode": "normal"}, entry("user", prompt))
    write(*(entry("assistant", [call]) for call in calls))
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "nul \0 and \ud83d"} for call in calls]
    write(*(entry("user", [one]) for one in results))
    text = f"I remember {len(before)} entries."
    write(entry("assistant", [{"type": "text", "text": text}]))
    answer = {"role": "assistant", "model": "claude", "content": [{"type": "text", "text": text}]}
    say({"type": "assistant", "session_id": session, "parent_tool_use_id": None, "message": answer})
    ended = {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session}
    say({**ended, "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1})


for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "control_request":
        response = {"subtype": "success", "request_id": told["request_id"], "response": {}}
        say({"type": "control_response", "response": response})
        say({"type": "system", "subtype": "init", "session_id": session, "claude_code_version": "99.0.0"})
    elif told["type"] == "user":
        turn(told["message"]["content"])
