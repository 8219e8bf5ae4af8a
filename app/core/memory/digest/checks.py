"""Commands that check the work: builds, tests, linters and type checkers of any ecosystem, and their scope."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from shlex import quote
from typing import Final, NamedTuple

from app.core.memory.digest.commands import Step, steps

CHECK_CHARS_MAX: Final = 160
"""The maximum length of a check; a longer one is a script and not recognized."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEST, _LINT, _TYPES, _BUILD = "test", "lint", "types", "build"
_PROGRAMS: Final = {
    **dict.fromkeys(_words("pytest jest vitest mocha rspec tox nox ctest phpunit ava playwright nextest"), _TEST),
    **dict.fromkeys(_words("golangci-lint staticcheck eslint ruff flake8 pylint rubocop shellcheck biome"), _LINT),
    **dict.fromkeys(_words("pre-commit ktlint stylelint swiftlint hadolint markdownlint"), _LINT),
    **dict.fromkeys(_words("mypy pyright tsc tsgo pyre flow"), _TYPES),
    **dict.fromkeys(_words("make ninja javac gcc g++ clang rustc xcodebuild"), _BUILD),
}
"""Programs that are checks without a subcommand, and the kind of their check."""
_BARE_PROGRAMS: Final = _words("make pytest mocha rspec ctest phpunit eslint flake8 pylint shellcheck mypy pyright tsc")
"""Programs without subcommands: a plain word after them names a target, a folder or a test."""
_TASKS: Final = _words(
    "go cargo npm pnpm yarn bun mise make just task rake mix dotnet swift bazel gradle gradlew mvn mvnw zig sbt deno nx"
    " turbo composer poetry uv hatch invoke ninja cmake flutter dart rails docker node python python3 bash sh"
)
"""Programs whose subcommand, task name or script name tells their purpose."""
_TASK_KINDS: Final = (
    (_TEST, re.compile(r"(?:[\w./-]*[:/_.-])?(?:tests?|specs?|verify|e2e|ci)(?:[:_.-][\w:.-]*)?")),
    (_LINT, re.compile(r"(?:[\w./-]*[:/_.-])?(?:lint|vet|clippy|checks?|format:check)(?:[:_.-][\w:.-]*)?")),
    (_TYPES, re.compile(r"(?:[\w./-]*[:/_.-])?(?:type-?check|types|tsc)(?:[:_.-][\w:.-]*)?")),
    (_BUILD, re.compile(r"(?:[\w./-]*[:/_.-])?(?:build|compile|assemble)(?:[:_.-][\w:.-]*)?")),
)
_TOOLBOX: Final = re.compile(r"harness|helper|util|setup")
"""Names of scripts whose subcommand tells their purpose."""
_WRAPPERS: Final = frozenset({"npx", "bunx", "pnpx", "xvfb-run", "time", "nice", "env", "command", "sudo", "exec"})
_RUNNERS: Final = frozenset({"uv", "poetry", "pipenv", "hatch", "pnpm", "yarn", "bundle", "npm", "rye", "pdm"})
"""Programs that run another with `run` or `exec`."""
_NO_CHECK: Final = _words(
    "--help -h --version version help linters cache completion clean install add update init publish -V"
)
_QUIET: Final = re.compile(
    r"-v{1,3}|-q{1,2}|-s|-x|-vv|--verbose|--quiet|--silent|--color(?:=.*)?|--no-color|--count=\d+|-count=\d+|--tb=.*"
    r"|--no-header|--progress(?:=.*)?|--nocapture|--reporter=.*|--maxfail=\d+|-n\d+|-p\d+|-ra|-rA|-json|--exitfirst"
)
"""Options that change the output, not the scope of the check."""
_VALUED: Final = _words(
    "-run -k -m -t -tags -g -p -n -c -o -j -timeout --filter --grep --project --config --package --timeout --lib"
)
"""Options whose value is the next word."""
_WIDENING: Final = re.compile(r"--?(?:tags|features|all-features|all-targets|race|strict)\b")
"""Options with which a check looks at more."""
_EVERYTHING: Final = frozenset({"./...", ".", "...", "./"})
"""Operands that mean the whole project, as does a check without any."""


class Check(NamedTuple):
    """One check of a command: its text in one fixed form, its kind, and its place among the command's steps.

    `head` is the program with its subcommand, `options` and `operands` are its arguments, `folder` is the folder it ran
    in if the command names it.
    """

    text: str
    kind: str
    at: int
    head: tuple[str, ...]
    options: frozenset[str]
    operands: frozenset[str]
    folder: str


@lru_cache(maxsize=4_096)
def checks_of(command: str) -> Sequence[Check]:
    """Return the checks that a command runs, in order."""
    return tuple(_checks(steps(command)))


