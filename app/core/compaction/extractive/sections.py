"""The sections of a summary's body: their headings, what an earlier summary says under them, how they are filled."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Final

from app.core.digest.sentences import shortened

NONE: Final = "(none)"
"""What a model's summary says under a heading that it has nothing for."""
GOAL, CONSTRAINTS, PROGRESS = "## Goal", "## Constraints & Preferences", "## Progress"
DONE, RUNNING, NOT_STARTED, BLOCKED = "### Done", "### In Progress", "### Not Started", "### Blocked"
DECISIONS, NEXT, CONTEXT = "## Key Decisions", "## Next Steps", "## Critical Context"
REQUEST, EARLY, SUFFIX = "## Original Request", "## Early Progress", "## Context for Suffix"
HEADINGS: Final = (GOAL, CONSTRAINTS, PROGRESS, DONE, RUNNING, NOT_STARTED, BLOCKED, DECISIONS, NEXT, CONTEXT)
PREFIX_HEADINGS: Final = (REQUEST, EARLY, SUFFIX)
PROGRESS_HEADINGS: Final = (DONE, RUNNING, NOT_STARTED, BLOCKED)
NOTHING: Final = "Nothing was said or done."
SHORTEST_CHARS: Final = 40
LEAST_SHARE: Final = 0.1
"""Of the room: what a section gets before any is spared, where its own share holds not even a line."""
Measure = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class SectionLine:
    """What may stand in a section, and the seq of the event it is from; 0 if it is from an earlier summary."""

    text: str
    seq: int


@dataclass(slots=True)
class Section:
    """A heading with what may stand under it, the best first, and the share of the room it may take at first."""

    heading: str
    candidates: Sequence[SectionLine]
    share: float
    chosen: list[SectionLine] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)


def parsed(text: str) -> dict[str, list[SectionLine]]:
    """The lines under each heading of an earlier summary; what stands in tags behind the body is left out."""
    found: dict[str, list[SectionLine]] = {}
    heading = ""
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith("<"):
            heading = ""
        elif line in HEADINGS or line in PREFIX_HEADINGS:
            heading = line
        elif heading and line and line != NONE:
            found.setdefault(heading, []).append(SectionLine(line.removeprefix("- "), 0))
    return found


def interleaved(new: Sequence[SectionLine], old: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """One of each in turn, so that where the room ends neither has pushed out the other."""
    return [line for line in chain.from_iterable(zip_longest(new, old)) if line is not None]


def filled(headings: Sequence[str], sections: Sequence[Section], measure: Measure, max_tokens: int, spare: str) -> str:
    """The sections' best lines: first what each one's share holds, then a line of those that have none yet, then what
    the room to spare does, `spare` first.

    A section that nothing is known for is left out; where nothing is known at all, the text says so. Where not even
    the headings fit, the beginning of the text is all there is.
    """
    known = {section.heading: [section.candidates[0].text] for section in sections if section.candidates}
    frame = "\n".join(_headings(headings, known)) + "\n"
    room = max_tokens - measure(frame) - 1
    if not known or room < 0:
        return _cut(_text(headings, known) or NOTHING, measure, max_tokens)
    whole = room
    used: set[str] = set()
    for section in sections:
        room -= _fill(section, used, min(int(whole * section.share), room), measure)
    for section in sections:
        if not section.chosen:
            room -= _fill(section, used, min(int(whole * LEAST_SHARE), room), measure)
    for section in sorted(sections, key=lambda section: section.heading != spare):
        room -= _fill(section, used, room, measure)
    text = _text(headings, {section.heading: _ordered(section) for section in sections if section.chosen})
    return text if measure(text) <= max_tokens else _cut(text, measure, max_tokens)


def _fill(section: Section, used: set[str], room: int, measure: Measure) -> int:
    """Add the candidates that fit; a first one that is too long is shortened. Returns the tokens taken."""
    taken = 0
    # A request may state a rule: then it is said twice rather than missed where it is looked for.
    elsewhere: Collection[str] = () if section.heading in (GOAL, CONSTRAINTS) else used
    for line in section.candidates:
        if line.text in section.taken or line.text in elsewhere:
            continue
        text = line.text
        cost = measure(f"- {text}\n")
        if cost > room - taken and not section.chosen:
            chars = len(text) * (room - taken) // cost - 8
            text = shortened(text, chars) if chars >= SHORTEST_CHARS else text
            cost = measure(f"- {text}\n")
        if cost <= room - taken:
            section.chosen.append(SectionLine(text, line.seq))
            section.taken.add(line.text)
            used.add(line.text)
            taken += cost
        elif room - taken < SHORTEST_CHARS // 4:
            break
    return taken


def _ordered(section: Section) -> Sequence[str]:
    lines = section.chosen if section.heading in (GOAL, REQUEST) else sorted(section.chosen, key=lambda line: line.seq)
    return [line.text for line in lines]


def _headings(headings: Sequence[str], told: Collection[str]) -> Sequence[str]:
    """Those of the headings that have something under them."""
    below = any(heading in told for heading in PROGRESS_HEADINGS)
    return [heading for heading in headings if heading in told or (heading == PROGRESS and below)]


def _text(headings: Sequence[str], lines: Mapping[str, Sequence[str]]) -> str:
    parts: list[str] = []
    for heading in _headings(headings, lines):
        parts += [heading, *(f"- {line}" for line in lines.get(heading, ()))]
    return "\n".join(parts)


def _cut(text: str, measure: Measure, max_tokens: int) -> str:
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle]) <= max_tokens else (low, middle - 1)
    return text[:low]
