"""A whole summary without a model: the body, then the digest as its appendix."""

from collections.abc import Sequence
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.appendix import appendix, requests_tokens
from app.core.memory.digest.digest import digest_of
from app.core.memory.digest.record import Digest
from app.core.memory.extractive.body import extract, extract_prefix
from app.core.tokens.counter import Counter, TextKind

BODY_SHARE: Final = 0.22
BODY_TOKENS: Final = 60
"""The share and the extra tokens of the body in a summary of work with tools, where agents later use the appendix with
its files, commands and names."""
ROUNDS: Final = 2
SPARE_SHARE: Final = 0.1
"""The share of the room from which unused tokens of the appendix are given to the body, once."""
TALK_SHARE: Final = 0.9
"""The body's share in a summary of talk, where whole quoted messages are used later."""
PREFIX_SHARE: Final = 0.25
"""The share of the body for the first part of a split turn."""
REQUESTS_SHARE: Final = 1 / 3
"""The maximum share of a summary that is reserved for the user's requests in its appendix."""
SPLIT_HEADING: Final = "\n\n---\n\n**Turn Context (split turn):**\n\n"


def write_summary(
    events: Sequence[Event],
    late: Sequence[Event],
    previous: str,
    digest: Digest,
    tokens: int,
    counter: Counter,
    focus: str = "",
) -> str:
    """Write a summary in at most `tokens` tokens of prose.

    `late` are the first events of a split turn, which get a heading of their own. `previous` is the text of the
    summaries that this one replaces. `digest` covers the events and these summaries.
    """
    tools = any(event.type is EventType.TOOL_CALL for event in (*events, *late)) or bool(digest.outputs)
    room = min(BODY_TOKENS + int(tokens * BODY_SHARE), tokens * 2 // 5) if tools else int(tokens * TALK_SHARE)
    room = min(room, tokens - _least_appendix(digest, tokens, counter))
    split_part = ""
    if late:
        part_tokens = int(room * PREFIX_SHARE) if events or previous else room
        split_part = SPLIT_HEADING + extract_prefix(late, "", digest_of(late), part_tokens, counter, focus)
        room -= part_tokens
    text = ""
    for _ in range(ROUNDS):
        body = extract(events, previous, digest, room, counter, focus) + split_part
        text = with_appendix(body, digest, tokens, counter, at_least=0)
        left = tokens - counter.estimator.count(text, TextKind.PROSE)
        if left <= tokens * SPARE_SHARE:
            break
        room += left
    return text


def with_appendix(body: str, digest: Digest, tokens: int, counter: Counter, *, at_least: int) -> str:
    """Return the body with the digest's appendix, which gets the tokens that the body leaves, at least `at_least`.

    It gets more if the user's requests need more, up to their share of the summary.
    """
    left = tokens - counter.estimator.count(body, TextKind.PROSE) - 1
    room = max(left, at_least, _least_appendix(digest, tokens, counter, body))
    appended = appendix(digest, counter, room, body) if room > 0 else ""
    return f"{body.rstrip()}\n\n{appended}" if appended else body.rstrip()


def _least_appendix(digest: Digest, tokens: int, counter: Counter, body: str = "") -> int:
    return min(requests_tokens(digest, counter, body), int(tokens * REQUESTS_SHARE))
