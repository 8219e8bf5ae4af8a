"""Arrangement of a planned context into the layout that a format writes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from app.core.log.block import Block, Kind
from app.core.log.events import EventType
from app.core.log.parse import tool_definitions
from app.core.plan.context.context import Context, Unit
from app.core.plan.context.frontier import Frontier
from app.core.render.formats.layout import Layout
from app.core.render.layers import Content


def arrange(context: Context, state: Frontier, injected: Sequence[Content] = ()) -> Layout:
    """Return the layout of a planned context: one block for each visible event, then the `injected` content.

    A call without a result gets a pending result; those of the newest round are ephemeral, because the real result will
    replace them. `state` must have adopted late results, as every plan's does.
    """
    begun = front(context, state)
    return replace(begun, blocks=(*begun.blocks, *unit_blocks(context.units[:-1]), *tail(context, injected)))


def front(context: Context, state: Frontier) -> Layout:
    """Return the layout before the first unit: the prefix, the summaries and the note."""
    tools = next((e for e in context.prefix if e.type is EventType.TOOLS), None)
    note = (Block(Kind.NOTE, state.floor, state.note),) if state.note else ()
    return Layout(
        tools=tuple(tool_definitions(tools.block.content)) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=tuple(e.block for e in context.prefix if e.type is EventType.SYSTEM_PROMPT and not e.ends_prompts),
        blocks=(*context.summaries, *note),
    )


def unit_blocks(units: Iterable[Unit]) -> Iterator[Block]:
    """Return the blocks of units."""
    return chain.from_iterable(unit.blocks for unit in units)


def tail(context: Context, injected: Sequence[Content]) -> list[Block]:
    """Return the blocks of the last unit, and the injected content."""
    blocks = list(unit_blocks(context.units[-1:]))
    if context.units and (waiting := len(context.units[-1].open_calls)):
        blocks[-waiting:] = [replace(pending, ephemeral=True) for pending in blocks[-waiting:]]
    last = context.items[-1].event.seq if context.items else 0
    return [*blocks, *(Block(Kind.NOTE, last, content, ephemeral=True) for content in injected)]
