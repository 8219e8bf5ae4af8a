"""A round's order does not depend on other rounds, so that a context written in pieces is the same."""

from app.core.log.event import Block, Kind
from app.core.render.formats.fit import split_rounds
from app.core.render.formats.layout import Layout

TEXT_BEHIND_A_CALL = (
    Block(Kind.CALL, 1, None, call_id="a", tool="read", arguments={}),
    Block(Kind.ASSISTANT, 2, "And another."),
    Block(Kind.CALL, 3, None, call_id="b", tool="read", arguments={}),
    Block(Kind.RESULT, 4, "one", call_id="a"),
    Block(Kind.RESULT, 5, "two", call_id="b"),
)
ONE_IS_STILL_RUNNING = (
    Block(Kind.CALL, 6, None, call_id="c", tool="read", arguments={}),
    Block(Kind.CALL, 7, None, call_id="d", tool="read", arguments={}),
    Block(Kind.RESULT, 8, "three", call_id="c"),
    Block(Kind.RESULT, 7, "still running", call_id="d", replaced=True, ephemeral=True),
)


def test_a_rounds_order_is_independent_of_the_round_before() -> None:
    together = split_rounds(Layout(blocks=(*TEXT_BEHIND_A_CALL, *ONE_IS_STILL_RUNNING)), "openai").blocks
    alone = split_rounds(Layout(blocks=ONE_IS_STILL_RUNNING), "openai").blocks
    assert together[len(TEXT_BEHIND_A_CALL) :] == alone == ONE_IS_STILL_RUNNING
