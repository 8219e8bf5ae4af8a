"""The transcript of a span that a summarizer reads."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.event import REASONING_PARTS, Event, content_text
from app.core.log.events import BOOKKEEPING, PREFIX, EventType, Json, Part, canonical_json, readable

TRUNCATED: Final = "...(truncated)"
RESULT_CHARS_MAX: Final = 4000
ARGUMENT_CHARS_MAX: Final = 2000
"""The lengths to which a tool's result and a call's arguments are cut, in characters."""
PART_CHARS_MAX: Final = 40
"""The maximum length of the name shown in place of a part without text."""

_FENCES: Final = re.compile(
    r"<(?=\s{0,8}/?\s{0,8}"
    r"(?:tool-output|conversation|previous-summary|summar(?:y|ies)|constraints|identifiers|rejected-answer)\b)",
    re.IGNORECASE,
)
_LABELS: Final = {
    EventType.USER_MESSAGE: "User",
    EventType.ASSISTANT_MESSAGE: "Assistant",
    EventType.TOOL_CALL: "Assistant tool calls",
    EventType.TOOL_RESULT: "Tool result",
    EventType.SYSTEM_MESSAGE: "System",
    EventType.AGENT_NOTE: "Internal Note",
    EventType.ANNOUNCE: "Internal Note",
}


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One labelled paragraph: `body` between its label or fence (`before`) and the end of its fence (`after`).

    `turn` is its event's turn; `user` tells whether the user wrote it.
    """

    before: str
    body: str
    after: str = ""
    turn: int = 0
    user: bool = False

    @property
    def text(self) -> str:
        """The whole paragraph."""
        return readable(f"{self.before}{self.body}{self.after}")


def paragraphs(items: Sequence[tuple[Event, str | None]]) -> list[Paragraph]:
    """Write one labelled paragraph for each event, in the order given; adjacent calls share one.

    An item pairs an event with the text that replaces it if it is hidden or stubbed, else None. The system
    prompt, the tool definitions and bookkeeping are left out. Reasoning, images and other parts without text are named,
    not shown.
    """
    written: list[Paragraph] = []
    calls: list[str] = []
    turn = 0
    for event, replacement in items:
        if event.type in BOOKKEEPING or event.type in PREFIX:
            continue
        if event.type is EventType.TOOL_CALL:
            content = _content(event) if replacement is None else ""
            if content:
                _close(calls, written, turn)
                written.append(Paragraph(_label(EventType.ASSISTANT_MESSAGE), inert(content), turn=event.turn))
            calls.append(inert(_call(event) if replacement is None else replacement))
            turn = event.turn
            continue
        _close(calls, written, turn)
        text = _content(event) if replacement is None else replacement
        if event.type is EventType.TOOL_RESULT:
            written.append(_fenced(event, cut(text, RESULT_CHARS_MAX)))
        elif text:
            user = event.type is EventType.USER_MESSAGE
            written.append(Paragraph(_label(event.type), inert(text), turn=event.turn, user=user))
    _close(calls, written, turn)
    return written


def inert(text: str) -> str:
    """Return the text with `&lt;` in place of the `<` of every tag that the prompts use as a fence."""
    return _FENCES.sub("&lt;", text)


def cut(text: str, chars: int) -> str:
    """Return the first `chars` characters, with a mark if the text is longer."""
    return text if len(text) <= chars else text[:chars] + TRUNCATED


def _close(calls: list[str], written: list[Paragraph], turn: int) -> None:
    """Append the calls gathered so far as one paragraph."""
    if calls:
        written.append(Paragraph(_label(EventType.TOOL_CALL), ", ".join(calls), turn=turn))
        calls.clear()


def _label(kind: EventType) -> str:
    return f"[{_LABELS[kind]}]: "


def _fenced(event: Event, text: str) -> Paragraph:
    state = ' status="error"' if event.is_error else ""
    fence = f'<tool-output seq="{event.seq}"{state} trust="untrusted">\n'
    return Paragraph(_label(event.type) + fence, inert(text), "\n</tool-output>", event.turn)


def _call(event: Event) -> str:
    shown = ", ".join(f"{name}={canonical_json(value)}" for name, value in event.arguments.items())
    return f"{event.tool or 'tool'}({cut(shown, ARGUMENT_CHARS_MAX)})"


def _content(event: Event) -> str:
    if event.body is None:
        return event.gist or ""
    content: Json = event.body.get("content")
    return "\n".join(_parts(content)) if isinstance(content, list | tuple) else content_text(content)


def _parts(content: Iterable[Part]) -> Iterable[str]:
    for part in content:
        kind = str(part.get("type", "part"))
        text = part.get("text")
        yield text if isinstance(text, str) and kind not in REASONING_PARTS else f"[{kind[:PART_CHARS_MAX]}]"
