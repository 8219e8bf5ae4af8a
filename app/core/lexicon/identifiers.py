"""The names in a text that an agent is likely to use again: paths, addresses, definitions, identifiers, numbers.

In recorded coding sessions, the part of an evicted result that is needed later is nearly always one of these: paths
most of all, then names that the result defines.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from app.core.lexicon.escapes import unescaped
from app.core.lexicon.noise import folders, is_folder, is_noise, is_prose, quoted, unnumbered
from app.core.lexicon.patterns import SPACES, Pattern
from app.core.lexicon.pieces import pieces

_ADDRESS: Final = rf"https?://[^{SPACES}\"'<>)\]]+"
# The others begin at the start of a word (a path, at the start of its characters), which is checked once for all.
# A run is possessive if the character after it cannot be part of it: a word that is not a name is then read once.
_START: Final = r"(?=[\w.@~/-])"
_ORDINARY: Final = r"[A-Za-z][a-z]*+(?<![a-f]{7})(?![\w./@:-])"
"""A word with which no name begins."""
_PATH: Final = r"(?<![.@-])(?:~?/?[\w.@-]++/)+[\w.@-]+"  # import paths too; tried once for each run of such characters
_UUID: Final = r"(?:\d{4}-\d\d-\d\d-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"  # also after a date
_TIME: Final = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?"
_HASH: Final = r"[0-9a-f]{7,40}+\b"
_CODE: Final = r"[A-Z]{1,10}-?\d[A-Z0-9]{2,20}\b"  # ticket, order and flight numbers
_DOTTED: Final = r"[A-Za-z_]\w*+(?:\.[A-Za-z_]\w*+)+"
_CASED: Final = (  # camelCase and snake_case: the first letters end at a capital or an underscore
    r"(?=[A-Za-z][a-z]*+[A-Z_])[A-Za-z]+(?:[A-Z][a-z0-9]+|_[A-Za-z0-9]+)\w*\b"
)
_VERSION: Final = r"v?\d++(?:\.\d+)+\b"  # and decimals
_NUMBER: Final = r"\d{4,}+\b"
_ADDRESS_IN_WORD: Final = Pattern(r"\whttps?://")


class Names:
    """The names of some kinds, given as patterns, and addresses."""

    def __init__(self, *kinds: str) -> None:
        any_kind = "|".join(kinds)
        self.anywhere = Pattern(rf"{_ADDRESS}|(?<!\w){_START}(?:{any_kind})")
        # A name always follows a character that is not part of a word: searching for that skips most of the text.
        self._after_boundary = Pattern(rf"\W{_START}(?!{_ORDINARY})({_ADDRESS}|{any_kind})")

    def findall(self, text: str) -> list[str]:
        """Return the names in a text in order, the same as `anywhere` finds. Takes time linear in the text."""
        if "://" in text and _ADDRESS_IN_WORD.findall(text):
            return self.anywhere.findall(text)
        return self._after_boundary.findall(f" {text}")


NAME: Final = Names(_PATH, _UUID, _HASH, _DOTTED, _CASED, _NUMBER)
NAME_OR_CODE: Final = Names(_PATH, _UUID, _TIME, _HASH, _CODE, _DOTTED, _CASED, _VERSION, _NUMBER)
"""Also the keys that people use in lookups: ids, dates, ticket numbers, versions."""
DEFINITION: Final = Pattern(
    r"\b(?:func(?: \([^)]{0,200}\))?|type|def|class|const|var|let|interface|struct|enum|fn|function)"
    rf"[{SPACES}]+([A-Za-z_]\w+)"
)
NAME_CHARS_MAX: Final = 200


def identifiers(text: str) -> Mapping[str, int]:
    """Return the distinct names in a text with their number of occurrences, in the text's order. Takes linear time.

    Uninformative names (`noise`) and line numbers of listings are left out.
    """
    counts: Counter[str] = Counter()
    for piece in map(unescaped, pieces(text)):
        counts.update(NAME.findall(unnumbered(piece)))
    names = {name: count for name, count in counts.items() if len(name) <= NAME_CHARS_MAX and not is_noise(name)}
    doubtful = [name for name in names if "/" in name and is_prose(name)]
    known = folders(names) if doubtful else frozenset()
    marked = frozenset(quoted(text)) if doubtful else frozenset()
    for name in doubtful:
        if name not in marked and not is_folder(name, known):
            del names[name]
    return names


def ranked(names: Mapping[str, int], text: str) -> Sequence[str]:
    """Return the names of a text, as `identifiers` returns them, the likeliest to be used again first.

    Paths and addresses come first, then names that the text defines, repeated names, all others, each in its order.
    """
    defined: set[str] = set()
    for piece in map(unescaped, pieces(text)):
        defined.update(DEFINITION.findall(piece))
    ranks: tuple[list[str], ...] = ([], [], [], [])
    for name, count in names.items():
        ranks[0 if "/" in name else 1 if name in defined else 2 if count > 1 else 3].append(name)
    return tuple(chain.from_iterable(ranks))


def choose(names: Iterable[str], seen: Collection[str], chars_max: int) -> tuple[str, ...]:
    """Return the names that are not in `seen`, in order, as far as they fit `chars_max` with a space between them."""
    picked: list[str] = []
    room = chars_max
    for name in names:
        if len(name) < room and name not in seen:
            picked.append(name)
            room -= len(name) + 1
    return tuple(picked)
