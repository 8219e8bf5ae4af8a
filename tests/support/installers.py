"""The package names in a page's install and run commands."""

import re
from collections.abc import Iterator

_OPTIONS = r"(?:[ \t]+-\S+(?:[ \t]+[^-\s]\S*)??)*?[ \t]+"
_INSTALL = rf"(?:pip[\d.]*|pipx|pipenv|uv{_OPTIONS}(?:pip|tool)|conda|mamba|micromamba|npm|pnpm|bun){_OPTIONS}"
_INSTALLERS = rf"(?:{_INSTALL}(?:install|i|add|create|download|inject)|(?:uv|poetry|pdm|rye|pixi|yarn){_OPTIONS}add)"
_RUNNERS = rf"(?:uvx|npx|bunx|(?:pipx|uv{_OPTIONS}tool){_OPTIONS}run|(?:pnpm|yarn){_OPTIONS}dlx|npm{_OPTIONS}exec)"
_WORD = r"""(?:'[^'\n]*'|"[^"\n]*"|[^\s'"`;&|#()])+"""
_COMMAND = re.compile(
    rf"(?<![\w.-])(?:(?P<install>{_INSTALLERS})|(?P<run>{_RUNNERS})|uv{_OPTIONS}run)"
    rf"(?P<words>(?:[ \t]+{_WORD})*)(?![\w-])"
)
_OF_PROGRAMS = ("--from", "--spec", "--package")
"""Options whose value is the package that provides the program; the program itself is then no package name."""
_OF_PACKAGES = (*_OF_PROGRAMS, "--with", "-w")
"""Options whose value names packages."""
_OF_OTHERS = (
    *("-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints", "--channel", "-e", "--editable"),
    *("-i", "--index-url", "--extra-index-url", "--index", "--source", "-f", "--find-links", "-t", "--target"),
    *("-p", "--python", "-G", "--group", "--extra", "--optional", "--prefix", "-n", "--name", "--with-editable"),
)
"""Options whose value names something other than a package."""


def named_to_install(text: str) -> Iterator[str]:
    """Yield the package names in commands of a text that install or run one from an index."""
    for command in _COMMAND.finditer(re.sub(r"\\[ \t]*\n", " ", text)):
        words = [word.replace("'", "").replace('"', "") for word in re.findall(_WORD, command["words"])]
        chosen = any(word.partition("=")[0] in _OF_PROGRAMS for word in words)
        before = ""
        for word in words:
            option, _, value = word.partition("=")
            if option in _OF_PACKAGES:
                yield from _names(value)
            elif before in _OF_PACKAGES:
                yield from _names(word)
            elif before not in _OF_OTHERS and word[:1] not in "-.$/\\":
                if command["install"] or (command["run"] and not chosen):
                    yield from _names(word)
                if not command["install"]:  # the rest are the program's own arguments
                    break
            before = word


def _names(word: str) -> Iterator[str]:
    """Yield the names in a requirement, or in a comma-separated list of requirements."""
    for one in word.split(","):
        found = re.match(r"\s*(@?[A-Za-z0-9][\w./-]*)", one)
        if found:
            yield found[1]
