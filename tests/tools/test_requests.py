"""Rendered requests and whole logs as blocks."""

from palimpsest_tools.replay.bill import BilledBlock
from palimpsest_tools.replay.requests import Logged, everything, rendered

ANTHROPIC = {
    "tools": [{"name": "read", "input_schema": {}}],
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "reading"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                {"type": "tool_result", "tool_use_id": "b", "content": "2", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ],
}


def test_tokens_of_the_blocks_sum_to_the_estimate() -> None:
    for estimate in (0, 7, 1001):
        assert sum(block.tokens for block in rendered(ANTHROPIC, estimate, 0).blocks) == estimate


def test_anthropic_content_blocks_and_their_breakpoints() -> None:
    request = rendered(ANTHROPIC, 800, at=5)
    assert len(request.blocks) == 8
    assert request.breakpoints == (2, 8)
    assert [block.joins for block in request.blocks] == [False] * 5 + [True] + [False] * 2
    assert request.at == 5


def test_a_breakpoint_does_not_change_the_bytes_of_its_block() -> None:
    bare = {**ANTHROPIC, "system": [{"type": "text", "text": "be brief"}]}
    digests = [[block.digest for block in rendered(request, 800, 0).blocks] for request in (ANTHROPIC, bare)]
    assert digests[0] == digests[1]


def test_a_string_is_the_same_as_its_one_text_part() -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    one, other = (rendered({"messages": [{"role": "user", "content": said}]}, 5, 0) for said in ("hi", [part]))
    assert one.blocks == other.blocks


def test_the_role_is_part_of_a_block() -> None:
    one, other = (rendered({"messages": [{"role": role, "content": "hm"}]}, 5, 0) for role in ("user", "assistant"))
    assert one.blocks[0].digest != other.blocks[0].digest


def test_a_message_with_fields_of_its_own_is_one_block() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "x", "content": "b"}]
    assert len(rendered({"messages": messages}, 10, 0).blocks) == 2
    assert (
        len(rendered({"instructions": "i", "input": [{"type": "message"}, {"type": "reasoning"}]}, 10, 0).blocks) == 3
    )
    assert len(rendered({"blocks": [{"kind": "user"}]}, 10, 0).blocks) == 1


def test_embedded_images_do_not_weigh_by_their_bytes() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}}
    content = [image, {"type": "text", "text": "b" * 4096}]
    first, second = rendered({"messages": [{"role": "user", "content": content}]}, 1000, 0).blocks
    assert abs(first.tokens - second.tokens) < 30


def test_a_lone_surrogate_is_no_obstacle() -> None:
    assert rendered({"messages": [{"role": "user", "content": "\ud800"}]}, 3, 0).blocks[0].tokens == 3


def test_everything_is_one_block_an_event_with_breakpoints_of_a_careful_client() -> None:
    types = ("system.prompt", "tools", "user.message", "tool.call", "tool.call", "tool.result")
    log = [Logged(seq, type, 10 * seq) for seq, type in enumerate(types, start=1)]
    request = everything(log, 1.5, previous=3, at=9)
    assert request.breakpoints == (2, 3, 6)
    assert request.blocks[0] == BilledBlock("1", 15)
    assert [block.joins for block in request.blocks] == [False, False, False, False, True, False]
    assert everything(log[2:], 1.0, previous=0, at=9).breakpoints == (4,)
