"""Claude Code's session logs as neutral sessions, with its compactions and the values that calls used."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.believed.downloads import UnknownData
from bench.cost.sessions import COUNTER
from bench.edits import strings
from bench.retention.points import MODIFYING, PATHS
from palimpsest_tools.recordings import agent_log
from palimpsest_tools.recordings.recording import AppendMessages, MalformedRecording, ModelCall, Recording

BYTES_MAX: Final = 4 * 2**20
CHARS_MIN: Final = 4
_VALUE: Final = re.compile(r"[A-Za-z0-9_./~@-]{4,}")
_NAME: Final = re.compile(r".+[A-Z]|.*[0-9/]|.+[_.-].")
"""A path, or a name with a capital letter, an underscore, a dot or a hyphen within it, or anything with a digit."""


def logs(folder: Path, bytes_max: int = BYTES_MAX) -> dict[str, str]:
    """Return for each session in a folder the text of one log: that with the most compactions, then the longest.

    Raises UnknownData for a folder without a session.
    """
    found: dict[str, tuple[int, int, str]] = {}
    for file in sorted(folder.rglob("*.jsonl")):
        if file.stat().st_size < bytes_max:
            text = file.read_text(encoding="utf-8", errors="replace")
            name = next(filter(None, (_entry(line).get("sessionId") for line in text.splitlines())), None)
            if name is not None:
                rank = (len(_compactions(text.splitlines())), len(text), text)
                found[name] = max(found.get(name, rank), rank)
    if not found:
        raise UnknownData(f"{folder} holds no session log of Claude Code (*.jsonl with a sessionId)")
    return {name: text for name, (_, _, text) in found.items()}


def neutral(name: str, text: str) -> dict[str, Any] | None:
    """Return the main conversation of a log as a neutral session; None without one."""
    lines = text.splitlines()
    recorded = _main(name, text)
    if recorded is None:
        return None
    messages, times, usage = _messages(recorded)
    compactions = []
    for number, entry in _compactions(lines):
        before = _main(name, "\n".join(lines[:number]))
        if before is not None:
            at = len(_messages(before)[0])
            compactions.append({"at": at, "summary": _text((entry.get("message") or {}).get("content"))})
    meta = {
        "ts": times,
        "usage": usage,
        "prefix_tokens_est": _prefix(messages, usage),
        "compactions": compactions,
        "grounding": list(grounding(messages)),
        "artifacts": {"modified": _modified(messages)},
    }
    return {"id": name, "system": None, "tools": None, "messages": messages, "meta": meta}


def grounding(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the values in the arguments of calls that an earlier message holds, as in `meta.grounding`."""
    texts = ["\n".join(strings([one.get("content"), _arguments(one)])) for one in messages]
    results = [one["role"] == "tool" for one in messages]
    first: dict[str, int | None] = {}
    upto: dict[str, int] = {}
    for index, message in enumerate(messages):
        for value in dict.fromkeys(_values(strings(_arguments(message)))):
            if first.get(value) is None:
                first[value] = next((at for at in range(upto.get(value, 0), index) if value in texts[at]), None)
                upto[value] = index
            begun = first[value]
            if begun is not None:
                holding = [at for at in range(begun, index) if value in texts[at]]
                kind = "tool" if all(results[at] for at in holding) else "any"
                yield {"i": index, "v": value, "first": begun, "last": holding[-1], "kind": kind}


def _values(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for found in _VALUE.findall(text):
            value = found.rstrip("./-~@").lstrip("-@")
            if len(value) >= CHARS_MIN and _NAME.match(value):
                yield value


def _entry(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _compactions(lines: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the lines that hold a compaction's summary, with their numbers from 0."""
    seen: dict[Any, tuple[int, dict[str, Any]]] = {}
    for number, line in enumerate(lines):
        if "isCompactSummary" in line:
            entry = _entry(line)
            if entry.get("type") == "user" and entry.get("isCompactSummary") and not entry.get("isSidechain"):
                seen.setdefault(entry.get("uuid") or number, (number, entry))
    return list(seen.values())


def _main(name: str, text: str) -> Recording | None:
    try:
        return next((one for one in agent_log.recordings(text, name) if one.id == name), None)
    except MalformedRecording:
        return None


def _messages(recorded: Recording) -> tuple[list[dict[str, Any]], list[float | None], list[dict[str, int]]]:
    """Return a recording's neutral messages, their times, and the usage of its calls."""
    messages: list[dict[str, Any]] = []
    times: list[float | None] = []
    usage: list[dict[str, int]] = []
    for step in recorded.steps:
        if isinstance(step, ModelCall) and step.usage is not None:
            read, write, hour = step.usage.read or 0, step.usage.write or 0, step.usage.write_hour or 0
            fresh = step.usage.input - read - write
            out = step.usage.output or 0
            usage.append({"i": len(messages), "in": fresh, "read": read, "write": write, "write_1h": hour, "out": out})
        elif isinstance(step, AppendMessages):
            for at, message in zip(step.times or [None] * len(step.messages), step.messages, strict=True):
                made = list(_made(message))
                messages += made
                times += [at] * len(made)
    return messages, times, usage


def _made(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the neutral messages of one of Anthropic's: one of the assistant, or one for each result and text."""
    if message["role"] == "assistant":
        calls = [
            {"id": part["id"], "name": part["name"], "arguments": json.dumps(part["input"], ensure_ascii=False)}
            for part in message["content"]
            if part["type"] == "tool_use"
        ]
        said = "\n".join(part["text"] for part in message["content"] if part["type"] == "text")
        if said or calls:
            yield {"role": "assistant", "content": said} | ({"tool_calls": calls} if calls else {})
        return
    for part in message["content"]:
        if part["type"] == "tool_result":
            yield {"role": "tool", "content": _text(part.get("content")), "tool_call_id": part["tool_use_id"]}
        elif text := _text([part]):
            yield {"role": "user", "content": text}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts if isinstance(part, dict))


def _prefix(messages: Sequence[Mapping[str, Any]], usage: Sequence[Mapping[str, int]]) -> int:
    """Return the size of the system prompt and tools, which the log lacks: the rest of the first call's input."""
    if not usage:
        return 0
    first = usage[0]
    texts = strings([[one.get("content"), _arguments(one)] for one in messages[: first["i"]]])
    return max(0, first["in"] + first["read"] + first["write"] - sum(map(COUNTER.message, texts)))


def _arguments(message: Mapping[str, Any]) -> list[Any]:
    return [json.loads(call["arguments"]) for call in message.get("tool_calls") or ()]


def _modified(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the files that a call of an editing tool names."""
    found: dict[str, None] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            arguments = json.loads(call["arguments"])
            path = next((str(arguments[name]) for name in PATHS if arguments.get(name)), "")
            if path and call["name"].lower() in MODIFYING:
                found[path] = None
    return list(found)
