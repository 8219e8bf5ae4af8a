"""A context written incrementally has the same bytes as one written whole."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.errors import ContextError
from app.core.plan.pipeline import Plan
from app.core.plan.state.frontier import START
from app.core.plan.update import EarlierPlan
from app.core.policy.policy import Policy
from app.core.render.breakpoints import Marking, choose_breakpoints
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import prepare
from app.core.render.request import Settled, WrittenContext, arrange, write, write_text
from tests.property.builders import Raw, Session, append, logs, policies, whole_inputs
from tests.property.conversations import conversations
from tests.property.steps import batches, planned, random_logs, shares

NATIVE = ("openai", "openai-responses", "anthropic", "gemini")
markings = st.builds(
    Marking,
    markers=st.sampled_from(["tail", "tail", "rounds", "prefix", "none"]),
    markers_max=st.integers(1, 4),
    lookback=st.sampled_from([2, 5, 20]),
)


@st.composite
def native(draw: st.DrawFn) -> list[Raw]:
    """Draw the events of one or two conversations, each in a provider's own messages."""
    pairs = [
        (form, draw(conversations(form))) for form in draw(st.lists(st.sampled_from(NATIVE), min_size=1, max_size=2))
    ]
    return [event for form, messages in pairs for event in FORMATS[form].read(json.loads(json.dumps(messages)))]


@random_logs
@given(
    raw=st.one_of(logs(), native()),
    sizes=batches,
    share=st.one_of(shares, st.just(5.0)),
    policy=policies,
    form=st.sampled_from(list(FORMATS)),
    injected=st.lists(st.sampled_from([["today is Monday"], [], ["x", "\ud800 y"]]), min_size=1, max_size=3),
    marking=markings,
)
def test_written_on_is_written_whole(
    raw: list[Raw],
    sizes: list[int],
    share: float,
    policy: Policy,
    form: str,
    injected: list[list[str]],
    marking: Marking,
) -> None:
    session, state, before, settled, last = Session(), START, None, None, ()
    target = 60
    for number, size in enumerate(cut(raw, sizes)):
        try:
            session = append(session, size, native=True)
        except ContextError:
            assume(False)
        target = max(target, 60 + int(session.state.tokens * share))
        read = replace(whole_inputs(session, 1_000.0 * number), earlier=before)
        result = planned(read, target, policy, state)
        if not isinstance(result, Plan):
            before = settled = None
            continue
        shown = injected[number % len(injected)]
        on = write_text(form, result.context, result.state, shown, settled)
        assert_same(on, write_text(form, result.context, result.state, shown), last, marking)
        layout = prepare(arrange(result.context, result.state, shown), form).layout
        assert on.layout == layout
        points = choose_breakpoints(on.layout, on.places, last, marking) if form == "anthropic" else ()
        request = on.request(points)
        assert request == write(form, layout, points)
        assert request.sha256 == hashlib.sha256(request.body).digest()
        state, settled, last = result.state, on.settled, tuple(point.seq for point in points)
        before = EarlierPlan(result.context, state, session.state.head)


def cut(raw: Sequence[Raw], sizes: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Return the events in batches of these sizes, in a cycle."""
    parts, at = [], 0
    while at < len(raw):
        size = sizes[len(parts) % len(sizes)]
        parts.append(list(raw[at : at + size]))
        at += size
    return parts


def assert_same(on: WrittenContext, anew: WrittenContext, last: Sequence[int], marking: Marking) -> None:
    assert on.places == anew.places
    assert list(on.places) == list(anew.places)
    assert on.losses == anew.losses
    assert on.settled.counts == anew.settled.counts
    points = choose_breakpoints(on.layout, on.places, last, marking)
    assert on.request(points) == anew.request(points)
    assert settled_of(on.settled) == settled_of(anew.settled)


def settled_of(settled: Settled) -> tuple[Any, ...]:
    return settled.layout, settled.writer.texts, settled.units, settled.chars
