"""The window of a call: its parts, in a bar that can be read without colours."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from palimpsest.types import CallBlockOut, TokensOut

from palimpsest_tools.output import Column, table


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a window: its character in the bar, its name, its size, and its colour on a terminal."""

    glyph: str
    name: str
    tokens: int
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class WindowMark:
    """A size up to which a request may fill a window; the client's additions to the request move its place."""

    name: str
    tokens: int
    place: int


@dataclass(frozen=True, slots=True)
class Window:
    """A window from its first token to its last. `parts` fill it; `marks` are places in it.

    `left` is the room before content must be left out, at `bound`, the lower of the threshold and the target.
    """

    parts: tuple[Part, ...]
    marks: tuple[WindowMark, ...]
    left: int
    bound: int

    @property
    def tokens(self) -> int:
        """The size of all parts."""
        return sum(part.tokens for part in self.parts)


def window_of(tokens: TokensOut, blocks: Sequence[CallBlockOut], threshold: int | None = None) -> Window:
    """Return the window of a call from its record's figures.

    Injected content has a reserve of its own, after the target. `threshold` is the size above which the policy reduces
    a context, if that is less than the target.
    """
    source = tokens.by_source
    injected = sum(block.tokens for block in blocks if block.mark == "injected")
    layered = any(block.source == "ephemeral" and block.mark != "injected" for block in blocks)
    frame = source.get("ephemeral", 0) - injected
    used = tokens.estimate - injected
    margin = tokens.limit - tokens.reserve - tokens.outside - tokens.target - injected
    bound = tokens.target if threshold is None else min(threshold, tokens.target)
    parts = (
        Part("o", "sent in addition to the request", tokens.outside, "white"),
        Part("t", "tools", source.get("tools", 0), "blue"),
        Part("s", "system prompt", source.get("system", 0), "cyan"),
        Part("m", "summaries", source.get("summaries", 0), "magenta"),
        Part("h", "history", source.get("history", 0), "green"),
        Part("c", "current turn", source.get("current_turn", 0), "yellow"),
        Part(*(("l", "layers and notices") if layered else ("f", "frame of the request")), frame),
        Part(".", "free", tokens.target - used),
        Part("i", "injected content, which has a reserve of its own", injected, "bright_magenta"),
        Part("-", "margin for inexact counts, and the reserve for injected content", margin),
        Part("r", "reserve for the reply", tokens.reserve, "red"),
    )
    marks = [WindowMark("target", tokens.target, tokens.outside + tokens.target)]
    if bound < tokens.target:
        marks.insert(0, WindowMark("threshold", bound, tokens.outside + bound))
    return Window(tuple(part for part in parts if part.tokens > 0), tuple(marks), bound - used, bound)


def cells_of(parts: Sequence[Part], width: int) -> list[int]:
    """Divide `width` cells among parts by size: at least one for each, the rest by the largest remainders."""
    total = sum(part.tokens for part in parts)
    spare = max(0, width - len(parts))
    exact = [spare * part.tokens / total for part in parts]
    cells = [1 + int(share) for share in exact]
    missing = max(0, width - sum(cells))
    for at in sorted(range(len(parts)), key=lambda at: int(exact[at]) - exact[at])[:missing]:
        cells[at] += 1
    return cells


def bar(window: Window, width: int, *, colours: bool) -> list[str]:
    """Return the bar of a window, with a line below it for each mark."""
    cells = cells_of(window.parts, width)
    drawn = "".join(
        typer.style(part.glyph * count, fg=part.colour, bold=True) if colours and part.colour else part.glyph * count
        for part, count in zip(window.parts, cells, strict=True)
    )
    return [drawn, *(_mark_line(window, mark, cells, width) for mark in window.marks)]


def _mark_line(window: Window, mark: WindowMark, cells: Sequence[int], width: int) -> str:
    """Return a line that points at a mark's place in the bar, with its name on the side that has room for it."""
    place, before = 0, 0
    for part, count in zip(window.parts, cells, strict=True):
        if before + part.tokens >= mark.place:
            place += round(count * (mark.place - before) / part.tokens)
            break
        before, place = before + part.tokens, place + count
    words = f"{mark.name} {mark.tokens:,}"
    at = max(0, min(place, width) - 1)
    return f"{' ' * at}^ {words}" if at + 2 + len(words) <= width else f"{words} ^".rjust(at + 1)


def legend(window: Window) -> list[str]:
    """Return a table of the window's parts: the character in the bar, the tokens, the share of the window, the name."""
    columns = (Column(""), Column("TOKENS", figures=True), Column("SHARE", figures=True), Column("PART"))
    total = window.tokens
    rows = [(part.glyph, f"{part.tokens:,}", f"{part.tokens / total:.0%}", part.name) for part in window.parts]
    return table(columns, [*rows, ("", f"{total:,}", "", "the window")])
