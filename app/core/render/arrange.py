"""From a planned context to the layout a format writes: order, stubs, pending results, the note, injected content."""

from collections.abc import Sequence

from app.core import wording
from app.core.events import EventType
from app.core.log import Event
from app.core.parse import tool_definitions
from app.core.plan.context import Context, Item, Unit
from app.core.plan.frontier import Frontier
from app.core.render.layout import Block, Kind, Layout

_KINDS = {
    EventType.USER_MESSAGE: Kind.USER,
    EventType.ASSISTANT_MESSAGE: Kind.ASSISTANT,
    EventType.TOOL_CALL: Kind.CALL,
    EventType.TOOL_RESULT: Kind.RESULT,
    EventType.SYSTEM_MESSAGE: Kind.SYSTEM,
    EventType.AGENT_NOTE: Kind.NOTE,
    EventType.ANNOUNCE: Kind.NOTE,
}


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
        tools=tuple(tool_definitions(_body(tools).get("content"))) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=_block(Item(system, system.tokens), Kind.SYSTEM) if system else None,
        blocks=tuple(blocks),
    )


def _unit(unit: Unit, *, newest: bool) -> list[Block]:
    blocks = [_block(item, _KINDS[item.event.type]) for item in unit.all_items]
    blocks += [
        Block(
            Kind.RESULT,
            call.seq,
            wording.PENDING,
            call_id=call.call_id,
            tool=call.tool,
            replaced=True,
            ephemeral=newest,
        )
        for call in unit.open_calls
    ]
    return blocks


def _block(item: Item, kind: Kind) -> Block:
    event = item.event
    body = event.body or {}
    content = body.get("content")
    if item.stub is not None:
        if item.stub.chars:
            content = wording.shortened(wording.content_text(content), item.stub.chars, event.seq)
        else:
            content = wording.stub(event)
    return Block(
        kind=kind,
        seq=event.seq,
        content=content,
        call_id=event.call_id,
        tool=event.tool,
        arguments=body.get("arguments"),
        is_error=event.is_error,
        native=body.get("native"),
        replaced=item.stub is not None,
    )


def _body(event: Event) -> dict[str, object]:
    return dict(event.body or {})
