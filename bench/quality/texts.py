"""Files for people who read a measured context and compare it with what happened.

`01-context.txt` is the request as the model reads it, `01-log.txt` all messages up to the point, `01-next.txt`
those that follow. `index.txt` gives the recording, the point and the window of each number.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.quality.recorded import Moment, Recorded

NEXT_MESSAGES: Final = 40
_RULE: Final = "=" * 100


def write(folder: Path, title: str, recording: Recorded, moment: Moment, request: Any) -> None:
    """Write the files of one context under the next free number; `request` is in OpenAI's format."""
    folder.mkdir(parents=True, exist_ok=True)
    index, at = folder / "index.txt", moment.point.at
    with index.open("a+", encoding="utf-8") as lines:
        lines.seek(0)
        number = len(lines.readlines()) + 1
        lines.write(f"{number:02d} {title}: {recording.id}, before message {at}\n")
    texts = {
        "context": transcript(request["messages"]),
        "log": transcript(recording.messages[:at]),
        "next": transcript(recording.messages[at : at + NEXT_MESSAGES], at),
    }
    for name, text in texts.items():
        (folder / f"{number:02d}-{name}.txt").write_text(text + "\n", encoding="utf-8")


def transcript(messages: Iterable[Mapping[str, Any]], first: int = 0) -> str:
    """Return messages in OpenAI's shape as text, each under its number and role."""
    return "\n\n".join(
        f"{_RULE}\n[{number}] {message['role']}\n" + "\n".join(_parts(message))
        for number, message in enumerate(messages, start=first)
    )


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        yield part["text"] if part.get("type") == "text" else json.dumps(part, ensure_ascii=False)
    for call in message.get("tool_calls") or ():
        yield f"CALL {call['function']['name']} {call['function']['arguments']}"
