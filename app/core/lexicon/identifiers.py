"""Identifiers in text: their patterns and pieces, and the words that look like identifiers but name nothing.

It also has the names of arguments that are known to hold files or addresses, and that of the recall tool.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

SPACES: Final = r"\s\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
r"""The characters that `\s` matches, for use inside brackets; `\s` alone finds less in ASCII text."""
_FOREIGN: Final = re.compile(r"[\x80-\U0010ffff](?<=\w)")
"""A letter or digit that is not ASCII: arrows, dashes and the like do not matter."""


class Pattern:
    r"""A regular expression with `\w`, `\d` and `\b`, but without `\s` (see SPACES)."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._any = re.compile(pattern)
        self._ascii = re.compile(pattern, re.ASCII)

    def findall(self, text: str) -> list[str]:
        """Return the matches of the pattern's group in the text, or of the whole pattern if it has none, in order."""
        plain = text.isascii() or _FOREIGN.search(text) is None
        found: list[str] = (self._ascii if plain else self._any).findall(text)
        return found


PIECE_CHARS: Final = 65_536
"""The slowest pattern here takes some tens of milliseconds for this much."""
_SPACES: Final = ("\n", " ", "\t")


def pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARS, cut after a line break, else after a space, else anywhere."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        limit = start + PIECE_CHARS
        end = next((at + 1 for space in _SPACES if (at := text.rfind(space, start, limit)) >= 0), limit)
        yield text[start:end]
        start = end
    yield text[start:]


# No two of them match a common character, and each begins with a literal character, which a search finds fast.
_COLOUR: Final = r"\x1b\[[0-9;]*[A-Za-z]"
_BACKSLASH: Final = (
    r"\\(?<!\\\\)\\*+(?:(?:e|x1b|033|u001b)\[[0-9;]*[A-Za-z]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abefnrtv])"
)
_LINE_BREAK: Final = r"%n(?=[A-Z])"  # of a format string
_BY_START: Final = tuple((s, re.compile(p)) for s, p in (("\x1b", _COLOUR), ("\\", _BACKSLASH), ("%n", _LINE_BREAK)))
_WINDOWS_PATH: Final = r"(?P<path>(?<![A-Za-z0-9])[A-Za-z]:\\{1,4}(?=[\w.])(?:[\w.@~-]+\\{0,4})+)"
"""`C:\\new\\table` holds no escapes. Most colons before a backslash do not begin such a path: they end a word."""
_DRIVE: Final = re.compile(r":\\(?<=[A-Za-z]:\\)(?<![A-Za-z0-9][A-Za-z]:\\)")
_ESCAPE_OR_PATH: Final = re.compile("|".join((_WINDOWS_PATH, _COLOUR, _BACKSLASH, _LINE_BREAK)))


def unescaped(text: str) -> str:
    r"""Return the text with each escape sequence replaced by a space: `a\nTo` becomes `a To`. Takes linear time.

    A path with a drive letter is unchanged.
    """
    if _DRIVE.search(text):
        return _ESCAPE_OR_PATH.sub(lambda found: found[0] if found["path"] else " ", text)
    for start, escape in _BY_START:
        if start in text:
            text = escape.sub(" ", text)
    return text


