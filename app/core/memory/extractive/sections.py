"""The sections of a summary's body: their headings, parsing an earlier summary's, and filling new ones."""

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, zip_longest
from typing import Final

from app.core.memory.digest.appendix import Measure
from app.core.memory.digest.sentences import abridge_message
from app.core.memory.extractive.statements import names_cause

NONE: Final = "(none)"
"""The line under an empty heading of a model's summary."""
GOAL, CONSTRAINTS, PROGRESS = "## Goal", "## Constraints & Preferences", "## Progress"
DONE, IN_PROGRESS, NOT_STARTED, BLOCKED = "### Done", "### In Progress", "### Not Started", "### Blocked"
DECISIONS, NEXT, CONTEXT = "## Key Decisions", "## Next Steps", "## Critical Context"
USERS, LATEST = "## User Messages", "## Agent Messages at the End of This Part"
PAST: Final = "## Past Agent Messages"
"""The heading under which `parse_sections` returns the latest messages of all summaries but the last."""
REQUEST, EARLY, SUFFIX = "## Original Request", "## Early Progress", "## Context for Suffix"
PROGRESS_HEADINGS: Final = (DONE, IN_PROGRESS, NOT_STARTED, BLOCKED)
HEADINGS: Final = (GOAL, USERS, CONSTRAINTS, PROGRESS, *PROGRESS_HEADINGS, DECISIONS, NEXT, CONTEXT, LATEST)
TURN_START_HEADINGS: Final = (REQUEST, EARLY, SUFFIX)
STATES: Final = frozenset({IN_PROGRESS, NOT_STARTED, BLOCKED, NEXT, LATEST})
"""Headings of sections that describe the state at a summary's end."""
NOTHING: Final = "Nothing was decided or changed."
UNDECIDED: Final = "Nothing was decided"
NOTHINGS: Final = (UNDECIDED, "Nothing was said or done")
"""The beginnings of a summary without sections, the second one in summaries of 0.3."""
SHORTEST_CHARS: Final = 40
FEW_WORDS: Final = 3
COUNTED: Final = re.compile(r"(?:Changed|Wrote|Deleted|Ran|Called) .*\.$|`[^`]+` failed ")
"""A line on the runs and changes of a span, counted at its end."""
_WITHOUT_DETAILS: Final = re.compile(r"(?:(?:Changed|Wrote) \S{1,200}(?: x\d+)?|`[^`]+` failed [^:]{1,200})(?=: )")
"""The part of such a line that is enough if there is no room for the rest."""
FIRST_REQUEST_SHARE: Final = 0.2
LATER_REQUEST_SHARE: Final = 0.12
"""The maximum shares of the room for the first line of a goal and for its second."""
SHORTENED: Final = frozenset({GOAL, USERS, LATEST, REQUEST, EARLY, SUFFIX})
"""Headings whose first line is shortened rather than left out, as is that of the section that takes the spare room."""
GOALS: Final = 2
LATER_REQUEST: Final = "Later request: "
"""The mark of the newest request; it stays true when another summary follows."""
FIRST_REQUEST: Final = "First request: "
"""The mark of a goal that a later request follows."""
_MARKS: Final = ('(asked: "', '(about: "', '(answered: "', '(then reported: "')
"""The beginnings of notes after a user's words."""
BEFORE_LAST: Final = "Earlier in this part: "
"""The mark of an agent's message that is not about the user's last message in its part."""
FOUND_BEFORE: Final = "Found earlier: "
"""The mark of an agent's finding after which the agent changed something."""
_FOUND: Final = re.compile(r"^Found (?=(?:an?|another|one|the) )")
UNRESOLVED: Final = "Not resolved when this part ended: "
"""The mark of a problem in the assistant's words."""
LEAST_SHARE: Final = 0.1
"""The share of the room for a section whose own share does not hold a single line."""
SPARE_SHARE: Final = 0.1
"""The share of the room that must be left for lines to be replaced by longer forms."""
MESSAGES: Final = frozenset({GOAL, USERS})
"""Headings over the user's own words."""
LEFT_OUT: Final = re.compile(r"\((\d+) (?:of the messages|other messages?) left out\)")
"""The first line of the users' messages if it does not hold all; the last one, in other words, in older summaries."""
LEFT_OUT_TOKENS, LEFT_OUT_SHARE = 10, 0.03
"""The tokens kept free for that line, if they are at most this share of the room."""
_SAME_CHARS: Final = 40
"""The least number of common characters with which two lines, one shortened, may be the same message."""


