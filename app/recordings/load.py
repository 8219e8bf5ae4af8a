"""Reading recordings from a file's text; the format is recognized by the content, never by the file's name."""

from app.recordings import agent_log, chat, neutral
from app.recordings.checks import numbered_lines, parse_json
from app.recordings.recording import MalformedRecording, Object, Recording


def decode(data: bytes) -> str:
    """The text of a file, which must be UTF-8 (a byte order mark is allowed). Raises MalformedRecording."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedRecording(f"not UTF-8: {error.reason}", line=line) from None


def parse(text: str, id: str, *, sub_agents: bool = False) -> tuple[Recording, ...]:
    """Read every session in the text; `id` names the session of a format without ids.

    Of a coding agent's log only the main session, unless `sub_agents` are wanted or all of it is a sub-agent's own.
    Raises MalformedRecording before anything is sent, so that a file is sent as a whole or not at all.
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
        found = agent_log.recordings(text, id)
        main = tuple(one for one in found if one.id == id)
        return found if sub_agents or not main else main
    return (chat.recording(parse_json(text), id),)


def _first_line_object(text: str) -> Object | None:
    """The first line as an object; None if it is not one by itself."""
    _, line = next(numbered_lines(text), (0, ""))
    try:
        value = parse_json(line)
    except MalformedRecording:
        return None
    return value if isinstance(value, dict) else None
