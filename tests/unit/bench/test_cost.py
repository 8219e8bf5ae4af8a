"""The cost benchmark on sessions small enough to compute by hand."""

import pytest

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.policy.policy import PRESETS
from app.core.tokens.counter import REQUEST_TOKENS
from app.core.tokens.models import ANTHROPIC, OPENAI, OPENAI_PAID, CacheProfile
from bench.cost import optimum, rivals
from bench.cost.billing import Tally, account
from bench.cost.outside import policy_player
from bench.cost.picture import svg
from bench.cost.runs import runs
from bench.cost.sessions import Call, Session, session, without_prefix
from palimpsest_tools.bench import rivals as others
from palimpsest_tools.bench.billing import breakpoints
from palimpsest_tools.bench.rivals import STUB_TOKENS, Player
from palimpsest_tools.bench.sessions import Value
from palimpsest_tools.replay.bill import BilledBlock

FIXED = 2_000 + REQUEST_TOKENS
LINE = {
    "id": "one",
    "system": "Be brief.",
    "tools": None,
    "messages": [
        {"role": "user", "content": "Which file has the answer?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "grep", "arguments": {"q": "x"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "found in src/deep/answer.py"},
        {"role": "assistant", "content": "Reading src/deep/answer.py."},
    ],
    "meta": {
        "ts": [0, 10, 20, 30],
        "prefix_tokens_est": 500,
        "grounding": [{"i": 3, "v": "src/deep/answer.py", "first": 2, "last": 2, "kind": "tool"}],
    },
}


def long_session(results: int, size: int, gap: float, needed: int | None = None) -> Session:
    """Return a session with results of one size and a call after each; the first may be needed at the last call."""
    events = [Event(1, EventType.USER_MESSAGE, 1, 10, 10, body={"content": "go"})]
    calls = [Call(1, 0.0, ())]
    for number in range(results):
        seq = len(events) + 1
        events.append(Event(seq, EventType.TOOL_CALL, 1, 20, call_id=f"c{seq}", tool="read", body={"arguments": {}}))
        text = f"value-{number} " + "word " * size
        events.append(
            Event(
                seq + 1,
                EventType.TOOL_RESULT,
                1,
                size,
                call_id=f"c{seq}",
                tool="read",
                call_seq=seq,
                gist="v",
                body={"content": text},
            )
        )
        last = number == results - 1
        values = (Value("value-0", (3,), True),) if needed is not None and last else ()
        calls.append(Call(len(events), gap * (number + 1), values))
    return Session("made", tuple(events), tuple(calls), 2_000)


def tally_of(given: Session, play: Player, cache: CacheProfile = ANTHROPIC) -> Tally:
    tally = Tally()
    account(tally, given, play(given, cache), cache)
    return tally


def test_a_recording_becomes_a_log_its_calls_and_the_values_they_used() -> None:
    found = session(LINE, 1)
    assert [event.type.value for event in found.events][:3] == ["system.prompt", "user.message", "tool.call"]
    assert [(call.events, call.at) for call in found.calls] == [(2, 0.0), (4, 20.0)]
    assert found.calls[1].values == (Value("src/deep/answer.py", (4,), True),)
    assert found.prefix_tokens == 500


def test_append_only_by_hand() -> None:
    given = long_session(1, 1_000, 10.0)
    tally = tally_of(given, others.append_only)
    first, second = FIXED + 10, FIXED + 10 + 20 + 1_000
    assert tally.bill.read_tokens == first
    assert tally.bill.billed == pytest.approx(1.25 * first + 0.1 * first + 1.25 * (second - first))
    cold = tally_of(long_session(1, 1_000, 300.0), others.append_only)
    assert cold.bill.billed == pytest.approx(1.25 * (first + second))


def test_paid_writes_cost_more_than_free_ones() -> None:
    given = long_session(4, 2_000, 10.0)
    free, paid = tally_of(given, others.append_only, OPENAI), tally_of(given, others.append_only, OPENAI_PAID)
    assert paid.bill.read_tokens == free.bill.read_tokens
    assert paid.bill.billed == pytest.approx(free.bill.billed + 0.25 * paid.bill.write_tokens)
    assert paid.bill.write_tokens > 0


def test_the_cache_is_read_up_to_the_first_change() -> None:
    given = long_session(3, 1_000, 10.0)
    tally = tally_of(given, others.mask_every_turn(1))
    sizes = [size for size, _ in tally.sizes]
    masked = 20 + STUB_TOKENS
    assert sizes == [FIXED + n for n in (10, 1_030, 10 + masked + 1_020, 10 + 2 * masked + 1_020)]
    # The third call keeps the first call, and the last cached prefix before its end is the first request; the fourth
    # finds the prefix that the third one marked.
    assert tally.bill.read_tokens == (FIXED + 10) + (FIXED + 10) + (FIXED + 30)


def test_the_optimum_keeps_what_is_used_later_and_is_never_dearer() -> None:
    given = long_session(12, 2_000, 10.0, needed=11)
    chosen = optimum.evictions(given, ANTHROPIC)
    gone = set().union(*(step for step in chosen if step))
    assert gone
    assert 3 not in gone
    best = tally_of(given, rivals.evicting(lambda number: chosen[number]))
    assert best.grounding == 1.0
    for play in (others.append_only, others.mask_every_turn(5), others.clear_above(10_000, 3, 0)):
        assert best.bill.billed <= tally_of(given, play).bill.billed


def test_grounding_counts_lost_values_and_not_those_in_a_stub() -> None:
    given = long_session(12, 2_000, 10.0, needed=11)
    assert tally_of(given, others.append_only).grounding == 1.0
    assert tally_of(given, others.mask_every_turn(1)).grounding == 0.0


EDITING = {
    "id": "editing",
    "system": "Be brief.",
    "tools": None,
    "messages": [
        {"role": "user", "content": "Rename the function."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "name": "Read", "arguments": {"path": "a.py"}}],
        },
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": "     1→def first():\n     2→    return 1\n" + "     3→#\n" * 90,
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "b",
                    "name": "Edit",
                    "arguments": {
                        "old_string": "def first():\n    return 1",
                        "new_string": "def second():\n    return 1",
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "Done."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "name": "Edit",
                    "arguments": '{"old_string": "def second():", "new_string": "def third():"}',
                },
                {"id": "d", "name": "Edit", "arguments": {"old_string": "never seen before", "new_string": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "Done."},
        {"role": "tool", "tool_call_id": "d", "content": "Done."},
        {"role": "assistant", "content": "Renamed."},
    ],
    "meta": {"prefix_tokens_est": 0},
}


