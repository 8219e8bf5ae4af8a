"""The appendix of a summary: a digest as tagged sections, packed into a number of tokens."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain
from typing import Final

from app.core.memory.digest.calls import by_state, next_open_last
from app.core.memory.digest.files import distinct_files, is_one_of
from app.core.memory.digest.record import Digest, Search, listed_commands
from app.core.memory.digest.sentences import shorten
from app.core.tokens.counter import Counter, TextKind

LENGTH_POWER: Final = 0.6
"""The power of its length by which a name's worth is divided. Measured: with 0.6 to 0.9, the shares of values kept are
within one percentage point of each other."""


class Packing:
    """Names with their worth. A name that occurs within a chosen name need not be chosen itself.

    So a full path includes the worth of its relative forms, and a dotted name that of its parts. `known` are the parts
    of these names and maybe of others, None if they must be found.
    """

    def __init__(self, worth: Mapping[str, float], known: Mapping[str, Sequence[str]] | None = None) -> None:
        self._worth = worth
        known = parts_of(list(worth)) if known is None else known
        self._parts = {name: [part for part in known[name] if part in worth] for name in worth}
        self._wholes: dict[str, list[str]] = {}
        for name, parts in self._parts.items():
            for part in parts:
                self._wholes.setdefault(part, []).append(name)
        self._places = {name: at for at, name in enumerate(worth)}
        self._ranked = [(-self._density(name, frozenset(), {}), at, name) for name, at in self._places.items()]
        heapify(self._ranked)
        self.chars_for_all = math.inf
        """A number of characters in which all names fit, as far as `best` has found."""
        self._all: Sequence[str] = ()

    def best(self, chars: int) -> Sequence[str]:
        """Return the best names in at most `chars` characters with a space between names, the best first."""
        if chars >= self.chars_for_all:
            return self._all
        given, left_out = chars, False
        covered: set[str] = set()
        chosen: dict[str, None] = {}
        heap, places = self._ranked.copy(), self._places
        while heap:
            rank, at, name = heappop(heap)
            if name in covered:
                continue
            parts = self._parts[name]
            cost = len(name) + 1 if len(parts) == 1 else self._cost(name, chosen)
            if cost > chars + 1:
                left_out = True
                continue
            if len(parts) > 1 and (new_rank := -self._density(name, covered, chosen)) > rank:
                # Some of its parts are covered by a name that was chosen since.
                heappush(heap, (new_rank, at, name))
                continue
            chars -= cost
            for part in parts:
                chosen.pop(part, None)
            chosen[name] = None
            covered.update(parts)
            for whole in self._wholes[name]:
                # A longer name that contains this one would replace it, so it costs less now.
                if whole not in covered:
                    heappush(heap, (-self._density(whole, covered, chosen), places[whole], whole))
        if not left_out:
            self.chars_for_all, self._all = given, list(chosen)
        return list(chosen)

    def _cost(self, name: str, chosen: Mapping[str, None]) -> int:
        """Return the characters of the name, less those of the chosen parts that it would replace."""
        replaced = [len(part) + 1 for part in self._parts[name] if part in chosen] if chosen else ()
        return len(name) + 1 - sum(replaced)

    def _density(self, name: str, covered: Set[str], chosen: Mapping[str, None]) -> float:
        worth = math.fsum([self._worth[part] for part in self._parts[name] if part not in covered])
        return worth / math.pow(max(1, self._cost(name, chosen)), LENGTH_POWER)


def parts_of(names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the parts of each name: the names that occur in it, including itself.

    Takes time linear in the number of names times their total length.
    """
    parts: Mapping[str, list[str]] = {name: [] for name in names}
    text = "\n".join(names)
    ends = list(accumulate((len(name) + 1 for name in names), initial=0))
    for part in names:
        at = text.find(part)
        while at >= 0:
            index = bisect_right(ends, at) - 1
            if at + len(part) < ends[index + 1]:  # it does not reach into the next name
                parts[names[index]].append(part)
                at = text.find(part, ends[index + 1])
            else:
                at = text.find(part, at + 1)
    return parts