_ROOTS: Final = (
    "Array Boolean Buffer Collections Date Error JSON Map Math Number Object Promise Reflect Set String Symbol"
    " System argparse asyncio atomic bufio bytes collections console context contextlib dataclasses datetime"
    " document encoding errors exec filepath flag fmt fs functools http importlib inspect io ioutil itertools json"
    " logging maps math module net os path pathlib pprint process random re reflect regexp runtime shutil slices"
    " slog sort std strconv string strings subprocess sync sys testing textwrap threading time traceback typing"
    " unicode unittest url utf8 util window"
)
ROOTS: Final = frozenset(_ROOTS.split())
"""Modules and objects that come with languages."""
_PACKAGES_WORDS: Final = (
    "archive bufio compress container crypto database encoding go hash html internal io log math mime net os path"
    " runtime sync testing text unicode"
)
_PACKAGES: Final = frozenset(_PACKAGES_WORDS.split())
"""First parts of import paths in Go's standard library, which have no dot."""
_EXTENSIONS_WORDS: Final = (
    "bash c cc cfg conf cpp cs css csv go gradle h hpp html ini java jl js json jsonl jsx kt lua md mjs mod php"
    " png proto py rb rs rst scala sh sql svg swift toml ts tsx txt vue xml yaml yml zig"
)
_EXTENSIONS: Final = frozenset(_EXTENSIONS_WORDS.split())
_WORDS: Final = re.compile(r"(?:[A-Z]?[a-z]{1,20}|[A-Z]{1,8})(?:/(?:[A-Z]?[a-z]{1,20}|[A-Z]{1,8})){1,4}")
"""Words with slashes between them: `and/or` as well as `cmd/server`."""
_QUOTED: Final = re.compile(r"[\"'`]([A-Za-z]{1,20}(?:/[A-Za-z]{1,20}){1,4})[\"'`]")
_LETTERS: Final = re.compile(r"[A-Za-z](?:\.[A-Za-z])+")
_RECEIVER: Final = re.compile(r"[A-Za-z_]\.[A-Za-z_]\w*")
"""A field of a variable with one letter."""
_BUILT_IN: Final = re.compile(r"__\w{2,20}__|TODO_?\w?|utf_?8|tool_use_error|system-reminder", re.I)

_GUTTER: Final = re.compile(
    r"\n(?: {1,8}\d{1,7}\t|[ >]{0,8}(?:\d{1,7}→|\d{1,5}[|:-](?!\d))| {1,8}\d{1,7} (?=[\w./~])"
    r"|@@ -[\d,]{1,20} \+[\d,]{1,20} @@[^\n]*"
    r"|index [0-9a-f]{7,40}\.\.[0-9a-f]{7,40}(?: \d{6})?$|(?:new|deleted) file mode \d{6}$)",
    re.M,
)
"""Numbers of lines, counts of them with the code that git cuts off, and hashes and modes in a diff, after a line break,
which is found faster than a beginning of a line."""
_PLACE: Final = re.compile(r"(?P<file>\.[A-Za-z]\w{0,5})[:-]\d{1,7}(?:[:-]\d{1,5})?(?=[:\s)\]-]|$)", re.M)
"""A place in a file, as compilers and `grep -n` print it."""
_HAS_NUMBERS: Final = (re.compile(r"[\t→|:-](?<=\d.)"), re.compile(r"\n(?: {1,8}\d|@@|index )"))


def unnumbered(text: str) -> str:
    """Return the text without line numbers in listings, in the output of searches and in messages of compilers."""
    after_break = f"\n{text}"
    if not any(pattern.search(after_break) for pattern in _HAS_NUMBERS):
        return text
    return _PLACE.sub(r"\g<file> ", _GUTTER.sub("\n", after_break)[1:])


NAMES_CACHED: Final = 16_384
"""Number of names whose noise is known: the texts of a session repeat most of theirs."""


@lru_cache(maxsize=NAMES_CACHED)
def is_noise(name: str) -> bool:
    """Return whether the form of a name alone shows that it is uninformative."""
    if "/" in name:
        parts = name.split("/")
        return not any(map(str.isalpha, name)) or (parts[0] in _PACKAGES and len(parts) == 2 and parts[1].isalnum())
    if "." not in name:
        return _BUILT_IN.fullmatch(name) is not None
    root, _, rest = name.partition(".")
    if rest in _EXTENSIONS:
        return len(name) < 4
    return root in ROOTS or bool(_LETTERS.fullmatch(name) or _RECEIVER.fullmatch(name))


def is_prose(name: str) -> bool:
    """Return whether a name may be words with slashes between them, which is a path only if something else shows it."""
    return _WORDS.fullmatch(name) is not None


