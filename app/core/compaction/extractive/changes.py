"""Changes of files: the number of edits, the definitions that they added, removed or edited, and reversals."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.core.compaction.extractive.sections import SectionLine
from app.core.digest.files import NEW_TEXTS, OLD_TEXTS
from app.core.lexicon.identifiers import DEFINITION
from app.core.log.events import Json

NAMES_MAX: Final = 4
NAME_CHARS_MAX: Final = 60
ADDED, REMOVED, EDITED = "added", "removed", "edited"

_TOLD: Final = re.compile(r"^- (Changed|Wrote) ([^\s,:]{1,200}?)(?: x(\d{1,6}))?(?:: ([^\n]{1,600}))?\.$", re.M)

_OUTER: Final = re.compile(
    r"[ \t]{0,4}(?:export |pub |async |default |static |public |private )*"
    r"(?:func|type|def|class|fn|function|interface|struct|enum)\b"
)
"""Lines whose definitions are worth naming; variables within a function are not."""


@dataclass(slots=True)
class FileChange:
    """The changes of one file: their number, the seq of the newest, and a state for each changed definition's name."""

    times: int = 0
    seq: int = 0
    is_new: bool = False
    names: dict[str, str] = field(default_factory=dict)

    def add(self, times: int, seq: int, names: Mapping[str, str]) -> None:
        """Count more changes; a name that was added and then removed is dropped."""
        self.times += times
        self.seq = max(self.seq, seq) if self.seq > 0 else seq
        for name, done in names.items():
            before = self.names.pop(name, None)
            if before == ADDED and done == REMOVED:
                continue
            self.names[name] = ADDED if before == ADDED and done == EDITED else done

    def forget(self, arguments: Mapping[str, Json]) -> None:
        """Drop the added names that an edit removes outside their definition: they were renamed or removed before."""
        for old, new in _edits(arguments):
            for name in [name for name, done in self.names.items() if done == ADDED]:
                word = re.compile(rf"\b{re.escape(name)}\b")
                if name not in _defined(old) and word.search(old) and not word.search(new):
                    del self.names[name]

    def line(self, name: str) -> SectionLine:
        """Describe the changes of the file in one line."""
        verb = "Wrote" if self.is_new else "Changed"
        times = f" x{self.times}" if self.times > 1 else ""
        shown = list(self.names.items())[-NAMES_MAX:]
        parts = [
            f"{done} {', '.join(one for one, what in shown if what == done)}"
            for done in (REMOVED, ADDED, EDITED)
            if any(what == done for _, what in shown)
        ]
        return SectionLine(f"{verb} {name}{times}{': ' if parts else ''}{', '.join(parts)}.", self.seq)


def parse_changes(text: str) -> Iterator[tuple[str, FileChange]]:
    """Yield the changes in lines of earlier summaries, each with the file's name."""
    for number, (verb, name, times, listed) in enumerate(_TOLD.findall(text)):
        change = FileChange(is_new=verb == "Wrote")
        names: dict[str, str] = {}
        done = EDITED
        for word in listed.replace(",", "").split():
            if word in (ADDED, REMOVED, EDITED):
                done = word
            else:
                names[word] = done
        change.add(int(times or 1), number - len(text), names)
        yield name, change


def definitions(arguments: Mapping[str, Json]) -> dict[str, str]:
    """Return the definitions that an edit adds, removes or edits."""
    found: dict[str, str] = {}
    for old, new in _edits(arguments):
        before, after = _defined(old), _defined(new)
        found |= {name: REMOVED for name in before if name not in after}
        found |= {name: EDITED if name in before else ADDED for name in after}
    return found


def _defined(text: str) -> Sequence[str]:
    lines = (line for line in text.split("\n") if _OUTER.match(line))
    # A name before a dot is not a definition.
    names = (name for line in lines for name in DEFINITION.findall(line) if f"{name}." not in line)
    return [name for name in dict.fromkeys(names) if len(name) <= NAME_CHARS_MAX]


def _edits(arguments: Mapping[str, Json]) -> Iterable[tuple[str, str]]:
    """Yield the old and the new text of each edit in a call's arguments."""
    edits = arguments.get("edits")
    for one in (arguments, *(edits if isinstance(edits, list) else ())):
        if isinstance(one, Mapping):
            old = next((one[name] for name in OLD_TEXTS if isinstance(one.get(name), str)), None)
            new = next((one[name] for name in NEW_TEXTS if isinstance(one.get(name), str)), None)
            if old is not None and new is not None:
                yield old, new
