"""Questions next to folds: contexts keep all invariants and are planned incrementally."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.memory.digest.answers import asking_part
from app.core.plan.pipeline import Plan
from app.core.plan.reducers.questions import BEGINNING
from app.core.plan.update import EarlierPlan
from app.core.policy.policy import Policy
from tests.property.builders import Raw, visible_only
from tests.property.steps import Step, assert_invariants, planned, random_logs, rendered, target_of
from tests.property.steps import steps as made

ASKING = (
    "Shall I push it?",
    "1. Keep it\n2. Write it anew\n\nWhich one?",
    "They differ. " * 300 + "\nDo you want both?",
)
SAID = ("Done.", "word " * 200, *ASKING)
ANSWERS = ("yes", "2", "no, let's do both", "Look at all of it again, and tell me more. " * 20)

_call = [
    {"type": "tool.call", "call_id": "c", "tool": "read", "arguments": {"path": "a.py"}},
    {"type": "tool.result", "call_id": "c", "content": "line\n" * 100},
]
turns = st.lists(
    st.tuples(st.sampled_from(ANSWERS), st.booleans(), st.lists(st.sampled_from(SAID), min_size=1, max_size=2)),
    min_size=3,
    max_size=12,
)


def talk(turns: list[tuple[str, bool, list[str]]]) -> list[Raw]:
    """Return turns with a user message, optionally a tool call, and assistant messages."""
    raw: list[Raw] = []
    for number, (answer, calls, said) in enumerate(turns):
        raw.append({"type": "user.message", "content": answer})
        raw += [{**event, "call_id": f"c{number}"} for event in _call] if calls else []
        raw += [{"type": "assistant.message", "content": text} for text in said]
    return raw


@random_logs
@given(turns, st.sampled_from([1, 2, 4, 5]), st.sampled_from([0.1, 0.3, 0.6, 0.9]))
def test_a_question_next_to_a_fold_keeps_every_invariant(
    turns: list[tuple[str, bool, list[str]]], size: int, share: float
) -> None:
    raw, policy = talk(turns), Policy()
    target = target_of(raw, share)
    last: Step | None = None
    for step in made(raw, [size], target, policy):
        assert_invariants(step, target, policy)
        for stub in step.plan.state.stubs:
            if stub.reducer == "questions":
                text = step.session.events[stub.seq - 1].text
                assert any(stub.text == f"{BEGINNING}\n{asking_part(answer, text)}" for answer in ANSWERS)
        if last is not None and last.plan.state is step.before:
            stored = visible_only(step.session, step.before)  # as the store reads it, and as a server holds it
            anew = planned(replace(step.read, events=stored.events), target, policy, step.before)
            assert isinstance(anew, Plan) and anew.state == step.plan.state
            assert rendered(anew, "openai") == rendered(step.plan, "openai")
            before = EarlierPlan(last.plan.context, step.before, last.session.state.head)
            assert planned(replace(step.read, earlier=before), target, policy, step.before) == step.plan
        last = step