def quoted(text: str) -> Iterator[str]:
    """Yield the words with slashes between them that are in quotation marks: branches, folders, keys."""
    if "/" in text:
        yield from _QUOTED.findall(text)


def folders(names: Iterable[str]) -> frozenset[str]:
    """Return all runs of adjacent parts in the paths among the names, at most four long, that prose would not have."""
    found: set[str] = set()
    for name in names:
        if "/" in name and not is_prose(name) and "://" not in name:
            parts = name.split("/")
            for at in range(len(parts)):
                found.update("/".join(parts[at : at + length]) for length in (2, 3, 4) if at + length <= len(parts))
    return frozenset(found)


def is_folder(name: str, known: frozenset[str]) -> bool:
    """Return whether a path of words occurs in one of the `known` folders, or begins like one."""
    parts = name.split("/")
    return "/".join(parts[:4]) in known or (len(parts) > 2 and "/".join(parts[:2]) in known)


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
_FILE: Final = rf"\.?\w{{1,60}}+(?:[.-]\w{{1,60}}+){{0,6}}?\.(?:{'|'.join(sorted(_EXTENSIONS))})\b(?![.-]\w)"
"""A file's name, whose first letters and words a part of a dotted name would lack: `.golangci.yaml`, `a-b.md`."""
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


NAME: Final = Names(_PATH, _UUID, _FILE, _HASH, _DOTTED, _CASED, _NUMBER)
NAME_OR_CODE: Final = Names(_PATH, _UUID, _TIME, _FILE, _HASH, _CODE, _DOTTED, _CASED, _VERSION, _NUMBER)
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
    counts = Counter(chain.from_iterable(NAME.findall(unnumbered(unescaped(piece))) for piece in pieces(text)))
    names = {name: count for name, count in counts.items() if len(name) <= NAME_CHARS_MAX and not is_noise(name)}
    doubtful = [name for name in names if "/" in name and is_prose(name)]
    known = folders(names) if doubtful else frozenset()
    marked = frozenset(quoted(text)) if doubtful else frozenset()
    for name in doubtful:
        if name not in marked and not is_folder(name, known):
            del names[name]
    return names


def ranked(names: Mapping[str, int], text: str) -> Iterator[str]:
    """Yield the names of a text, as `identifiers` returns them, the likeliest to be used again first.

    Paths and addresses come first, then names that the text defines, repeated names, all others, each in its order.
    """
    yield from (name for name in names if "/" in name)
    defined = {name for piece in pieces(text) for name in DEFINITION.findall(unescaped(piece))}
    ranks: tuple[list[str], ...] = ([], [], [])
    for name, count in names.items():
        if "/" not in name:
            ranks[0 if name in defined else 1 if count > 1 else 2].append(name)
    yield from chain.from_iterable(ranks)


def choose(names: Iterable[str], seen: Collection[str], chars_max: int) -> tuple[str, ...]:
    """Return the names that are not in `seen`, in order, as far as they fit `chars_max` with a space between them."""
    picked: list[str] = []
    room = chars_max
    for name in names:
        if len(name) < room and name not in seen:
            picked.append(name)
            room -= len(name) + 1
            if room < 2:
                break  # not even a name of one letter fits
    return tuple(picked)


FILES: Final = ("path", "file_path", "filepath", "file", "filename", "notebook_path")
"""Arguments that hold one file."""
FILE_LISTS: Final = ("paths", "files")
ADDRESSES: Final = ("uri", "url")
OWN_TOOL: Final = "recall"
"""The recall tool. Its calls and results repeat earlier events and are therefore not indexed."""


def is_recall_tool(tool: str | None) -> bool:
    """Return whether a tool is the recall tool, also under the names of MCP clients: `mcp__palimpsest__recall`."""
    return tool is not None and re.split(r"__|[./:]", tool)[-1] == OWN_TOOL
