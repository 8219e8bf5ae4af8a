"""The names in a text that an agent is likely to use again: paths, addresses, definitions, identifiers, numbers.

In recorded coding sessions, what is needed later of an evicted result is nearly always one of these: paths most of all,
then names that the result defines.
"""

import re
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Final

from app.core.lexicon.escapes import unescaped
from app.core.lexicon.pieces import pieces

_ADDRESS: Final = r"https?://[^\s\"'<>)\]]+"
_PATH: Final = r"(?<![\w.@-])(?:~?/?[\w.@-]+/)+[\w.@-]+"  # import paths too; tried once a run of such characters
_UUID: Final = r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
_TIME: Final = r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?"
_HASH: Final = r"\b[0-9a-f]{7,40}\b"
_CODE: Final = r"\b[A-Z]{1,10}-?\d[A-Z0-9]{2,20}\b"  # ticket, order and flight numbers
_DOTTED: Final = r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
_CASED: Final = r"\b[A-Za-z]+(?:[A-Z][a-z0-9]+|_[A-Za-z0-9]+)\w*\b"  # camelCase and snake_case
_VERSION: Final = r"\bv?\d+(?:\.\d+)+\b"  # and decimals
_NUMBER: Final = r"\b\d{4,}\b"

NAME: Final = re.compile("|".join((_ADDRESS, _PATH, _HASH, _DOTTED, _CASED, _NUMBER)))
NAME_OR_CODE: Final = re.compile(
    "|".join((_ADDRESS, _PATH, _UUID, _TIME, _HASH, _CODE, _DOTTED, _CASED, _VERSION, _NUMBER))
)
"""Also what people look things up by: ids, dates, ticket numbers, versions."""
DEFINITION: Final = re.compile(
    r"\b(?:func(?: \([^)]{0,200}\))?|type|def|class|const|var|let|interface|struct|enum|fn|function)\s+([A-Za-z_]\w+)"
)
NAME_CHARS_MAX: Final = 200


def identifiers(text: str) -> Mapping[str, int]:
    """The distinct names in a text with their ranks: 0 path or address, 1 defined, 2 repeated, 3 other.

    The best rank comes first, names of one rank in the text's order. Takes time linear in the text.
    """
    defined: set[str] = set()
    counts: dict[str, int] = {}
    for piece in map(unescaped, pieces(text)):
        defined.update(DEFINITION.findall(piece))
        for name in NAME.findall(piece):
            if len(name) <= NAME_CHARS_MAX:
                counts[name] = counts.get(name, 0) + 1
    ranks = [(name, _rank(name, count, defined)) for name, count in counts.items()]
    return dict(sorted(ranks, key=itemgetter(1)))


def _rank(name: str, count: int, defined: Collection[str]) -> int:
    if "/" in name:
        return 0
    if name in defined:
        return 1
    return 2 if count > 1 else 3


def choose(names: Mapping[str, int], seen: Collection[str], chars_max: int) -> tuple[str, ...]:
    """The names that are not in `seen`, in order, as far as they fit `chars_max` with a space between them."""
    picked: list[str] = []
    room = chars_max
    for name in names:
        if len(name) < room and name not in seen:
            picked.append(name)
            room -= len(name) + 1
    return tuple(picked)
