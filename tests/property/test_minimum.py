"""The minimum that a refusal names is exact: a target of that size succeeds."""

from hypothesis import example, given
from hypothesis import strategies as st

from app.core.errors import CannotFit
from app.core.plan.pipeline import Plan
from app.core.policy.groups import Cut
from app.core.policy.policy import PRESETS, Policy
from tests.property.builders import Raw, log_of, logs, policies, whole_inputs
from tests.property.steps import planned, random_logs


def rounds(*calls: str) -> list[Raw]:
    """Return one round of calls and their results."""
    made = [{"type": "tool.call", "call_id": call_id, "tool": "read"} for call_id in calls]
    return [*made, *({"type": "tool.result", "call_id": call_id} for call_id in calls)]


# If the events between a pinned message and a call are dropped, the two become one round, which is then pinned as a
# whole.
PINNED_BEFORE_ROUNDS: list[Raw] = [
    {"type": "assistant.message", "content": [], "pinned": True},
    {"type": "assistant.message", "content": ""},
    *rounds("a", "b", "c", "d"),
    *rounds("a"),
    {"type": "announce", "content": ""},
]


@random_logs
@example(
    PINNED_BEFORE_ROUNDS,
    Policy(evict="on_pressure", cut=Cut(keep_ratio=0.7, keep_recent_turns=6, lean="forward", split_turn="prefix")),
    0.5,
)
@given(logs(), st.one_of(st.sampled_from(list(PRESETS.values())), policies), st.floats(0.05, 0.9))
def test_i2_a_target_of_the_named_minimum_succeeds_and_none_above_it_fails(
    raw: list[Raw], policy: Policy, share: float
) -> None:
    read = whole_inputs(log_of(raw))
    refused = planned(read, 1, policy)
    assert isinstance(refused, CannotFit)
    least = refused.fields["minimum_tokens"]
    assert isinstance(least, int)
    for target in (least, least + 1, least + 40, int(least * (1 + share)), 3 * least):
        result = planned(read, target, policy)
        assert isinstance(result, Plan), (target, least)
        assert result.context.tokens <= target
    again = planned(read, max(1, int(least * share)), policy)
    assert isinstance(again, Plan) or again.fields["minimum_tokens"] == least
