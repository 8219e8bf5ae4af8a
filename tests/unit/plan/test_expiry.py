"""Expiry of single events: by turns, by the clock, by a newer event."""

from app.core.log.events import Draft, EventType
from app.core.plan.pipeline import Plan
from app.core.record.evictions import dispositions, evictions
from tests.unit.builders import COUNTER, Log
from tests.unit.plan.test_economics import ROOM, economic_policy, make_plan


def dispositions_of(log: Log, found: Plan) -> dict[int, str]:
    return dispositions(log.events, found.context, found.state)


def content_of(found: Plan, seq: int) -> object:
    return next(i.block().content for i in found.context.items if i.event.seq == seq)


def test_an_event_lives_for_its_turns() -> None:
    log = Log()
    log.user()
    note = log.add(EventType.AGENT_NOTE, 50, body={"content": "for now", "ttl_turns": 2})
    log.user()
    assert dispositions_of(log, make_plan(log, economic_policy()))[note] == "verbatim"
    log.user()
    found = make_plan(log, economic_policy())
    assert (found.cause, dispositions_of(log, found)[note]) == ("expiry", "dropped")
    assert found.state.note == ""
    assert [(row.reducer, row.reason) for row in evictions(found.state, found.context)] == [("expiry", "ttl_turns")]
    assert make_plan(log, economic_policy(), found.state).cause is None


def test_or_until_its_time_has_passed() -> None:
    log = Log()
    log.user()
    seq = log.assistant(
        50, body={"content": "the price is 3", "ttl_seconds": 60, "replacement": "[old price]"}, at=1_000.0
    )
    assert make_plan(log, economic_policy(), now=1_059.0).cause is None
    assert make_plan(log, economic_policy(), now=None).cause is None
    found = make_plan(log, economic_policy(), now=1_060.0)
    assert (found.cause, dispositions_of(log, found)[seq]) == ("expiry", "replaced")
    assert content_of(found, seq) == "[old price]"
    assert make_plan(log, economic_policy(), found.state, now=9_999.0).cause is None


def test_a_newer_event_replaces_those_with_its_key_and_the_one_it_names() -> None:
    log = Log()
    log.user()
    by_key = log.assistant(30, body={"content": "plan 1", "supersedes": "plan"})
    by_id = log.assistant(30, body={"content": "draft", "id": "plan"})
    by_path = log.add(EventType.AGENT_NOTE, 30, body={"content": "file", "path": "plan"})
    newest = log.assistant(30, body={"content": "plan 2", "supersedes": "plan"})
    found = make_plan(log, economic_policy())
    assert {seq: dispositions_of(log, found)[seq] for seq in (by_key, by_id, by_path, newest)} == {
        by_key: "dropped",
        by_id: "dropped",
        by_path: "dropped",
        newest: "verbatim",
    }


def test_an_expired_result_keeps_its_pair() -> None:
    log = Log()
    log.user()
    result = log.result(log.call(), 400, body={"content": "secret", "ttl_turns": 1})
    log.user()
    found = make_plan(log, economic_policy())
    assert content_of(found, result) == f"[This result has expired. Recall it with seq {result}.]"
    assert dispositions_of(log, found)[result] == "replaced"


def test_a_call_is_never_shown_as_anything_but_a_call() -> None:
    log = Log()
    log.user()
    call = log.call(body={"arguments": {"path": "a.py"}, "ttl_turns": 1, "replacement": "[gone]"})
    log.result(call, 400)
    log.user()
    found = make_plan(log, economic_policy())
    assert (found.cause, dispositions_of(log, found)[call]) == (None, "verbatim")


def test_a_call_and_its_result_that_have_both_expired_go_together() -> None:
    log = Log()
    log.user()
    call = log.call(body={"arguments": {}, "ttl_turns": 1, "replacement": "[gone]"})
    result = log.result(call, 400, body={"content": "found", "supersedes": "k"})
    log.result(log.call(), 400, body={"content": "found again", "supersedes": "k"})
    log.user()
    found = make_plan(log, economic_policy())
    assert {dispositions_of(log, found)[seq] for seq in (call, result)} == {"dropped"}


def test_open_pinned_and_requested_events_do_not_expire() -> None:
    log = Log()
    pinned = log.assistant(20, body={"content": "rule", "supersedes": "k"}, pinned=True)
    log.assistant(20, body={"content": "rule 2", "supersedes": "k"})
    call = log.call(body={"arguments": {}, "ttl_turns": 1})
    asked = log.user(body={"content": "go", "ttl_seconds": 1}, at=0.0)
    found = make_plan(log, economic_policy(), now=10.0, target=ROOM)
    assert {dispositions_of(log, found)[seq] for seq in (pinned, call, asked)} == {"verbatim"}


def test_i2_the_replacement_of_a_system_message_counts_the_wrapping_of_one() -> None:
    log = Log()
    log.user()
    body = {"content": "be brief", "ttl_turns": 1, "replacement": "[over]"}
    reminder = log.add(EventType.SYSTEM_MESSAGE, 60, body=body)
    log.user()
    found = make_plan(log, economic_policy())
    item = next(item for item in found.context.items if item.event.seq == reminder)
    assert item.tokens == COUNTER.event(Draft(EventType.SYSTEM_MESSAGE, content="[over]"))
