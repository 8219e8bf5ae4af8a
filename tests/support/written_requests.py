"""Layouts written in one format, for tests of rendering."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.core.render.breakpoints import Marking, choose_breakpoints
from app.core.render.formats.anthropic import AnthropicWriter
from app.core.render.formats.layout import Breakpoint, Layout, Places
from app.core.render.request import write


@dataclass(frozen=True)
class WrittenRequest:
    """A parsed request and its breakpoints."""

    request: dict[str, Any]
    breakpoints: tuple[Breakpoint, ...]


def write_in(form: str, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> WrittenRequest:
    """Write a layout in the format `form`."""
    request = write(form, layout, breakpoints)
    return WrittenRequest(json.loads(request.body), request.breakpoints)


def places(layout: Layout) -> Places:
    """Return the places for Anthropic's cache markers in a layout without an ephemeral tail."""
    writer = AnthropicWriter(layout)
    for block in layout.blocks:
        writer.add(block)
    writer.end()
    return writer.places


def chosen(layout: Layout, last_written: Sequence[int] = (), marking: Marking = Marking()) -> tuple[Breakpoint, ...]:
    """Return the breakpoints of a layout in Anthropic's format."""
    stable = Layout(layout.tools, layout.tools_seq, layout.system, stable_blocks(layout))
    return choose_breakpoints(layout, places(stable), last_written, marking)


def stable_blocks(layout: Layout) -> tuple[Any, ...]:
    """Return the blocks before the ephemeral tail."""
    end = next((number for number, block in enumerate(layout.blocks) if block.ephemeral), len(layout.blocks))
    return layout.blocks[:end]
