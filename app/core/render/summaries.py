"""The blocks in which summaries are shown."""

from collections.abc import Sequence

from app.core import wording
from app.core.cover import Summary, clip
from app.core.policy import Summarize
from app.core.render.layout import Block, Kind


def summary_blocks(cover: Sequence[Summary], rules: Summarize) -> tuple[Block, ...]:
    """A block for each summary that is shown; a clipped cover is one block, in which what is left out has its line."""
    if not cover:
        return ()
    kind = Kind.SYSTEM if rules.role == "system" else Kind.NOTE
    shown = clip(cover, rules)
    if rules.view == "clip":
        return (Block(kind, cover[-1].to_seq, wording.archive(shown), replaced=True),)
    return tuple(Block(kind, one.to_seq, wording.summary(one), replaced=True) for one in shown.shown)
