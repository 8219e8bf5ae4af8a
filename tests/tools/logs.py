"""Builders of lines of coding agents' logs."""

import json


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def log_line(type: str, content: object, **more: object) -> dict[str, object]:
    message = {"role": type, "content": content} | ({"id": more.pop("key")} if "key" in more else {})
    return {"type": type, "message": message, **more}


def use(id: str) -> dict[str, object]:
    return {"type": "tool_use", "id": id, "name": "Read", "input": {}}


def result(id: str, content: str = "ok") -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}