@dataclass(frozen=True, slots=True)
class SectionLine:
    """A line of a section. `seq` sorts lines by time: the seq of the line's event, 0 if unknown.

    Lines of earlier summaries have negative ones: the line number less the number of lines, so adjacent lines have
    adjacent numbers and a gap is a heading.
    """

    text: str
    seq: int


@dataclass(slots=True)
class Section:
    """A heading with its candidate lines, the best first, and the share of the room that it may take at first.

    `fillers` are candidates for the room that all sections leave; then `longer` returns longer forms of the section's
    lines, of at most as many tokens as it is given. `chosen` are the lines taken so far. `left_out` is the number of
    users' messages that earlier summaries left out.
    """

    heading: str
    candidates: Sequence[SectionLine]
    share: float
    fillers: Sequence[SectionLine] = ()
    longer: Callable[[int], Sequence[SectionLine]] | None = None
    left_out: int = 0
    chosen: list[SectionLine] = field(default_factory=list)


def parse_sections(text: str) -> dict[str, list[SectionLine]]:
    """Return the lines under each heading of earlier summaries, oldest first, without the tagged appendix.

    One of HEADINGS begins the next summary if it comes there no later than the heading before, or follows an appendix
    or a turn start. Headings in STATES are filled by the last summary only. The others' latest messages are under PAST.
    """
    found: dict[str, list[SectionLine]] = {}
    heading = ""
    lines = text.split("\n")
    for number, raw in enumerate(lines):
        line = raw.strip()
        if line.startswith("<"):
            heading = ""
        elif line in HEADINGS or line in TURN_START_HEADINGS:
            if line in HEADINGS and (heading not in HEADINGS or HEADINGS.index(line) <= HEADINGS.index(heading)):
                past = [*found.get(PAST, ()), *found.get(LATEST, ())]
                found = {name: without_counts(some) for name, some in found.items() if name not in STATES}
                found[PAST] = past
            heading = line
        elif heading and line and line != NONE and not line.startswith(NOTHINGS):
            found.setdefault(heading, []).append(SectionLine(line.removeprefix("- "), number - len(lines)))
    return found


def dated(observations: Sequence[SectionLine], changed: int) -> Sequence[SectionLine]:
    """Return the observations made since the newest change, and of earlier ones those that name a cause, marked.

    `changed` is the seq of the newest change; an observation of an earlier summary counts as before it.
    """
    return [
        line if line.seq > changed else SectionLine(FOUND_BEFORE + _FOUND.sub("", line.text), line.seq)
        for line in observations
        if line.seq > changed or names_cause(line.text)
    ]


def done_lines(text: str) -> str:
    """Return the lines under DONE and EARLY in earlier summaries; lines elsewhere may look alike, but are quotes."""
    kept: list[str] = []
    heading = ""
    for line in text.split("\n"):
        if line.startswith(("#", "<")):
            heading = line.strip()
        elif heading in (DONE, EARLY):
            kept.append(line)
    return "\n".join(kept)


def interleave(new: Sequence[SectionLine], old: Sequence[SectionLine]) -> Sequence[SectionLine]:
    """Alternate between the two sequences, so that neither crowds out the other when the room ends."""
    return [line for line in chain.from_iterable(zip_longest(new, old)) if line is not None]


