"""Reader of BEAM's folders `chats/SIZE`: long conversations with an assistant, and questions of ten abilities."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.believed.downloads import UnknownData, field, read

GET_IT: Final = (
    "Get the folder `chats` of https://github.com/mohammadtavakoli78/BEAM; its `src/beam/download_dataset.py` writes"
    " the same files from the data set Mohammadta/BEAM on Hugging Face."
)
ANSWERS: Final = ("answer", "ideal_answer", "ideal_summary", "instruction_being_tested", "preference_being_tested")
TURN_SECONDS: Final = 20.0


def conversations(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the conversations of one size, such as `chats/500K`, as neutral sessions. Raises UnknownData."""
    numbered = sorted((int(one.name), one) for one in folder.glob("*") if one.name.isdigit() and one.is_dir())
    if not numbered:
        raise UnknownData(f"{folder} holds no numbered folders of conversations. {GET_IT}")
    for _, one in numbered:
        yield _conversation(one, f"beam-{folder.name}-{one.name}")


def _conversation(folder: Path, name: str) -> dict[str, Any]:
    chat = folder / "chat.json"
    messages: list[dict[str, Any]] = []
    times: list[float | None] = []
    place: dict[int, int] = {}
    now: float | None = None
    for message in _messages(read(chat, GET_IT), str(chat)):
        now = _time(message.get("time_anchor")) or (None if now is None else now + TURN_SECONDS)
        role = field(message, "role", str, str(chat))
        place[field(message, "id", int, str(chat))] = len(messages)
        messages.append({"role": role, "content": field(message, "content", str, str(chat))})
        times.append(now)
    questions = folder / "probing_questions" / "probing_questions.json"
    by_ability = read(questions, GET_IT)
    if not isinstance(by_ability, dict):
        raise UnknownData(f"{questions} is no object of abilities. {GET_IT}")
    asked = [
        _question(one, ability.replace("_", " "), place, str(questions))
        for ability, several in by_ability.items()
        for one in several
    ]
    return {"id": name, "system": None, "tools": None, "messages": messages, "meta": {"ts": times, "qa": asked}}


def _messages(chat: Any, where: str) -> Iterator[dict[str, Any]]:
    if not isinstance(chat, list):
        raise UnknownData(f"{where} is no list of batches. {GET_IT}")
    for batch in chat:
        for turn in field(batch, "turns", list, where):
            yield from turn


def _question(value: Any, ability: str, place: dict[int, int], where: str) -> dict[str, Any]:
    ids = list(_ids(value.get("source_chat_ids") if isinstance(value, dict) else None))
    if lost := [one for one in ids if one not in place]:
        raise UnknownData(f"{where}: the conversation has no message {lost[0]}, a source of a question")
    return {
        "question": field(value, "question", str, where),
        "answer": next((str(value[name]) for name in ANSWERS if value.get(name)), ""),
        "category": ability,
        "evidence_idx": list(dict.fromkeys(place[one] for one in ids)),
    }


def _ids(value: Any) -> Iterator[int]:
    """Yield the ids in a list, or in the lists of an object such as `{"first_event": [14], "second_event": [6]}`."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _ids(one)


def _time(anchor: Any) -> float | None:
    try:
        return datetime.strptime(str(anchor), "%B-%d-%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