FOUND_SHOWN: Final = 3
REPLACEMENT_CHARS: Final = 120
PASSES: Final = 4
SPARE: Final = 16
"""Tokens that may stay empty."""

READ_FILES_TRIED: Final = 100
REQUESTS_SHARE: Final = 0.5
"""The maximum share of the room for the user's requests, which are shortened to it."""
REQUEST_CHARS_MIN: Final = 40
NAMES_PASSES: Final = 8
NAMES_SPARE: Final = 0.01
"""The number of attempts to choose names, and the share of their room that may stay empty."""
UNKNOWN_WORTH: Final = 1e-9
"""The worth of a name whose weight is unknown."""

_SMALL_SHARES: Final = {"repository": 0.06, "errors": 0.04, "commands": 0.02, "searches": 0.01}
_SHARES: Final = {"hidden": 0.15, "artifacts": 0.15, **_SMALL_SHARES}
"""The maximum share of each list in the room left after constraints and modified files; names take the rest."""
TASKS_SHARE: Final = 0.2
TASKS_LIMIT_MIN: Final = 320
"""The maximum share of the same room for the agent's tasks, and the size below which that maximum never falls."""
_LEAST_TOKENS: Final = {"repository": 80, "commands": 100}
"""The minimum room in a small appendix, for a few commits and for the newest run of every check, failures first."""
REQUESTS: Final = "earlier-requests"
FORMER_REQUESTS: Final = "requests"
"""The name of that section in summaries of commits between 0.3.0 and 0.4.0, which stored calls still show."""
TAGS: Final = (
    *(FORMER_REQUESTS, REQUESTS, "constraints", "tasks", "modified-files", "read-files", "artifacts", "hidden"),
    *("searches", "repository", "commands", "errors", "identifiers"),
)
"""The sections of an appendix, in their order."""

REMOVED_MARK: Final = " (removed)"
"""The mark of a modified file that a command removed or moved away."""

_TAG: Final = re.compile(rf"</?(?:{'|'.join(TAGS)})>", re.I)

Measure = Callable[[str], int]
Order = Callable[[str], str | int]


