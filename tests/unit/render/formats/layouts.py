"""Round trips from a provider's messages to a layout and back, one block an event, without server and plan."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from app.core.log.appends import parse_batch
from app.core.log.event import Block, Event, Kind
from app.core.log.events import Draft, EventType
from app.core.plan.state.wording import RENDER_VERSION
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import prepare
from app.core.render.formats.layout import Layout
from tests.support.written_requests import write_in

MEMBER = {"openai": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
Message = dict[str, Any]


def layout_of(events: Iterable[dict[str, Any]]) -> Layout:
    """Return a layout of raw events, stored and loaded as JSON, with a block for each."""
    drafts = parse_batch(json.loads(json.dumps(list(events))), native=True)
    blocks = [_block(draft, seq) for seq, draft in enumerate(drafts, 1)]
    prompts = next((n for n, d in enumerate(drafts) if d.type is not EventType.SYSTEM_PROMPT), len(drafts))
    return Layout(system=tuple(blocks[:prompts]), blocks=tuple(blocks[prompts:]))


def _block(draft: Draft, seq: int) -> Block:
    """Return the block that the log would make, so that new fields of blocks are included."""
    event = Event(
        seq,
        draft.type,
        turn=1,
        tokens=0,
        call_id=draft.call_id,
        tool=draft.tool,
        author=draft.author,
        is_error=bool(draft.is_error),
        body=draft.body(),
    )
    return event.block


def layout_of_messages(form: str, messages: Sequence[Message]) -> Layout:
    """Return the layout of messages posted in a format."""
    return layout_of(FORMATS[form].read(messages))


def round_trip(form: str, messages: Sequence[Message]) -> list[Message]:
    """Return the messages after a round trip through the log."""
    written: list[Message] = write_in(form, prepare(layout_of_messages(form, messages), form).layout).request[
        MEMBER[form]
    ]
    return written


def request_of(
    form: str,
    *blocks: Block,
    system: tuple[Block, ...] = (),
    tools: Sequence[Message] = (),
    version: int = RENDER_VERSION,
) -> Message:
    """Return the request rendered from some blocks."""
    layout = prepare(Layout(tuple(tools), len(tools), system, blocks), form, version).layout
    return write_in(form, layout).request


def user(seq: int, content: Any = "go", **fields: Any) -> Block:
    return Block(Kind.USER, seq, content, **fields)


def says(seq: int, content: Any, **fields: Any) -> Block:
    return Block(Kind.ASSISTANT, seq, content, **fields)


def call(seq: int, call_id: str, tool: str = "read", arguments: Any = None, **fields: Any) -> Block:
    return Block(Kind.CALL, seq, call_id=call_id, tool=tool, arguments=arguments or {}, **fields)


def result(seq: int, call_id: str, content: Any = "found", **fields: Any) -> Block:
    return Block(Kind.RESULT, seq, content, call_id=call_id, tool="read", **fields)
