"""A whole summary made without a model: what was said, then mechanically what an agent needs of it later."""

from collections.abc import Sequence
from typing import Final

from app.core.compaction.extractive.body import extract, extract_prefix
from app.core.digest.digest import Digest, appendix, digest_of
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import Counter, TextKind

BODY_SHARE: Final = 0.1
BODY_TOKENS: Final = 60
"""Of a summary of work with tools, and so many more: files, commands and names are what agents use of it later."""
TALK_SHARE: Final = 0.9
"""Of a summary of talk: quoted whole messages are."""
PREFIX_SHARE: Final = 0.25
SPLIT_HEADING: Final = "\n\n---\n\n**Turn Context (split turn):**\n\n"


def extractive(
    events: Sequence[Event],
    late: Sequence[Event],
    previous: str,
    digest: Digest,
    tokens: int,
    counter: Counter,
    focus: str = "",
) -> str:
    """A summary in at most `tokens` tokens of prose.

    `late` are the first events of a turn that is split, told under a heading of their own; `previous` is the text of
    what this summary takes the place of, and `digest` that of all of it.
    """
    tools = any(event.type is EventType.TOOL_CALL for event in (*events, *late)) or bool(digest.outputs)
    room = min(BODY_TOKENS + int(tokens * BODY_SHARE), tokens // 4) if tools else int(tokens * TALK_SHARE)
    told_late = ""
    if late:
        part = int(room * PREFIX_SHARE) if events or previous else room
        told_late = SPLIT_HEADING + extract_prefix(late, "", digest_of(late), part, counter, focus)
        room -= part
    body = extract(events, previous, digest, room, counter, focus) + told_late
    return with_appendix(body, digest, tokens, counter, at_least=0)


def with_appendix(body: str, digest: Digest, tokens: int, counter: Counter, *, at_least: int) -> str:
    """A summary's words, with what its digest tells behind them: in what room they leave of `tokens`, or `at_least`."""
    left = tokens - counter.estimator.count(body, TextKind.PROSE) - 1
    told = appendix(digest, counter, max(left, at_least), body) if max(left, at_least) > 0 else ""
    return f"{body.rstrip()}\n\n{told}" if told else body.rstrip()
