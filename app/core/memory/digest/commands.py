"""Shell commands and their parts."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from posixpath import basename, normpath
from typing import Final, NamedTuple

COMMAND_CHARS_READ_MAX: Final = 20_000

_WORD: Final = re.compile(
    r"(?<![^\s;|&(])#[^\n]*|\\\n|[ \t\r]+"
    r"|(?:(?<![^\s;|&()])\d)?[<>]&[\d-]"  # `2>&1` names no file
    r"|(?<![^\s;|&()])\d(?:>>?\|?|<(?!<))"
    r"|(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s;|&<>()\"'\\])+"
    r"|>>?\|?|&>>?|<<-?|<|&&|\|\||[;|&()\n]|.",
    re.S,
)
_HEREDOC: Final = re.compile(r"<<-?[ \t]{0,8}[\"']?([A-Za-z_]\w{0,60})[\"']?")
_SEPARATORS: Final = frozenset({";", "|", "||", "&", "&&", "(", ")", "\n"})
_DIGITS: Final = ("", *"0123456789")
_REDIRECTS: Final = frozenset({"&>", "&>>", *(f"{digit}{sign}" for digit in _DIGITS for sign in (">", ">>", ">|"))})
_INPUTS: Final = frozenset({"<<", "<<-", *(f"{digit}<" for digit in _DIGITS)})
_OPERATORS: Final = _REDIRECTS | _INPUTS
_DUPLICATE: Final = re.compile(r"\d?[<>]&[\d-]")
_MAY_WRITE: Final = re.compile(
    r">(?!&[\d-]|>?\|?[ \t]*/dev/)"
    r"|rm(?<![A-Za-z_]rm)|sed(?<![A-Za-z_]sed)|touch|tee|unlink|mv|cp|perl|checkout|restore"
)
"""A necessary condition: without its quotes, every command that writes a file contains one of these."""
_PRINTERS: Final = frozenset({"cat", "head", "tail", "nl", "bat", "less"})
_MAY_SHOW: Final = re.compile(r"\b(?:cat|head|tail|nl|bat|less|sed)\b")
"""A necessary condition: every command that prints a file contains one of these programs."""
_WITHOUT_QUOTES: Final = str.maketrans("", "", "\"'\\")
_NOT_LITERAL: Final = re.compile(r"[$*?{}`\[\]<>|&;\s]")
_QUOTES: Final = re.compile(r"[\"']|\\(.)", re.S)
_IN_PLACE: Final = {
    "sed": re.compile(r"-[bEnrsuz]{0,8}i|--in-place"),
    "perl": re.compile(r"-[acflnpsStTuUwWX\d]{0,12}i"),
}
"""Options to edit files in place. The letters allowed before the `i` are options that take no value."""
_SCRIPT: Final = {
    "sed": re.compile(r"-[bEnrsuz]{0,8}[ef]|--(?:expression|file)"),
    "perl": re.compile(r"-[acflnpsStTuUwWX\d]{0,12}[eE]|(-I)"),
}
"""Options with a value, in the rest of the word or the next one. If none gives the script, the first operand is it."""
_DATES: Final = ("-d", "-r", "-t")
"""Options of `touch` whose value is a date, or a file to take it from."""
_PROGRAM: Final = re.compile(r"[\w./~+-]{1,80}")
_SUBCOMMAND: Final = re.compile(r"[a-z][a-z:_-]{1,30}|-m")
"""A subcommand, as opposed to an operand or an option."""
_RUN_SUBCOMMANDS: Final = frozenset({"run", "exec", "-m"})
_NOT_PROGRAMS: Final = frozenset(
    {"cd", "export", "set", "source", ".", "echo", "printf", "sleep", "true", "pwd", "for", "if", "while"}
)
_PREFIXES: Final = frozenset({"sudo", "env", "command", "time", "nice", "then", "do", "else", "!", "{"})


class Step(NamedTuple):
    """The separator before a simple command, its words without assignments, prefixes and redirections, and the files
    that its output is redirected to."""

    separator: str
    words: tuple[str, ...]
    targets: tuple[str, ...] = ()


def written_paths(command: str) -> Iterator[str]:
    """Yield the paths that a command writes, moves, creates or removes, without repeats, resolved against its `cd`s."""
    seen: set[str] = set()
    command = command[:COMMAND_CHARS_READ_MAX]
    if not _MAY_WRITE.search(command.translate(_WITHOUT_QUOTES)):
        return
    for folder, plain, targets in _with_folders(command):
        for path in (*_changed(plain), *targets):
            full = _join(folder, path)
            if _is_literal_path(path) and not path.endswith("/") and full not in seen:
                seen.add(full)
                yield full


def removed_paths(command: str) -> Iterator[str]:
    """Yield the paths that a command removes and does not create again, resolved against its `cd`s."""
    gone: dict[str, None] = {}
    for folder, plain, targets in _with_folders(command):
        words = plain[1:] if plain[:1] == ("git",) else plain
        removes = words[:1] == ("rm",) and "--cached" not in words
        if removes:
            gone |= {_join(folder, path): None for path in words[1:] if _is_literal_path(path)}
        elif gone:
            created = [*(words[1:] if words[:1] == ("mkdir",) else _changed(plain)), *targets]
            made = [_join(folder, path) for path in created if _is_literal_path(path)]
            gone = {path: None for path in gone if not any(f"{one}/".startswith(f"{path}/") for one in made)}
    yield from gone


def moved_paths(command: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new path of each file that a command moves, resolved against its `cd`s."""
    for folder, plain, _ in _with_folders(command):
        if "mv" in plain[:2] and len(files := _changed(plain)) == 2 and all(map(_is_literal_path, files)):
            yield _join(folder, files[0]), _join(folder, files[1])


