"""Effects of hiding and showing on a plan, and the break-even of hiding."""

from dataclasses import replace

from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.plan.pipeline import Plan, plan
from app.core.plan.reducers.economics import payoff_seq
from app.core.plan.reducers.visibility import NewestDecision, without_hidden
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import PlanInputs, update_context
from app.core.policy.groups import TtlPruning
from app.core.policy.policy import Policy
from app.core.record.evictions import dispositions, evictions
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile
from tests.unit.builders import COUNTER, PLAIN, Log, simple_retention

ROOM = 1_000_000
CACHE = CacheProfile(read_price=0.1, write_price=1.1)
REASONS = {"body": {"content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "so"}]}}


def budget(target: int = ROOM) -> Budget:
    return Budget(target, 0, 0, target, int(target * 0.7))


def make_plan(
    log: Log,
    *decided: NewestDecision,
    policy: Policy = PLAIN,
    state: Frontier = START,
    target: int = ROOM,
    now: float | None = None,
    used_at: float | None = None,
) -> Plan:
    decisions = max((one.number for one in decided), default=0)
    read = PlanInputs(log.events, log.turn, COUNTER, now=now, used_at=used_at, decided=decided, decisions=decisions)
    return plan(read, budget(target), policy, state)


def shown_contents(found: Plan) -> dict[int, object]:
    """Return the content of every block that represents an event, by seq."""
    return {item.event.seq: item.block().content for item in found.context.items if item.shown}


def hide(seq: int, words: str | None = None, number: int = 1) -> NewestDecision:
    return NewestDecision(seq, number, True, words)


def test_no_other_reducer_changes_the_text_of_a_hidden_event() -> None:
    log = Log()
    log.user()
    words = {"body": {"content": "SECRET " * 300, "replacement": "IT SAYS SECRET", "ttl_turns": 1, "path": "/a"}}
    seq = log.result(log.call(), 700, **words)
    for _ in range(12):
        log.user()
        log.round(tokens=400)
    rules = Policy(
        evict="every_assembly", retention=simple_retention(age_turns=1), ttl_pruning=TtlPruning(ttl_seconds=1)
    )
    for policy, target in ((rules, ROOM), (PLAIN, 1_000), (rules, 1_000)):
        found = make_plan(log, hide(seq), policy=policy, target=target, now=1e6, used_at=1.0)
        assert "SECRET" not in str(shown_contents(found).get(seq, ""))
        again = make_plan(log, hide(seq), policy=policy, target=target, now=1e6, used_at=1e6, state=found.state)
        assert again.cause is None


def test_a_shown_event_is_restored_once_and_evicted_when_necessary() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=500)
    log.round(tokens=500)
    policy = Policy(evict="every_assembly", retention=simple_retention(keep_last=1))
    gone = make_plan(log, policy=policy)
    assert [stub.seq for stub in gone.state.stubs] == [first]
    asked = NewestDecision(first, 1, False)
    back = make_plan(log, asked, policy=policy, state=gone.state)
    assert (back.state.stubs, back.cause) == ((), "visibility")
    assert make_plan(log, asked, policy=policy, state=back.state).cause is None
    forced = make_plan(log, asked, policy=policy, state=back.state, target=900)
    assert [stub.seq for stub in forced.state.stubs] == [first]
    assert make_plan(log, asked, policy=policy, state=forced.state).cause is None  # not requested again since
    renewed = make_plan(log, replace(asked, number=2), policy=policy, state=forced.state)
    assert renewed.state.stubs == ()


def test_without_room_a_shown_event_waits() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=500)
    log.round(tokens=500)
    state = make_plan(log, policy=Policy(evict="every_assembly", retention=simple_retention(keep_last=1))).state
    asked = NewestDecision(first, 1, False)
    assert make_plan(log, asked, state=state, target=900).cause is None
    assert make_plan(log, asked, state=state, target=1_200).state.stubs == ()


def test_a_decision_that_changes_nothing_opens_no_epoch() -> None:
    log = Log()
    log.user()
    seq = log.round()
    state = make_plan(log).state
    found = make_plan(log, NewestDecision(seq, 3, False), state=state)
    assert (found.cause, found.state) == (None, state)


