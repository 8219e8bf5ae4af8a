"""A plan applied to a client's messages shows the same events, texts and order as the layout."""

from collections.abc import Sequence

from hypothesis import example, given

from app.core.assembly.visibility import VisibilityRequest
from app.core.log.conversation import canonical
from app.core.log.event import Block, Event, Kind, content_text
from app.core.log.events import ASSISTANT_SIDE, canonical_json
from app.core.plan.state.wording import RESUMED
from app.core.policy.policy import Policy
from app.core.render.client_plan import ClientPlan, client_plan
from app.core.render.request import arrange
from tests.property.builders import Raw, logs, policies
from tests.property.steps import asked, batches, random_logs, shares, steps, target_of

OVER_A_DROPPED_MESSAGE: list[Raw] = [
    {"type": "tool.call", "call_id": "a", "tool": "read"},
    {"type": "agent.note", "content": ""},
    {"type": "user.message", "content": "", "ttl_turns": 1},
    {"type": "tool.result", "call_id": "a"},
    {"type": "user.message", "content": ""},
]
"""A note within a round whose result follows a message that is no longer shown."""

Shown = tuple[str, int | str | None, str | None]


def messages_of(events: Sequence[Event]) -> list[list[int]]:
    """Return the seqs of each message as a chat client would hold them: a response with its calls is one message."""
    found: list[list[int]] = []
    joins = False
    for event in events:
        if event.body is None or canonical(event.body) is None:
            joins = joins and not event.rendered
            continue
        by_model = event.type in ASSISTANT_SIDE
        if by_model and joins:
            found[-1].append(event.seq)
        else:
            found.append([event.seq])
        joins = by_model
    return found


def apply(plan: ClientPlan) -> list[Shown]:
    """Return the items that the client shows: its events, unchanged (None) or with another text, and insertions."""
    found: list[Shown] = []
    for message in plan.messages:
        found += [_insertion(one.text, one.call_id) for one in plan.inserted if one.before == message.index]
        if message.parts:
            found += [("own", part.seq, part.text) for part in message.parts if part.action != "drop"]
        elif message.action != "drop":
            found += [("own", seq, message.text) for seq in message.seqs]
    return found + [_insertion(one.text, one.call_id) for one in plan.inserted if one.before == len(plan.messages)]


def _insertion(text: str, call_id: str | None) -> Shown:
    return ("inserted", call_id, None if call_id else text)


def layout_items(blocks: Sequence[Block], front: int, events: Sequence[Event], own: set[int]) -> list[Shown]:
    """Return the items that a layout shows, without responses of reasoning alone; `front` blocks are of many events."""
    by_seq = {event.seq: event.block for event in events}
    found = [_insertion(_words(block), None) for block in blocks[:front]]
    for block in blocks[front:]:
        if block.content == RESUMED:
            found.append(_insertion(RESUMED, None))
            continue
        logged = by_seq[block.seq]
        if block.kind is Kind.RESULT and logged.kind is Kind.CALL:
            found.append(_insertion("", block.call_id))
        elif block.seq in own:
            found.append(("own", block.seq, None if block == logged else _words(block)))
        elif block.kind is not Kind.ASSISTANT:
            found.append(_insertion(_words(block), None))
    return found


def _words(block: Block) -> str:
    if block.kind is Kind.CALL:
        return block.arguments if isinstance(block.arguments, str) else canonical_json(block.arguments)
    return content_text(block.content)


@random_logs
@example(OVER_A_DROPPED_MESSAGE, [1], 2.0, Policy(), [])
@given(logs(), batches, shares, policies, asked)
def test_a_plan_applied_shows_what_the_layout_shows(
    raw: list[Raw], sizes: list[int], share: float, policy: Policy, asks: list[VisibilityRequest]
) -> None:
    for step in steps(raw, sizes, target_of(raw, share), policy, asks):
        events, plan = step.session.events, step.plan
        messages = messages_of(events)
        made = client_plan(messages, plan.context, plan.state)
        assert [one.index for one in made.messages] == list(range(len(messages)))
        assert [one.before for one in made.inserted] == sorted(one.before for one in made.inserted)
        blocks = arrange(plan.context, plan.state).blocks
        front = len(plan.context.summaries) + bool(plan.state.note)
        expected = layout_items(blocks, front, events, {seq for own in messages for seq in own})
        found = apply(made)
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        seqs = [one[1] for one in expected if one[0] == "own"]
        if seqs == sorted(seqs, key=lambda seq: int(seq or 0)):  # false if a result precedes its original position
            assert found == expected
