"""From a planned context to the layout a format writes: order, stubs, pending results, the note, injected content."""

from collections.abc import Sequence
from dataclasses import replace

from app.core.log.block import Block, Kind
from app.core.log.events import EventType
from app.core.log.parse import tool_definitions
from app.core.plan.context.context import Context
from app.core.plan.context.frontier import Frontier
from app.core.render.formats.layout import Layout
from app.core.render.layers import Content


def arrange(context: Context, state: Frontier, injected: Sequence[Content] = ()) -> Layout:
    """The layout of a planned context, with one block for each visible event; `injected` content is last.

    A call without a result gets a pending result; those of the newest round are ephemeral, because the real result will
    replace them. `state` must have adopted late results, as every plan's does.
    """
    blocks: list[Block] = list(context.summaries)
    if state.note:
        blocks.append(Block(Kind.NOTE, state.floor, state.note))
    for unit in context.units:
        blocks += unit.blocks
    if context.units and (waiting := len(context.units[-1].open_calls)):
        blocks[-waiting:] = [replace(pending, ephemeral=True) for pending in blocks[-waiting:]]
    blocks += [
        Block(Kind.NOTE, context.items[-1].event.seq if context.items else 0, t, ephemeral=True) for t in injected
    ]
    tools = next((e for e in context.prefix if e.type is EventType.TOOLS), None)
    return Layout(
        tools=tuple(tool_definitions(tools.block.content)) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=tuple(e.block for e in context.prefix if e.type is EventType.SYSTEM_PROMPT),
        blocks=tuple(blocks),
    )
