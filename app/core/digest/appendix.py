"""A digest written down for a model: the part of a summary that is mechanical, and never left to a model.

What must not be lost comes first; then a little of each list, the newest of it; and all the room that is left goes to
the names that are likeliest to be used again, a name that is already part of the text not being repeated.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.digest.packing import Packing
from app.core.digest.record import Command, Digest, Search
from app.core.digest.sentences import shortened
from app.core.tokens.counter import Counter, TextKind

FOUND_SHOWN: Final = 3
REPLACEMENT_CHARS: Final = 120
PASSES: Final = 4

READ_FILES_TRIED: Final = 100
LEAST: Final = 1e-9
"""What a name is worth that no weight is known of."""

_SHARES: Final = {
    "hidden": 0.15,
    "artifacts": 0.15,
    "errors": 0.04,
    "commands": 0.08,
    "searches": 0.03,
    "outputs": 0.04,
}
"""Of what must not be lost leaves, the most that each list may take; names take the rest."""
_ORDER: Final = (
    "constraints",
    "modified-files",
    "read-files",
    "artifacts",
    "hidden",
    "outputs",
    "searches",
    "commands",
    "errors",
    "identifiers",
)

_TAGS: Final = re.compile(rf"</?(?:{'|'.join(_ORDER)})>", re.I)

Measure = Callable[[str], int]


def appendix(digest: Digest, counter: Counter, tokens: int, beside: str = "") -> str:
    """The digest as sections in tags, in at most `tokens` tokens by the counter's estimator, empty ones left out.

    All constraints, the directives at their end, and all modified files are in it, whatever else is; only where they
    alone exceed `tokens` are the oldest constraints and the least used files left out, and their number is named. What
    stands in `beside` (the summary's own words, which are shown with this) is not repeated: neither its constraints nor
    its names.
    """
    room = tokens
    for _ in range(PASSES):
        text = _written(digest, _measure(counter), room, beside)
        excess = _measure(counter)(text) - tokens
        if excess <= 0:
            return text
        # A tokenizer may count two texts as more together than apart.
        room -= excess + 8
    return ""


def _measure(counter: Counter) -> Measure:
    # As the message that it is sent in is counted. By OpenAI's tokenizer such a summary is as dense as prose.
    return lambda text: counter.estimator.count(text, TextKind.PROSE)


@dataclass(slots=True)
class _Page:
    measure: Measure
    room: int
    sections: dict[str, str]

    def add(self, tag: str, lines: Sequence[str], most: int, order: Callable[[str], str] | None = None) -> int:
        """Add as many of the last lines as fit `most` tokens; return how many."""
        low, high = 0, len(lines)
        while low < high:
            middle = (low + high + 1) // 2
            if self.measure(_section(tag, lines[-middle:])) <= min(most, self.room):
                low = middle
            else:
                high = middle - 1
        if low:
            chosen = lines[-low:]
            self.sections[tag] = _section(tag, sorted(chosen, key=order) if order else chosen)
            self.room -= self.measure(self.sections[tag])
        return low

    def add_all(self, tag: str, lines: Sequence[str], most: int, order: Callable[[str], str] | None = None) -> None:
        """Add every line; where they do not fit, the last of them and the number of the others."""
        if not lines or self.measure(_section(tag, lines)) <= min(most, self.room):
            self.add(tag, lines, most, order)
            return
        note = f"(and {len(lines)} others)"
        left = self.measure(note) + 1
        fitting = self.add(tag, lines, min(most, self.room) - left, order)
        if fitting:
            shown = self.sections[tag].splitlines()[1:-1]
            self.room += self.measure(self.sections[tag])
            self.sections[tag] = _section(tag, (*shown, f"(and {len(lines) - fitting} others)"))
            self.room -= self.measure(self.sections[tag])

    @property
    def text(self) -> str:
        return "".join(self.sections[tag] for tag in _ORDER if tag in self.sections).rstrip("\n")


def _section(tag: str, lines: Sequence[str]) -> str:
    # A line of tool output that closes its section would speak as if it stood outside.
    return "\n".join(
        (f"<{tag}>", *(_TAGS.sub("[tag]", " ".join(line.splitlines())) for line in lines), f"</{tag}>", "")
    )


def _written(digest: Digest, measure: Measure, tokens: int, beside: str) -> str:
    page = _Page(measure, tokens, {})
    rules = [f"- {rule}" for rule in (*digest.constraints, *digest.directives) if rule not in beside]
    # Where not both fit, neither takes all.
    modified = _by_weight(digest, _distinct(digest.files_modified))
    files = measure(_section("modified-files", modified)) if modified else 0
    page.add_all("constraints", rules, max(tokens - files, tokens * 3 // 10))
    page.add_all("modified-files", modified, tokens, order=str)
    rest = page.room
    lists = {
        "hidden": [f"seq {seq}: {shortened(text, REPLACEMENT_CHARS)}" for seq, text in digest.hidden],
        "artifacts": [f"{a.path} ({f'{a.mime}, ' if a.mime else ''}seq {a.seq})" for a in digest.artifacts],
        "errors": digest.errors,
        "commands": [_command(command) for command in digest.commands],
        "searches": [_search(search) for search in digest.searches],
        "outputs": _outputs(digest),
    }
    for tag, lines in lists.items():
        page.add(tag, lines, int(rest * _SHARES[tag]))
    _add_names(digest, page, beside)
    return page.text


def _by_weight(digest: Digest, files: Sequence[str]) -> Sequence[str]:
    """The files, the likeliest to be used again last."""
    weights = dict(digest.identifiers)
    return sorted(files, key=lambda path: weights.get(path, 0.0))


def _distinct(files: Sequence[str]) -> Sequence[str]:
    """The files without those whose path is the end of another's: they stand verbatim within it."""
    ends = {file[at + 1 :] for file in files for at, char in enumerate(file) if char == "/"}
    return [file for file in files if file not in ends]


def _command(command: Command) -> str:
    return f"[{command.state}] {command.text}"


def _search(search: Search) -> str:
    found = f": {', '.join(search.found[:FOUND_SHOWN])}" if search.found else ""
    return f"{search.tool} {search.query}: {search.hits} lines{found}"


def _outputs(digest: Digest) -> Sequence[str]:
    counts = [f"{o.tool} x{o.results}{f' ({o.errors} errors)' if o.errors else ''}" for o in digest.outputs if o.tool]
    return [", ".join(counts)] if counts else []


def _add_names(digest: Digest, page: _Page, beside: str) -> None:
    """Fill the page with the names that are worth most for their length; those of files read under their own tag."""
    read, names = frozenset(digest.files_read), dict(digest.identifiers)
    # A file that is no longer among the best names comes behind them, the newest first.
    worth = dict(digest.identifiers) | {
        path: LEAST for path in digest.files_read[: -READ_FILES_TRIED - 1 : -1] if path not in names
    }
    sample = " ".join(worth)
    chars = page.room * len(sample) // max(1, page.measure(sample))
    packing = Packing(worth, f"{beside}\n{page.text}", read)
    while chars > 0:
        chosen = packing.best(chars)
        files = sorted(name for name in chosen if name in read)
        others = " ".join(name for name in chosen if name not in read)
        sections = {"read-files": files, "identifiers": [others] if others else []}
        texts = {tag: _section(tag, lines) for tag, lines in sections.items() if lines}
        excess = page.measure("".join(texts.values())) - page.room
        if excess <= 0:
            page.sections |= texts
            return
        chars -= max(1, excess * len(sample) // max(1, page.measure(sample)))
