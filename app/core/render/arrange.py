"""From a planned context to the layout a format writes: order, stubs, pending results, the note, injected content."""

from collections.abc import Sequence
from dataclasses import replace

from app.core import wording
from app.core.events import EventType
from app.core.parse import tool_definitions
from app.core.plan.context import Context, Item, Unit
from app.core.plan.frontier import Frontier, Stub
from app.core.render.layout import Block, Kind, Layout


def arrange(context: Context, state: Frontier, injected: Sequence[str] = ()) -> Layout:
    """The layout of a settled context. Every visible event becomes exactly one block.

    A call without a result gets a pending stub; those of the newest round are ephemeral, since the result will take
    their place. Late results must be adopted by `state` (the plan sees to it).
    """
    blocks: list[Block] = []
    if state.note:
        blocks.append(Block(Kind.NOTE, state.floor, state.note))
    all_units = context.units
    for unit in all_units:
        blocks += _unit(unit, newest=unit is all_units[-1])
    blocks += [
        Block(Kind.NOTE, context.items[-1].event.seq if context.items else 0, t, ephemeral=True) for t in injected
    ]
    system = next((e for e in context.prefix if e.type is EventType.SYSTEM_PROMPT), None)
    tools = next((e for e in context.prefix if e.type is EventType.TOOLS), None)
    return Layout(
        tools=tuple(tool_definitions(tools.block.content)) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=system.block if system else None,
        blocks=tuple(blocks),
    )


def _unit(unit: Unit, *, newest: bool) -> list[Block]:
    blocks = [item.event.block if item.stub is None else _stubbed(item, item.stub) for item in unit.all_items]
    for call in unit.open_calls:
        pending = replace(call.block, kind=Kind.RESULT, content=wording.PENDING, arguments=None, native=None)
        blocks.append(replace(pending, replaced=True, ephemeral=newest))
    return blocks


def _stubbed(item: Item, stub: Stub) -> Block:
    event = item.event
    if stub.chars:
        text = wording.content_text(event.block.content)
        return replace(event.block, content=wording.shortened(text, stub.chars, event.seq), replaced=True)
    return replace(event.block, content=wording.stub(event), replaced=True)
