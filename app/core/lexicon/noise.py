"""Uninformative names: of standard libraries, abbreviations, alternatives in prose, and line numbers."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

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
_BUILT_IN: Final = re.compile(r"__\w{2,20}__|TODO_?\w?|utf_?8", re.I)

_GUTTER: Final = re.compile(
    r"^(?: {1,8}\d{1,7}\t|[ >]{0,8}(?:\d{1,7}→|\d{1,5}[|:-](?!\d))| {1,8}\d{1,7} (?=[\w./~])"
    r"|@@ -[\d,]{1,20} \+[\d,]{1,20} @@)",
    re.M,
)
"""Numbers of lines, and counts of them, at the beginning of a line."""
_PLACE: Final = re.compile(r"(?P<file>\.[A-Za-z]\w{0,5})[:-]\d{1,7}(?:[:-]\d{1,5})?(?=[:\s)\]-]|$)", re.M)
"""A place in a file, as compilers and `grep -n` print it."""
_HAS_NUMBERS: Final = re.compile(r"\d[\t→|:-]|^(?: {1,8}\d|@@)", re.M)


def unnumbered(text: str) -> str:
    """Return the text without line numbers in listings, in the output of searches and in messages of compilers."""
    return _PLACE.sub(r"\g<file> ", _GUTTER.sub("", text)) if _HAS_NUMBERS.search(text) else text


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
