"""No run under `default` is billed more than `at_risk` above append-only, whenever it ends."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.policy.policy import PRESETS
from bench.cost import rivals
from bench.cost.billing import PROFILES, Tally, account
from bench.cost.outside import policy_player
from bench.cost.sessions import Call, Session
from palimpsest_tools.bench.rivals import Player, append_only
from tests.support.examples import examples

ENDLESS = 100_000_000
"""A window that forces no evictions, which would not depend on their price."""

sizes = st.one_of(st.integers(1, 400), st.integers(400, 4_000), st.integers(4_000, 40_000))
gaps = st.one_of(st.integers(1, 60), st.integers(1, 60), st.integers(200, 5_000))
steps = st.tuples(gaps, st.booleans(), sizes, st.lists(sizes, min_size=0, max_size=24))
small_steps = st.tuples(gaps, st.booleans(), st.integers(1, 50), st.lists(st.integers(1, 1_200), max_size=1))


def session_of(prefix: int, made: list[tuple[int, bool, int, list[int]]]) -> Session:
    """Return a session with a call for each step, answered by text and calls, then results, and at times a user.

    Every third response has two messages.
    """
    events: list[Event] = []
    calls: list[Call] = []
    turn, clock = 0, 0.0

    def add(kind: EventType, tokens: int, **more: object) -> int:
        seq = len(events) + 1
        cum = (events[-1].cum_tokens if events else 0) + tokens
        values = {"body": {"content": f"{seq} " + "word " * min(tokens, 300)}, "at": clock, **more}
        events.append(Event(seq, kind, turn, tokens, cum, **values))
        return seq

    for gap, asks, said, results in [(1, True, 10, []), *made]:
        if asks or not results:
            turn += 1
            add(EventType.USER_MESSAGE, 20)
        clock += gap
        calls.append(Call(len(events), clock, ()))
        add(EventType.ASSISTANT_MESSAGE, min(said, 1_000))
        if len(calls) % 3 == 0:
            add(EventType.ASSISTANT_MESSAGE, 10)
        opened = [
            add(
                EventType.TOOL_CALL,
                20 + min(tokens, 2_000) // 2,
                call_id=f"c{len(events)}",
                tool="read",
                body={"arguments": {"n": len(events)}},
            )
            for tokens in results
        ]
        for call, tokens in zip(opened, results, strict=True):
            name = events[call - 1].call_id
            add(EventType.TOOL_RESULT, tokens, call_id=name, tool="read", call_seq=call, gist="word")
    return Session("random", tuple(events), tuple(calls), prefix)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.one_of(st.just(0), st.integers(0, 20_000)),
    st.one_of(st.lists(steps, min_size=8, max_size=40), st.lists(small_steps, min_size=8, max_size=40)),
    st.sampled_from(sorted(PROFILES)),
    st.sampled_from([None, 4_096]),
    st.sampled_from([0.0, PRESETS["default"].economics.at_risk]),
    st.booleans(),
    st.sampled_from([None, 600]),
)
def test_never_above_append_only_by_more_than_is_at_risk(
    prefix: int,
    made: list[tuple[int, bool, int, list[int]]],
    name: str,
    minimum: int | None,
    at_risk: float,
    outside: bool,
    once: int | None,
) -> None:
    session, rules = session_of(prefix, made), PROFILES[name]
    rules = replace(rules, minimum_tokens=minimum or rules.minimum_tokens)
    policy = PRESETS["default"]
    policy = replace(policy, economics=replace(policy.economics, at_risk=at_risk, once_tokens=once))

    def billed(play: Player) -> float:
        tally = Tally()
        account(tally, session, play(session, rules), rules)
        return tally.bill.billed

    ours = policy_player(policy, ENDLESS, knows_size=True) if outside else rivals.ours(policy, ENDLESS)
    most = (1 + at_risk) * billed(append_only)
    assert billed(ours) <= most + 1