def check_of(text: str) -> Check | None:
    """Return the check that a text is, in the form of `Check.text`; None if it is not one."""
    found = checks_of(text)
    return found[0] if len(found) == 1 and found[0].text == text else None


def is_same(one: Check, other: Check) -> bool:
    """Return whether two checks have the same scope; a command that does not name its folder matches any folder."""
    same = (one.head, one.options, one.operands) == (other.head, other.options, other.operands)
    return same and (not one.folder or not other.folder or one.folder == other.folder)


def covers(later: Check, earlier: Check) -> bool:
    """Return whether `earlier` would pass, given that `later` has passed.

    `later` must run the same program with no other options, on at least the same operands or without any; or check
    everything, with any program of the same kind, if `earlier` checked a part.
    """
    if later.folder and earlier.folder and later.folder != earlier.folder:
        return False
    if any(_WIDENING.match(option) for option in earlier.options - later.options):
        return False
    if later.head == earlier.head:
        is_wider = bool(earlier.operands) and later.operands >= earlier.operands
        return later.options <= earlier.options and (is_wider or not later.operands)
    is_whole = not later.operands and not later.options
    return later.kind == earlier.kind and is_whole and bool(earlier.operands or earlier.options)


def _checks(parts: Sequence[Step]) -> Iterator[Check]:
    folder = ""
    for at, step in enumerate(parts):
        words = _bare(step.words)
        if words[:1] == ["cd"] and len(words) == 2:
            folder = words[1] if words[1].startswith(("/", "~")) or not folder else f"{folder}/{words[1]}"
        if step.separator == "|" or not words or not _NO_CHECK.isdisjoint(words):
            continue
        found = _kind(words)
        if found:
            check = _check(words, *found, at, folder.rstrip("/"))
            if len(check.text) <= CHECK_CHARS_MAX:
                yield check


def _bare(words: Sequence[str]) -> list[str]:
    """Return the words from the program that does the work, its name without a folder."""
    rest = list(words)
    while rest:
        name = rest[0].rsplit("/", 1)[-1]
        if name in _WRAPPERS:
            rest = rest[1:]
        elif _runs_another(name, rest[1:2]) and _kind_of_program(rest[2:3]):
            rest = rest[2:]
        elif name in ("yarn", "pnpm", "bun") and _kind_of_program(rest[1:2]):
            rest = rest[1:]
        else:
            return [name, *rest[1:]] if name in _PROGRAMS or name in _TASKS else rest
    return rest


def _runs_another(name: str, action: Sequence[str]) -> bool:
    return (name in _RUNNERS and action in (["run"], ["exec"])) or (name.startswith("python") and action == ["-m"])


def _kind_of_program(words: Sequence[str]) -> str | None:
    return _PROGRAMS.get(words[0]) if words else None


def _kind(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the kind of a check and the number of its words that name it; None if the words are not a check."""
    name = words[0]
    named = list(takewhile(lambda word: not word.startswith("-"), words[1:4]))
    if name in _TASKS:
        for at, word in enumerate(named[:2], start=2):
            kind = next((kind for kind, pattern in _TASK_KINDS if pattern.fullmatch(word)), None)
            if kind and not (at == 3 and name == "go"):  # the second word after `go` is a package, not a task
                return kind, at
    if name in _PROGRAMS:
        has_subcommand = named and name not in _BARE_PROGRAMS and re.fullmatch(r"[a-z][a-z-]{1,20}", named[0])
        return _PROGRAMS[name], 2 if has_subcommand else 1
    if ("/" in name and name.startswith((".", "/", "~"))) or name.endswith(".sh"):
        script, length = name.rsplit("/", 1)[-1], 1
        if _TOOLBOX.search(script):
            script, length = (named or [""])[0], 2
        kind = next((kind for kind, pattern in _TASK_KINDS if pattern.fullmatch(script)), None)
        return (kind, length) if kind else None
    return None


def _check(words: Sequence[str], kind: str, length: int, at: int, folder: str) -> Check:
    kept = [*words[:length], *(word for word in words[length:] if not _QUIET.fullmatch(word))]
    options: list[str] = []
    operands: list[str] = []
    before = ""
    for word in kept[length:]:
        if before in _VALUED:
            options[-1] += f" {word}"
            before = ""
            continue
        (options if word.startswith("-") else operands).append(word)
        before = word
    parts = frozenset(operands) - _EVERYTHING
    text = " ".join(quote(word) for word in kept)
    scope_options = frozenset(option for option in options if not option.startswith("-o "))
    return Check(text, kind, at, tuple(words[:length]), scope_options, parts, folder)
