"""The notes that agents write for themselves, sorted by their tags."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from app.core.compaction.extractive.sections import SectionLine
from app.core.digest.sentences import shorten
from app.core.log.event import Event
from app.core.log.events import EventType

NOTE_CHARS_MAX: Final = 300

_TAG: Final = re.compile(r"^[ \t]{0,8}\[([PDS])\][ \t]{0,8}", re.M)


@dataclass(slots=True)
class Notes:
    """Notes, the newest first: preferences ([P]), decisions ([D]), structure of the work ([S]), and others."""

    preferences: list[SectionLine] = field(default_factory=list)
    decisions: list[SectionLine] = field(default_factory=list)
    structure: list[SectionLine] = field(default_factory=list)
    others: list[SectionLine] = field(default_factory=list)


def notes_of(events: Iterable[Event]) -> Notes:
    """Return the notes among the events. A tag begins a line and holds for the text up to the next tag."""
    found = Notes()
    tagged = {"P": found.preferences, "D": found.decisions, "S": found.structure}
    for event in events:
        if event.type is EventType.AGENT_NOTE:
            before, *rest = _TAG.split(event.text)
            _add(found.others, before, event.seq)
            for tag, text in zip(rest[::2], rest[1::2], strict=True):
                _add(tagged[tag], text, event.seq)
    for lines in (*tagged.values(), found.others):
        lines.reverse()
    return found


def _add(lines: list[SectionLine], text: str, seq: int) -> None:
    if words := " ".join(text.split()):
        lines.append(SectionLine(shorten(words, NOTE_CHARS_MAX), seq))