def split_left_out(lines: Sequence[SectionLine]) -> tuple[list[SectionLine], int]:
    """Return users' messages of earlier summaries, and the number of those that these left out."""
    numbers = [int(found[1]) for line in lines if (found := LEFT_OUT.fullmatch(line.text))]
    return [line for line in lines if not LEFT_OUT.fullmatch(line.text)], sum(numbers)


def without_counts(lines: Sequence[SectionLine]) -> list[SectionLine]:
    """Return the lines without those on runs and changes, which a later summary counts again."""
    return [line for line in lines if not COUNTED.match(line.text)]


def fill_sections(
    headings: Sequence[str], sections: Sequence[Section], measure: Measure, max_tokens: int, spare: str
) -> str:
    """Fill the sections and write them under their headings, in at most `max_tokens`.

    Each section first gets the best lines that its share holds, where shares above the whole are reduced alike; then
    every section without a line gets LEAST_SHARE; then the rest of the room is filled, the section `spare` first; then
    the fillers; and if SPARE_SHARE of the room is left, longer forms of lines. A section without candidates is left
    out; if none has any, the text is NOTHING. If not even the headings fit, the text is cut off at its end.
    """
    known = {section.heading: [section.candidates[0].text] for section in sections if section.candidates}
    goals = (line for section in sections for line in section.candidates[:GOALS])
    marks = [FIRST_REQUEST for line in goals if line.text.startswith(LATER_REQUEST)]
    frame = "\n".join([*_headings(headings, known), *marks]) + "\n"
    room = max_tokens - measure(frame) - 1
    if not known or room < 0:
        return _cut(_text(headings, known) or NOTHING, measure, max_tokens)
    counts_left_out = room * LEFT_OUT_SHARE >= LEFT_OUT_TOKENS
    users = [section for section in sections if section.heading == USERS and section.candidates and counts_left_out]
    room -= LEFT_OUT_TOKENS * len(users)
    whole = room
    shares = max(1.0, sum(section.share for section in sections if section.candidates))
    fill = partial(_fill, sections, measure, spare)
    for section in sections:
        most = min(int(_share(section, whole, measure) / shares), room)
        section.candidates = (section.longer(most) if section.longer else ()) or section.candidates
        room -= fill(section, section.candidates, most)
    for section in sections:
        if not section.chosen:
            room -= fill(section, section.candidates, min(int(whole * LEAST_SHARE), room))
    for section in sorted(sections, key=lambda section: section.heading != spare):
        room -= fill(section, section.candidates, room)
    for section in sections:
        room -= fill(section, section.fillers, room)
    if room > whole * SPARE_SHARE:
        _lengthen(sections, room, measure)
    for section in users:
        section.chosen += _left_out_line(section, sections)
    chosen = {section.heading: section.chosen for section in sections if section.chosen}
    text = _text(headings, {heading: _ordered(heading, lines) for heading, lines in _in_place(chosen).items()})
    return text if measure(text) <= max_tokens else _cut(text, measure, max_tokens)


def _left_out_line(users: Section, sections: Sequence[Section]) -> Sequence[SectionLine]:
    """Return a line with the number of users' messages, those of earlier summaries included, that no section has."""
    chosen = {line.seq for section in sections if section.heading in MESSAGES for line in section.chosen}
    missing = {line.seq for line in users.candidates if line.seq not in chosen and not _is_covered(line.text, sections)}
    number = users.left_out + len(missing)
    return [SectionLine(f"({number} of the messages left out)", -sys.maxsize)] if number else []


def _share(section: Section, whole: int, measure: Measure) -> int:
    """Return the tokens that a section may take at first."""
    share = int(whole * section.share)
    if section.heading != GOAL or not section.candidates:
        return share
    most = (FIRST_REQUEST_SHARE, LATER_REQUEST_SHARE)
    lines = (min(measure(f"- {g.text}\n"), int(whole * m)) for g, m in zip(section.candidates, most, strict=False))
    return max(share, sum(lines))