def test_a_round_with_reasoning_stays_whole() -> None:
    log = Log()
    log.user()
    said = log.assistant(**REASONS)
    call = log.call()
    result = log.result(call, 500)
    found = shown_contents(make_plan(log, *(hide(seq) for seq in (said, call, result))))
    assert found[said] == REASONS["body"]["content"]
    assert call in found
    assert found[result] == f"[Hidden. Recall it with seq {result}.]"


def test_a_call_is_hidden_with_its_result_only() -> None:
    log = Log()
    log.user()
    one, two = log.call(), log.call()
    results = [log.result(one), log.result(two)]
    found = shown_contents(make_plan(log, hide(one), hide(two), hide(results[0]), hide(results[1], "words")))
    assert (one in found, two in found) == (False, True)
    assert (results[0] in found, found[results[1]]) == (False, "words")


def test_a_summarizer_reads_no_more_of_it_than_its_replacement() -> None:
    log = Log()
    log.user()
    log.assistant()
    one, two = log.round(), log.round()
    read = PlanInputs(log.events, log.turn, COUNTER)
    whole = update_context(read, budget(), PLAIN, START).context
    seen = without_hidden(whole, (hide(2), hide(one, "words"), hide(two - 1), hide(two), hide(99)))
    assert [item.event.seq for item in seen.items] == [1, one - 1, one]
    assert seen.items[-1].event.text == "words"
    assert without_hidden(whole, ()) is whole


def test_hiding_pays_off_when_later_calls_save_the_rewrite() -> None:
    """After ten calls, ten more are expected: at a tenth of the price they save the hidden tokens once."""
    log = Log()
    log.user()
    old = log.round(tokens=1_000)
    for _ in range(8):
        log.assistant(tokens=100)
        log.user(tokens=100)
    log.assistant(tokens=10)
    context = make_plan(log).context
    behind = 8 * 200  # sent to the model before its last response
    assert payoff_seq(context, {old: 1_000}, CACHE) is None
    cheap = replace(CACHE, write_price=0.1 + 1_000 / (behind + 1))
    assert payoff_seq(context, {old: 1_000}, cheap) == old
    dear = replace(CACHE, write_price=0.1 + 1_000 / (behind - 1))
    assert payoff_seq(context, {old: 1_000}, dear) is None


def test_hiding_an_unsent_event_costs_nothing() -> None:
    log = Log()
    log.user()
    old = log.round(tokens=100)
    new = log.round(tokens=10)
    context = make_plan(log).context
    assert payoff_seq(context, {new: 0}, CACHE) == new
    assert payoff_seq(context, {old: 50, new: 5}, CACHE) == new
    log = Log()
    only = log.user()
    assert payoff_seq(make_plan(log).context, {only: 1}, CACHE) == only


def test_the_shown_text_is_what_is_counted() -> None:
    log = Log()
    log.user()
    seq = log.add(EventType.SYSTEM_MESSAGE, 300)
    log.user()
    before, after = make_plan(log), make_plan(log, hide(seq, "few words"))
    [stub] = after.state.stubs
    assert after.context.tokens == before.context.tokens - stub.saved
    assert (stub.disposition, stub.tokens + stub.saved) == ("replaced", 300)


def test_an_event_kept_next_to_its_summary_is_folded_once_unpinned() -> None:
    """The event was pinned when the summary replaced all around it, and is no longer pinned."""
    log = Log()
    log.user()
    pinned = log.assistant(tokens=300, pinned=True)
    log.assistant(tokens=300)
    log.user()
    log.assistant(tokens=300)
    cover = Summary("one", 1, 3, 0, 20, "what was said", 610, 3)
    read = PlanInputs(log.events, log.turn, COUNTER, tree=(cover,))
    folded = plan(read, budget(800), PLAIN, START)
    assert pinned in shown_contents(folded)
    freed = [replace(event, pinned=False) for event in log.events]
    for standing_cover in ((cover,), ()):  # folded again, or dropped without a summary
        reading = replace(read, events=freed, tree=standing_cover, folded=(cover,))
        later = plan(reading, budget(500), PLAIN, folded.state)
        assert pinned not in shown_contents(later)
        assert dispositions(freed, later.context, later.state)[pinned] == "summarized"
        assert [row.disposition for row in evictions(later.state, later.context)] == ["summarized"]
        assert later.state.note == ""