class Appendix:
    """The appendix of a digest: its non-empty parts as tagged sections, in any number of tokens by `measure`."""

    def __init__(self, digest: Digest, measure: Measure) -> None:
        self._digest = digest
        self._measure = measure
        self._names = _Names(digest)

    def write(self, tokens: int, other_text: str = "") -> str:
        """Write the appendix in at most `tokens` tokens.

        `other_text` is the rest of the summary; requests, constraints and names that occur in it are not repeated,
        except read files. Requests come first, shortened to their share if necessary, then all constraints, with the
        directives at their end, and all modified files. Only if these do not fit into the rest are the oldest
        constraints and the least used files replaced by their number.
        """
        room, best = tokens, ""
        for _ in range(PASSES):
            page = self.page(room, other_text)
            text = page.text
            excess = self._measure(text) - tokens
            if excess <= 0 and len(text) > len(best):
                best = text
            if not text or (excess <= 0 and (excess >= -SPARE or page.is_whole)):
                break
            # A tokenizer may count two joined texts as more, or as less, than the two apart.
            room -= excess + SPARE // 2
        return best

    def requests_tokens(self, other_text: str) -> int:
        """Return the size at which an appendix can hold, in their share, all requests it must repeat; 0 if none."""
        missing = _missing_requests(self._digest, other_text)
        section = _section(REQUESTS, [f"- {request}" for request in missing])
        return math.ceil(self._measure(section) / REQUESTS_SHARE) if missing else 0

    def page(self, tokens: int, other_text: str = "") -> "Page":
        """Write the sections in about `tokens` tokens."""
        digest, page = self._digest, Page(self._measure, tokens)
        _add_requests(digest, page, other_text)
        other_text += page.text
        rules = [f"- {rule}" for rule in (*digest.constraints, *digest.directives) if rule not in other_text]
        # If constraints and modified files do not both fit, neither takes all the room.
        modified = _modified(digest)
        files_tokens = self._measure(_section("modified-files", modified)) if modified else 0
        page.add_all("constraints", rules, max(tokens - files_tokens, tokens * 3 // 10))
        page.add_all("modified-files", modified, tokens, order=str)
        rest = page.room
        # Only the last lines are kept if not all fit, so the next open task comes last; the page sorts by `order`.
        tasks = by_state(digest.tasks)
        order = [task.line for task in tasks].index
        task_lines = [task.line for task in next_open_last(tasks)]
        page.add_all("tasks", task_lines, max(int(rest * TASKS_SHARE), TASKS_LIMIT_MIN), order)
        lists = {
            "hidden": [shorten(text, REPLACEMENT_CHARS) for _, text in digest.hidden],
            "artifacts": [f"{a.path} ({a.mime})" if a.mime else a.path for a in digest.artifacts],
            "repository": digest.made,
            "errors": digest.errors,
            "commands": listed_commands(digest, other_text),
            "searches": [_search(search) for search in digest.searches if search.hits],
        }
        for tag, lines in lists.items():
            shown = page.add(tag, lines, max(int(rest * _SHARES[tag]), _LEAST_TOKENS.get(tag, 0)))
            if tag == "repository" and 0 < shown < len(lines):
                page.add_first(tag, f"({len(lines) - shown} earlier line{'s' * (len(lines) - shown > 1)} left out)")
        self._names.add_to(page, other_text)
        return page


def _missing_requests(digest: Digest, other_text: str) -> Sequence[str]:
    words = " ".join(other_text.split())
    return [request for request in digest.requests if request not in words]


def prose_measure(counter: Counter) -> Measure:
    """Return a function that counts the tokens of a text in a summary; repeated texts are counted once."""
    # The message that carries a summary is counted as prose; by OpenAI's tokenizer a summary is as dense as prose.
    return cache(lambda text: counter.estimator.count(text, TextKind.PROSE))


@dataclass(slots=True)
class Page:
    """The sections written so far, by tag, and the `room` left for more, in tokens.

    `is_whole`: nothing was left out or shortened, so a page with more room is the same.
    """

    measure: Measure
    room: int
    sections: dict[str, str] = field(default_factory=dict)
    is_whole: bool = True

    def add(self, tag: str, lines: Sequence[str], limit: int, order: Order | None = None) -> int:
        """Add as many of the last lines as fit `limit` tokens, sorted by `order` if given; return their number."""
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high + 1) // 2
            if self.measure(_section(tag, lines[-middle:])) <= min(limit, self.room):
                low = middle
            else:
                high = middle - 1
        self.is_whole = self.is_whole and low == len(lines)
        if low:
            chosen = lines[-low:]
            self.sections[tag] = _section(tag, sorted(chosen, key=order) if order else chosen)
            self.room -= self.measure(self.sections[tag])
        return low

    def add_all(self, tag: str, lines: Sequence[str], limit: int, order: Order | None = None) -> None:
        """Add every line; if they do not fit, add the last ones and the number of the others."""
        if not lines or self.measure(_section(tag, lines)) <= min(limit, self.room):
            self.add(tag, lines, limit, order)
            return
        note = f"(and {len(lines)} others)"
        note_tokens = self.measure(note) + 1
        fitting = self.add(tag, lines, min(limit, self.room) - note_tokens, order)
        if fitting:
            shown = self.sections[tag].splitlines()[1:-1]
            self.room += self.measure(self.sections[tag])
            self.sections[tag] = _section(tag, (*shown, f"(and {len(lines) - fitting} others)"))
            self.room -= self.measure(self.sections[tag])

    def add_first(self, tag: str, line: str) -> None:
        """Add a line before the others of a section, even if there is no room for it."""
        section = self.sections[tag].replace(f"<{tag}>\n", f"<{tag}>\n{line}\n", 1)
        self.room += self.measure(self.sections[tag]) - self.measure(section)
        self.sections[tag] = section

    @property
    def text(self) -> str:
        """The sections in the order of TAGS."""
        return "".join(self.sections[tag] for tag in TAGS if tag in self.sections).rstrip("\n")


def _section(tag: str, lines: Sequence[str]) -> str:
    return "\n".join((f"<{tag}>", *map(_escape_tags, lines), f"</{tag}>", ""))


@lru_cache(maxsize=4_096)
def _escape_tags(line: str) -> str:
    """Return a line made safe for a section; cached, since the same lines are tried in sections of several lengths."""
    # A line of tool output that closed its section would be read as text outside it.
    return _TAG.sub("[tag]", " ".join(line.splitlines()))


def _add_requests(digest: Digest, page: Page, other_text: str) -> None:
    """Add the requests that the summary lacks, the longest shortened until all fit their share."""
    missing = _missing_requests(digest, other_text)
    limit = int(page.room * REQUESTS_SHARE)
    chars = max(map(len, missing), default=0)
    lines = [f"- {request}" for request in missing]
    while chars > REQUEST_CHARS_MIN and page.measure(_section(REQUESTS, lines)) > min(limit, page.room):
        chars, page.is_whole = chars * 3 // 4, False
        lines = [f"- {shorten(request, chars)}" for request in missing]
    page.add(REQUESTS, lines, limit)


def _modified(digest: Digest) -> Sequence[str]:
    """Return the modified files, the removed ones marked, sorted so that the likeliest to be used again comes last."""
    weights = dict(digest.identifiers)
    files = sorted(distinct_files(digest.files_modified), key=lambda path: weights.get(path, 0.0))
    return [f"{path}{REMOVED_MARK}" if is_one_of(path, digest.files_removed) else path for path in files]


def _search(search: Search) -> str:
    found = f": {', '.join(search.found[:FOUND_SHOWN])}" if search.found else ""
    return f"{search.tool} {search.query}: {search.hits} lines{found}"


def _in_order(names: Sequence[str]) -> Sequence[str]:
    """Sort names, given the best first, for a reader: paths first, related names next to each other.

    The better half comes before the other, since a context that lacks room cuts the end.
    """
    half = (len(names) + 1) // 2
    halves = (sorted(some, key=lambda name: ("/" not in name, name.lower())) for some in (names[:half], names[half:]))
    return list(chain.from_iterable(halves))


class _Names:
    """The names of a digest with their worth, and the packings of those that a page lacks."""

    def __init__(self, digest: Digest) -> None:
        self._read = frozenset(digest.files_read)
        names = dict(digest.identifiers)
        # A read file that is no longer among the best names comes after them, the newest first.
        read = digest.files_read[: -READ_FILES_TRIED - 1 : -1]
        self._worth = names | {path: UNKNOWN_WORTH for path in read if path not in names}
        self._sample = " ".join(self._worth)
        self._parts = parts_of(list(self._worth))
        self._packings: dict[str, Packing] = {}

    def _packing(self, before: str) -> Packing:
        """Return a packing of all read files, and of the other names that do not occur in `before`."""
        if before not in self._packings:
            worth = {name: worth for name, worth in self._worth.items() if name in self._read or name not in before}
            self._packings[before] = Packing(worth, self._parts)
        return self._packings[before]

    def add_to(self, page: Page, other_text: str) -> None:
        """Fill the page with the names worth most for their length; read files get a section of their own."""
        size, size_tokens = len(self._sample), max(1, page.measure(self._sample))
        chars = page.room * size // size_tokens
        packing = self._packing(f"{other_text}\n{page.text}")
        best: dict[str, str] = {}
        is_whole = not self._worth
        for number in range(NAMES_PASSES):
            if chars <= 0:
                break
            chosen = packing.best(chars)
            files = sorted(name for name in chosen if name in self._read)
            others = " ".join(_in_order([name for name in chosen if name not in self._read]))
            sections = {"read-files": files, "identifiers": [others] if others else []}
            texts = {tag: _section(tag, lines) for tag, lines in sections.items() if lines}
            taken = page.measure("".join(texts.values()))
            if taken <= page.room and len("".join(texts.values())) > len("".join(best.values())):
                best = texts
            spare = page.room - taken
            has_all = spare >= 0 and chars >= packing.chars_for_all
            is_whole = is_whole or (has_all and number == 0)
            if has_all or (best and 0 <= spare <= page.room * NAMES_SPARE):
                break
            chars += spare * size // size_tokens or -1
        page.sections |= best
        page.is_whole = page.is_whole and is_whole