def _fill(
    sections: Sequence[Section], measure: Measure, spare: str, section: Section, lines: Sequence[SectionLine], room: int
) -> int:
    """Add the lines that fit to one of the sections and return the tokens they take.

    A line that does not fit loses its details; if that is not enough, it is shortened if it is a later request or the
    first line under one of SHORTENED or `spare`, else left out. So is a line whose words are in a chosen line; chosen
    lines whose words it contains are removed. A longer form of a shortened goal replaces it.
    """
    taken = 0
    for line in lines:
        text = line.text
        said = [one.text for other in sections if other.heading in MESSAGES for one in other.chosen]
        is_said = section.heading in MESSAGES and any(_is_longer_form(one, text) for one in said)
        if is_said or _is_covered(text, sections):
            continue
        cost = measure(f"- {text}\n")
        if cost > room - taken and (shorter := _WITHOUT_DETAILS.match(text)):
            text = f"{shorter[0]}."
            cost = measure(f"- {text}\n")
        first = not section.chosen and section.heading in (*SHORTENED, spare)
        if cost > room - taken and (first or text.startswith(LATER_REQUEST)):
            others = lines[1:GOALS] if first and section.heading == GOAL else ()
            kept = sum(measure(f"- {one.text}\n") for one in others)
            chars = len(text) * (room - taken - kept) // cost - 8
            text = _shortened(text, chars) if chars >= SHORTEST_CHARS else text
            cost = measure(f"- {text}\n")
        begin = text.removeprefix(LATER_REQUEST).partition("…")[0]
        if text != line.text and begin and any(begin in one.text for one in section.chosen):
            continue  # a longer form of it is chosen
        fitting = SectionLine(text, line.seq)
        goals = [one for one in sections if one.heading == GOAL and section.heading in MESSAGES]
        if (replaced := _replace_goal(fitting, goals, room - taken, measure)) is not None:
            taken += replaced
        elif cost <= room - taken:
            taken += cost - sum(measure(f"- {gone.text}\n") for gone in _remove_covered(fitting, sections))
            section.chosen.append(fitting)
        elif room - taken < SHORTEST_CHARS // 4:
            break
    return taken


