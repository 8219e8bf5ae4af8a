"""Lines on the calls of tools for neither files nor a shell: their number, and the arguments they were made with.

They tell an agent which of many things it has already looked up or changed, so they are kept when summaries are merged.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from app.core.log.events import Json
from app.core.memory.digest.sentences import shorten
from app.core.memory.extractive.sections import SectionLine

ARGUMENTS_CHARS_MAX: Final = 120
"""The length to which the arguments of one call are shortened."""
LINE_CHARS_MAX: Final = 240
"""The length of all arguments in a line, from which on those of the oldest calls are left out."""
OMITTED: Final = "…"

_TOLD: Final = re.compile(r"^- Called ([^\s,:]{1,200})(?: x(\d{1,6}))?(?:: ([^\n]{1,1000}))?\.$", re.M)
_EARLIER: Final = re.compile(r"^- Called ([^\s,:]{1,200}) with ([^\n]{1,200})\.$", re.M)
"""One call in older summaries."""
_EARLIER_SUM: Final = re.compile(r"^- Called ([^\n:]{1,800}, [^\n:]{1,800}?)(?: and \d{1,6} more)?\.$", re.M)
"""The numbers of all calls of several tools in older summaries, which follow the newest ones."""
_NUMBERED: Final = re.compile(r"(|.*?[^\d.,:/])(\d{1,15})(?: to (\d{1,15}))?")
"""Arguments that end with a whole number, or with the first and the last of successive ones."""


@dataclass(slots=True)
class ToolCalls:
    """The calls of one tool: their number, the seq of the newest, and the arguments of each, oldest first."""

    times: int = 0
    seq: int = 0
    arguments: list[str] = field(default_factory=list)

    def add(self, times: int, seq: int, arguments: str) -> None:
        """Count more calls; successive numbers become a range, and repeated arguments are listed once."""
        self.times += times
        self.seq = max(self.seq, seq) if self.seq > 0 else seq
        if not arguments or arguments in self.arguments:
            return
        joined = _join(self.arguments[-1], arguments) if self.arguments else None
        if joined is not None:
            self.arguments[-1] = joined
        else:
            self.arguments.append(arguments)

    def line(self, tool: str) -> SectionLine:
        """Describe the calls in one line."""
        times = f" x{self.times}" if self.times > 1 else ""
        shown: list[str] = []
        room = LINE_CHARS_MAX
        for one in reversed(self.arguments):
            room -= len(one) + 2
            if room < 0 or one == OMITTED:
                shown.append(OMITTED)
                break
            shown.append(one)
        return SectionLine(f"Called {tool}{times}{': ' if shown else ''}{'; '.join(reversed(shown))}.", self.seq)


def parse_calls(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield the calls in lines of earlier summaries, oldest first: tool, times, a negative seq, and arguments.

    A line yields each of its arguments once; the first has the number of all its calls.
    """
    told = sorted((one for form in (_TOLD, _EARLIER, _EARLIER_SUM) for one in form.finditer(text)), key=_start)
    listed: Counter[str] = Counter()
    for match in told:
        seq = _start(match) - len(text)
        if match.re is _EARLIER:
            listed[match[1]] += 1
            yield match[1], 1, seq, match[2]
        elif match.re is _EARLIER_SUM or not match[3]:
            for one in match[0].removeprefix("- Called ").removesuffix(".").split(", "):
                tool, _, times = one.partition(" and ")[0].partition(" x")
                if count := int(times or 1) - listed.pop(tool, 0):
                    yield tool, count, seq, ""
        else:
            for number, one in enumerate(match[3].split("; ")):
                yield match[1], 0 if number else int(match[2] or 1), seq, one


def _start(match: re.Match[str]) -> int:
    return match.start()


def plain_arguments(arguments: Mapping[str, Json]) -> str:
    """Return the plain arguments of a call, as the agent wrote them, on one line without a semicolon."""
    given = {name: value for name, value in arguments.items() if isinstance(value, str | int | float)}
    plain = [f"{name} {' '.join(str(value).split())}" for name, value in given.items() if value not in ("", False)]
    return shorten(", ".join(plain), ARGUMENTS_CHARS_MAX).replace("; ", ", ")


def _join(last: str, following: str) -> str | None:
    """Return both arguments as one range; None if they are not successive numbers of the same thing."""
    ours, theirs = _NUMBERED.fullmatch(last), _NUMBERED.fullmatch(following)
    if ours is None or theirs is None or ours[1] != theirs[1]:
        return None
    end = ours[3] or ours[2]
    if int(theirs[2]) != int(end) + 1 or any(len(one) > 1 and one[0] == "0" for one in (ours[2], theirs[2])):
        return None
    return f"{ours[1]}{ours[2]} to {theirs[3] or theirs[2]}"
