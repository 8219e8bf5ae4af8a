"""Reader of LoCoMo's `locomo10.json`: dialogues over months, questions, and the turns that answer them."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.believed.downloads import UnknownData, field, read

GET_IT: Final = "Get data/locomo10.json of https://github.com/snap-research/LoCoMo."
SEEN: Final = frozenset({"conv-26", "conv-41", "conv-43", "conv-47", "conv-49"})
"""Dialogues on which the ranking of recall was developed."""
CATEGORIES: Final = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
TURN_SECONDS: Final = 20.0
_SESSION: Final = re.compile(r"session_(\d+)")
_TURN: Final = re.compile(r"D\d+:\d+")


def dialogues(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the dialogues as neutral sessions. Raises UnknownData."""
    content = read(file, GET_IT)
    if not isinstance(content, list) or not content:
        raise UnknownData(f"{file} is not LoCoMo's list of dialogues. {GET_IT}")
    for number, value in enumerate(content):
        yield _dialogue(value, f"{file}: dialogue {number}")


def _dialogue(value: Any, where: str) -> dict[str, Any]:
    name = field(value, "sample_id", str, where)
    conversation = field(value, "conversation", dict, where)
    first = field(conversation, "speaker_a", str, where)
    messages: list[dict[str, Any]] = []
    times: list[float] = []
    place: dict[str, int] = {}
    sessions = sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(key)))
    for session in sessions:
        held = field(conversation, f"session_{session}_date_time", str, where)
        begun = _time(held, where)
        for number, turn in enumerate(field(conversation, f"session_{session}", list, where)):
            speaker = field(turn, "speaker", str, f"{where}, session {session}, turn {number}")
            place[field(turn, "dia_id", str, where)] = len(messages)
            opening = "" if number else f"[session {session}, {held}] "
            messages.append(
                {"role": "user" if speaker == first else "assistant", "content": opening + _said(turn, speaker)}
            )
            times.append(begun + TURN_SECONDS * number)
    asked = [_question(one, place, where) for one in field(value, "qa", list, where)]
    meta = {"ts": times, "qa": asked}
    return {"id": f"locomo-{name}", "system": None, "tools": None, "messages": messages, "meta": meta}


def _said(turn: Mapping[str, Any], speaker: str) -> str:
    image = turn.get("blip_caption")
    return f"{speaker}: {turn.get('text', '')}" + (f" [shares image: {image}]" if image else "")


def _question(value: Any, place: Mapping[str, int], where: str) -> dict[str, Any]:
    names = _TURN.findall(" ".join(field(value, "evidence", list, f"{where}, a question")))
    answer = value.get("answer", value.get("adversarial_answer", ""))
    return {
        "question": field(value, "question", str, f"{where}, a question"),
        "answer": str(answer),
        "category": CATEGORIES.get(value.get("category"), "other"),
        "evidence_idx": [place[name] for name in dict.fromkeys(names) if name in place],
    }


def _time(text: str, where: str) -> float:
    try:
        return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UnknownData(f"{where}: {text!r} is no time as in `1:56 pm on 8 May, 2023`") from None