def _lengthen(sections: Sequence[Section], room: int, measure: Measure) -> None:
    """Replace the lines of the section that has longer forms by these, if they fit, and remove lines they contain."""
    for section in sections:
        if section.longer is None:
            continue
        shorter, section.chosen = section.chosen, []
        taken = sum(measure(f"- {line.text}\n") for line in shorter)
        for tokens in (taken + room, taken + room * 9 // 10):
            lines = [line for line in section.longer(tokens) if not _is_covered(line.text, sections)]
            if taken < sum(measure(f"- {line.text}\n") for line in lines) <= taken + room:
                for line in lines:
                    _remove_covered(line, sections)
                section.chosen = lines
                return
        section.chosen = shorter


def _shortened(text: str, chars: int) -> str:
    """Return a line shortened to at most `chars` characters; it keeps its mark and its last sentence."""
    mark = LATER_REQUEST if text.startswith(LATER_REQUEST) else ""
    return mark + abridge_message(text.removeprefix(mark), chars - len(mark))


def _replace_goal(line: SectionLine, goals: Sequence[Section], room: int, measure: Measure) -> int | None:
    """Replace a goal by a longer form if it fits, and return the tokens added; None if the line is no such form."""
    for section in goals:
        for at, goal in enumerate(section.chosen):
            if _is_longer_form(line.text, goal.text):
                mark = LATER_REQUEST if goal.text.startswith(LATER_REQUEST) else ""
                cost = measure(f"- {line.text}\n") + measure(mark) - measure(f"- {goal.text}\n")
                if cost <= room:
                    section.chosen[at] = SectionLine(mark + line.text.removeprefix(mark), line.seq)
                return cost if cost <= room else 0
    return None


def _is_longer_form(text: str, shortened: str) -> bool:
    """Return whether a line is the same message of a user as a shortened line, and longer, or as long.

    They are compared by their beginnings up to the ellipsis, or by their ends if one of them has no beginning.
    """
    if "…" not in shortened:
        return False
    messages = [one.removeprefix(FIRST_REQUEST).removeprefix(LATER_REQUEST) for one in (text, shortened)]
    if len(messages[0]) < len(messages[1]):
        return False
    least, most = sorted((one.partition("…")[0] for one in messages), key=len)
    if least:
        return len(least) >= _SAME_CHARS and most.startswith(least)
    least, most = sorted((one.rpartition("…")[2] for one in messages), key=len)
    return len(least) >= _SAME_CHARS and most.endswith(least)


def _is_covered(text: str, sections: Sequence[Section]) -> bool:
    words = _normal(text)
    chosen = [_normal(line.text) for section in sections for line in section.chosen]
    return any(_contains(whole, words) for whole in chosen if words in whole or "… " in words)


def _contains(whole: str, words: str) -> bool:
    """Return whether a `_normal` line contains another's words; a few words must match a whole line or answer."""
    if whole.startswith(words):
        rest = whole[len(words) :]
        if not rest or rest.startswith(": ") or rest.lstrip("… .?").startswith(_MARKS):
            return True
    is_in = words in whole or ("… " in words and all(one in whole for one in words.split("… ")))
    return is_in and words.count(" ") >= FEW_WORDS


def _replaces(text: str, line: str, heading: str) -> bool:
    return _contains(_normal(text), _normal(line)) or (heading == USERS and _is_longer_form(text, line))


def _remove_covered(line: SectionLine, sections: Sequence[Section]) -> Sequence[SectionLine]:
    """Remove the chosen lines whose words the line contains, except goals and newer messages, and return them."""
    gone: list[SectionLine] = []
    for section in (one for one in sections if one.heading != GOAL):
        older = [one for one in section.chosen if section.heading != USERS or one.seq <= line.seq or "…" in one.text]
        gone += [one for one in older if _replaces(line.text, one.text, section.heading)]
        section.chosen = [one for one in section.chosen if one not in gone]
    return gone


@lru_cache(maxsize=4_096)
def _normal(text: str) -> str:
    """Return the words of a line for comparison, without case, emphasis and an ellipsis."""
    bare = text.removeprefix(LATER_REQUEST).removeprefix(FOUND_BEFORE).removeprefix(BEFORE_LAST)
    words = bare.replace("*", "").replace("`", "")
    return " ".join(words.lower().rstrip("… .?").split())


def _in_place(chosen: Mapping[str, Sequence[SectionLine]]) -> Mapping[str, Sequence[SectionLine]]:
    """Return the lines by heading, with a later request in its place among the users' messages if there are any."""
    later = [line for line in chosen.get(GOAL, ()) if line.text.startswith(LATER_REQUEST)]
    if not later:
        return chosen
    first = [SectionLine(FIRST_REQUEST + line.text, line.seq) for line in chosen[GOAL] if line not in later]
    if USERS not in chosen:
        return {**chosen, GOAL: [*first, *later]}
    rest = {heading: lines for heading, lines in chosen.items() if heading != GOAL}
    return {**rest, USERS: [*chosen[USERS], *later], **({GOAL: first} if first else {})}


def _ordered(heading: str, lines: Sequence[SectionLine]) -> Sequence[str]:
    return [line.text for line in (lines if heading in (GOAL, REQUEST) else sorted(lines, key=lambda one: one.seq))]


def _headings(headings: Sequence[str], filled: Collection[str]) -> Sequence[str]:
    """Return the headings in `filled`, and PROGRESS if one of its subheadings is."""
    has_progress = any(heading in filled for heading in PROGRESS_HEADINGS)
    return [heading for heading in headings if heading in filled or (heading == PROGRESS and has_progress)]


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
    # No word is cut.
    end = low if low == len(text) or text[low].isspace() else max(text.rfind(" ", 0, low), text.rfind("\n", 0, low), 0)
    return text[:end]
