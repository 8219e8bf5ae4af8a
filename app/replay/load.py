"""A file's text to recordings: the format is told by the content, never by the file's name."""

from app.replay import agent_log, chat, neutral
from app.replay.checks import numbered_lines, parse_json
from app.replay.recording import MalformedRecording, Object, Recording


def decode(data: bytes) -> str:
    """The text of a file, which must be UTF-8 (a byte order mark is allowed)."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedRecording(f"not UTF-8: {error.reason}", line=line) from None


def parse(text: str, id: str) -> tuple[Recording, ...]:
    """Every session in the text; `id` names the one of a format that carries no id of its own.

    Raises MalformedRecording, so that either all of a file is replayed or nothing is sent.
    """
    first = _first_line_object(text)
    if first is None:
        if not text.strip():
            raise MalformedRecording("the file is empty")
        return (chat.recording(parse_json(text), id),)
    if neutral.is_neutral(first):
        return tuple(
            neutral.recording(parse_json(line, first_line=number), number) for number, line in numbered_lines(text)
        )
    if agent_log.is_agent_log(first):
        return (agent_log.recording(text, id),)
    return (chat.recording(parse_json(text), id),)


def _first_line_object(text: str) -> Object | None:
    """The object on the first line, if that line is one by itself."""
    _, line = next(numbered_lines(text), (0, ""))
    try:
        value = parse_json(line)
    except MalformedRecording:
        return None
    return value if isinstance(value, dict) else None