def test_edits_are_those_whose_text_was_seen_line_numbers_aside() -> None:
    calls = session(EDITING, 1).calls
    assert [[(edit.text, edit.holders) for edit in call.edits] for call in calls] == [
        [],
        [("def first():\n    return 1", (4,))],
        [("def second():", (5,))],
        [],
    ]


def test_an_edit_that_does_not_see_its_text_is_billed_a_reading() -> None:
    given = session(EDITING, 1)
    whole, masked = tally_of(given, others.append_only), tally_of(given, rivals.evicting(lambda _: {4}))
    assert (whole.edits, whole.edits_seen, whole.rereads) == (2, 2, 0)
    assert (masked.edits, masked.edits_seen) == (2, 1)  # the second edit quotes the call before it
    assert masked.sight == 0.5
    read = given.events[3]
    call, size = 100, masked.sizes[1][0]
    assert masked.rereads == pytest.approx(0.1 * size + 1.25 * (read.tokens + call) + 5 * call)


def test_a_value_of_a_result_that_is_not_seen_is_billed_a_recall() -> None:
    given = long_session(12, 2_000, 10.0, needed=11)
    whole, masked = tally_of(given, others.append_only), tally_of(given, others.mask_every_turn(1))
    assert (whole.recalls, whole.total) == (0, whole.bill.billed)
    call, size = 100, masked.sizes[-1][0]
    assert masked.recalls == pytest.approx(0.1 * size + 1.25 * (2_000 + call) + 5 * call)
    assert masked.total == masked.bill.billed + masked.recalls


def test_a_result_that_an_edit_and_a_value_miss_is_recalled_once() -> None:
    used = [{"i": 3, "v": "def first():", "kind": "tool"}]
    given = session({**EDITING, "meta": {"prefix_tokens_est": 0, "grounding": used}}, 1)
    masked = tally_of(given, rivals.evicting(lambda _: {4}))
    assert (masked.used - masked.seen, masked.edits - masked.edits_seen, masked.recalls) == (1, 1, 0)


def test_the_newest_that_fit_begin_with_a_whole_round() -> None:
    given = long_session(8, 1_000, 10.0)
    *_, last = rivals.newest(8_000)(given, ANTHROPIC)
    seqs = [shown.seq for shown in last.shown]
    assert seqs == list(range(seqs[0], len(given.events) + 1)) and seqs[0] > 1
    assert given.events[seqs[0] - 1].type is EventType.TOOL_CALL
    assert sum(shown.tokens for shown in last.shown) + last.prefix_tokens <= 8_000