def replaced_paths(command: str) -> Iterator[str]:
    """Yield the paths whose whole content a command writes, resolved against its `cd`s."""
    for folder, plain, targets in _with_folders(command):
        copied = _changed(plain)[-1:] if plain[:1] in (("mv",), ("cp",)) else ()
        # Targets do not tell `>` from `>>`, so a command with any `>>` counts as appending.
        written = () if ">>" in command else targets
        yield from (_join(folder, path) for path in (*copied, *written) if _is_literal_path(path))


def shown_paths(command: str) -> tuple[str, ...]:
    """Return the files of which a command prints some text, without repeats, resolved against its `cd`s."""
    command = command[:COMMAND_CHARS_READ_MAX]
    if not _MAY_SHOW.search(command):
        return ()
    paths = (_join(folder, p) for folder, words, _ in _with_folders(command) for p in _printed(words))
    return tuple(dict.fromkeys(paths))


def _with_folders(command: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Yield the simple commands except `cd`: the folder, the words without redirections, and the files written to."""
    folder = ""
    for _, plain, targets in steps(command):
        if plain[:1] == ("cd",) and len(plain) == 2:
            folder = _join(folder, plain[1]) if _is_literal_path(plain[1]) else ""
        else:
            yield folder, plain, targets


def programs(command: str) -> Iterator[str]:
    """Yield the programs that a command runs, each with its subcommand: `go test`, `npm run lint`, `grep`."""
    for _, plain, _ in steps(command):
        if plain and plain[0] not in _NOT_PROGRAMS and _PROGRAM.fullmatch(plain[0]):
            length = 1
            while length < min(3, len(plain)) and _SUBCOMMAND.fullmatch(plain[length]):
                length += 1
                if plain[length - 1] not in _RUN_SUBCOMMANDS:
                    break
            yield " ".join((basename(plain[0]), *plain[1:length]))


def steps(command: str) -> Sequence[Step]:
    """Return the simple commands of a command in order; only its first COMMAND_CHARS_READ_MAX characters are read."""
    return _steps(command[:COMMAND_CHARS_READ_MAX])


@lru_cache(maxsize=1_024)
def _steps(command: str) -> Sequence[Step]:
    found = ((separator, *_split_redirects(words)) for separator, words in _commands(_without_heredocs(command)))
    return tuple(Step(separator, _without_prefixes(plain), targets) for separator, plain, targets in found)


def _without_prefixes(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words from the program's name on."""
    at = 0
    while at < len(words) and (words[at] in _PREFIXES or re.fullmatch(r"\w{1,60}=\S{0,200}", words[at])):
        at += 1
    if words[at : at + 1] == ("timeout",):
        at += 1
        while at < len(words) and (words[at].startswith("-") or re.fullmatch(r"[\d.]{1,10}[smhd]?", words[at])):
            at += 1
    return words[at:]


def _without_heredocs(command: str) -> str:
    kept: list[str] = []
    ends: list[str] = []
    for line in command.split("\n"):
        if ends:
            if line.strip() == ends[0]:
                ends.pop(0)
            continue
        kept.append(line)
        ends += _HEREDOC.findall(line)
    return "\n".join(kept)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each simple command, with the separator before it."""
    words: list[str] = []
    separator = ""
    for word in _WORD.findall(text):
        if word in _SEPARATORS:
            yield separator, words
            separator, words = word, []
        elif not (word.isspace() or word == "\\\n" or word.startswith("#") or _DUPLICATE.fullmatch(word)):
            words.append(_QUOTES.sub(r"\1", word))
    yield separator, words


def _split_redirects(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pairs = list(pairwise(("", *words)))
    plain = [word for before, word in pairs if word not in _OPERATORS and before not in _OPERATORS]
    targets = [word for before, word in pairs if before in _REDIRECTS and not word.startswith("/dev/")]
    return tuple(plain), tuple(targets)


def _printed(words: Sequence[str]) -> Iterator[str]:
    """Yield the files that one simple command prints, given its words without redirections."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    files: Sequence[str] = ()
    if name in _PRINTERS:
        files = [word for word in words[1:] if not word.startswith("-")]
    elif name == "sed" and "-n" in words:
        files, edits = _files_of_script(name, words[1:])
        files = () if edits else files
    yield from (file for file in files if _is_literal_path(file) and not file.isdigit())


def _changed(words: Sequence[str]) -> Sequence[str]:
    """Return the files that one simple command changes, given its words without redirections."""
    if not words:
        return ()
    name, rest = words[0].rsplit("/", 1)[-1], list(words[1:])
    if name == "git" and rest:
        return _changed_by_git(rest)
    if name in _IN_PLACE:
        files, edits = _files_of_script(name, rest)
        return files if edits else ()
    dates = _DATES if name == "touch" else ()
    files = [word for before, word in pairwise(("", *rest)) if not word.startswith("-") and before not in dates]
    if name in ("rm", "touch", "tee", "unlink"):
        return files
    if name in ("mv", "cp") and len(files) == 2 and "-t" not in rest:
        return [*(files[:1] if name == "mv" else ()), _target(*files)]
    return ()


def _files_of_script(name: str, words: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Return the files that `sed` or `perl` runs a script on, and whether it edits them in place."""
    files: list[str] = []
    edits = scripted = False
    rest = iter(words)
    for word in rest:
        if _IN_PLACE[name].match(word):
            edits = True
        elif option := _SCRIPT[name].match(word):
            scripted = scripted or option.lastindex is None
            if option.end() == len(word):
                next(rest, None)
        elif word and not word.startswith("-"):
            files.append(word)
    return files[not scripted :], edits


def _changed_by_git(words: Sequence[str]) -> Sequence[str]:
    if "--" in words and words[0] in ("checkout", "restore"):
        return list(words[words.index("--") + 1 :])
    files = [word for word in words[1:] if not word.startswith("-")]
    if words[0] == "mv" and len(files) == 2:
        return [files[0], _target(*files)]
    return files if words[0] == "rm" and "--cached" not in words else ()


def _target(source: str, target: str) -> str:
    """Return the new path of a moved or copied file: inside a `target` that ends with a slash, for a literal path."""
    return f"{target}{basename(source)}" if target.endswith("/") and _is_literal_path(source) else target


def _is_literal_path(path: str) -> bool:
    return 0 < len(path) <= 1000 and not (_NOT_LITERAL.search(path) or path.startswith("-") or path in (".", ".."))


def _join(folder: str, path: str) -> str:
    return normpath(path if path.startswith(("/", "~")) or not folder else f"{folder}/{path}")
