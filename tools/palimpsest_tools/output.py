"""Output for people and machines: tables that fit a terminal, excerpts of text, JSON lines."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import typer
from rich.cells import cell_len, set_cell_size

WIDTH_OF_FILES: Final = 160
"""Width of lines that go to a file or a pipe."""
_GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and whether its cells are figures, which are aligned at the right."""

    heading: str
    figures: bool = False


def output_width() -> int:
    """Return the width of the terminal, or WIDTH_OF_FILES if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table. With `width`, the last column is cut so that no line is longer."""
    cells = [[column.heading for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[at]) for row in cells) for at in range(len(columns))]
    before = sum(widths[:-1]) + len(_GAP) * (len(columns) - 1)
    if width is not None:
        cells = [[*row[:-1], cut(row[-1], max(10, width - before))] for row in cells]
    return [_line(columns, row, widths) for row in cells]


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        " " * (width - cell_len(cell)) + cell if column.figures else set_cell_size(cell, width)
        for column, cell, width in zip(columns[:-1], cells[:-1], widths[:-1], strict=True)
    ]
    last = cells[-1].rjust(widths[-1]) if columns[-1].figures else cells[-1]
    return _GAP.join([*aligned, last]).rstrip()


def printable(text: str) -> str:
    """Return the text as one line without characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))


def cut(text: str, width: int) -> str:
    """Return the beginning of a line that takes at most `width` cells, with an ellipsis if there was more."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def as_text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def moment(time: datetime) -> str:
    """Return a time to the second, without its zone: all times of the server are in UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


def duration(elapsed: timedelta) -> str:
    """Return a length of time in the largest unit that fits; 0 seconds if it is negative."""
    seconds = max(0, int(elapsed.total_seconds()))
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return counted(seconds // length, unit)
    return counted(seconds, "second")


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as `1 call` or `2,000 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    for line in lines:
        typer.echo(line)


def print_json(value: Mapping[str, Any]) -> None:
    """Print a line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def uses_colours() -> bool:
    """Return whether standard output is a terminal whose user has not refused colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