def test_ours_never_exceeds_its_target_and_opens_epochs() -> None:
    given = long_session(40, 2_000, 10.0)
    tally = tally_of(given, rivals.ours(PRESETS["default"], 50_000))
    assert tally.peak <= 50_000 * 0.9 / 1.1
    assert tally.epochs
    assert tally.bill.billed < tally_of(given, others.append_only).bill.billed


def test_markers_are_after_the_prefix_the_kept_blocks_and_the_end() -> None:
    blocks = tuple(BilledBlock(str(n), 1) for n in range(60))
    assert breakpoints(blocks, 50, 20, 4) == (1, 50, 60)
    assert breakpoints(blocks, 10, 20, 4) == (1, 10, 29, 60)
    assert breakpoints(blocks, 0, 20, 0) == ()


def test_the_picture_is_drawing_and_names() -> None:
    drawn = svg("title", {"one": [(10, False), (20, True)], "two": [(5, False), (6, False)]})
    assert drawn.startswith("<svg")
    assert drawn.count("<circle") == 1 + 2, "an epoch, and the legend"
    assert all(word in drawn for word in ("title", "one", "two"))


def test_an_axis_of_the_picture_has_several_ticks() -> None:
    drawn = svg("title", {"`one`": [(700 * call, False) for call in range(288)]})
    assert [text in drawn for text in (">50K<", ">200K<", ">1<", ">250<")] == [True] * 4
    assert "`" not in drawn


@pytest.mark.parametrize("told", [True, False])
def test_tokens_outside_of_the_log_are_cached_with_it(told: bool) -> None:
    """A policy never costs more than append-only, from the first call of a log below the provider's minimum."""
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n}"} for n in range(20)]
    bare = without_prefix({**LINE, "system": "Be brief. " * 900, "messages": messages, "meta": {}}, 1)
    assert bare.prefix_tokens > ANTHROPIC.minimum_tokens > sum(event.tokens for event in bare.events)
    bills = {}
    for name, play in (
        ("append-only", others.append_only),
        ("ours", policy_player(PRESETS["default"], 200_000, knows_size=told)),
        ("late", policy_player(PRESETS["default"], 200_000, knows_size=told, needs_minimum=True)),
    ):
        tally = Tally()
        account(tally, bare, play(bare, ANTHROPIC), ANTHROPIC)
        bills[name] = tally.bill
    assert bills["ours"] == bills["append-only"]
    assert bills["late"].billed > 2 * bills["ours"].billed


def test_a_recording_is_cut_into_runs_that_begin_with_their_task() -> None:
    def asks(name: str, count: int) -> dict[str, object]:
        made = [{"id": f"{name}{n}", "name": "read", "arguments": {"n": name}} for n in range(count)]
        return {"role": "assistant", "content": None, "tool_calls": made}

    def answers(name: str, count: int, said: str) -> list[dict[str, object]]:
        return [{"role": "tool", "tool_call_id": f"{name}{n}", "content": said} for n in range(count)]

    messages = [
        {"role": "user", "content": "go"},
        asks("a", 2),
        *answers("a", 2, "see app/old.py"),
        asks("b", 1),
        *answers("b", 1, "see app/new.py"),
        asks("c", 1),
        *answers("c", 1, "done"),
        {"role": "assistant", "content": "app/old.py and app/new.py"},
    ]
    used = [{"i": 8, "v": "app/old.py", "kind": "tool"}, {"i": 8, "v": "app/new.py", "kind": "any"}]
    times = [float(n) for n in range(len(messages))]
    value = {**LINE, "messages": messages, "meta": {"ts": times, "prefix_tokens_est": 7, "grounding": used}}
    first, second = runs(value, 2)
    assert first["messages"] == messages[:4]
    assert second["messages"] == [messages[0], *messages[4:]]
    assert second["meta"]["ts"] == [4.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    found = session(second, 1)
    assert found.prefix_tokens == 7
    assert [(v.text, v.only_results) for v in found.calls[-1].values] == [("app/new.py", True)]
    assert [one["messages"][-1] for one in runs(value, 1)] == [
        messages[3],
        messages[5],
        messages[-1],
    ]  # rounds stay whole
    whole = list(runs(value, 100))
    assert [one["messages"] for one in whole] == [messages]
