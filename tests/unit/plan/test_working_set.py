"""The newest content of files, and the rules that keep it in a context."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.plan.pipeline import Plan, plan
from app.core.plan.reducers.economics import EconomicReducer
from app.core.plan.reducers.fold import HealReducer
from app.core.plan.state.frontier import START, Drop
from app.core.plan.state.results import REPORT_TOKENS_MAX, WorkedFiles, held_content, ranked_files, short_search_results
from app.core.plan.update import PlanInputs
from app.core.policy.policy import PRESETS, Policy
from app.core.tokens.budget import ROUND_SHARE, Budget
from app.core.tokens.models import ANTHROPIC, ANTHROPIC_HOUR, OPENAI, OPENAI_PAID, CacheProfile
from tests.support.examples import examples
from tests.unit.builders import COUNTER, Log

CACHE = CacheProfile(read_price=0.1, write_price=1.25, ttl_seconds=300, minimum_tokens=0, lookback_blocks=None)
DEFAULT = PRESETS["default"]
PLAIN = replace(DEFAULT, retention=replace(DEFAULT.retention, working_set=0))


def add_call(
    log: Log, tool: str, arguments: dict[str, Any], tokens: int = 600, *, failed: bool = False
) -> tuple[int, int]:
    """Append a call and its result; return their seqs."""
    call = log.call(tool, 200, body={"arguments": arguments})
    return call, log.result(call, tokens, is_error=failed)


def read(log: Log, path: str, tokens: int = 600, **part: int) -> int:
    return add_call(log, "Read", {"file_path": path, **part}, tokens)[1]


def add_edit(log: Log, path: str) -> int:
    return add_call(log, "Edit", {"file_path": path, "old_string": "a", "new_string": "b " * 300}, 60)[0]


def add_search(log: Log, tokens: int = 600) -> int:
    return log.result(log.call("Grep", 20, body={"arguments": {"pattern": "x"}}), tokens)


def make_plan(
    log: Log, target: int, policy: Policy = DEFAULT, tree: tuple[Summary, ...] = (), *, now: float = 0.0
) -> Plan:
    budget = Budget(target, 0, 0, target, int(target * policy.low_water), target, policy.low_water)
    inputs = PlanInputs(log.events, log.turn, COUNTER, now=now, used_at=0.0, cache=CACHE, tree=tree)
    return plan(inputs, budget, policy, START)


def whole_seqs(found: Plan) -> set[int]:
    return {item.event.seq for item in found.context.items if item.stub is None}


def files_shown(log: Log) -> dict[str, tuple[int, ...]]:
    return dict(log.plan(1_000_000).context.worked_files.shown_by)


def test_the_newest_content_is_the_last_whole_text_with_later_edits() -> None:
    log = Log()
    log.user()
    read(log, "a.py")
    first = read(log, "a.py")
    part = read(log, "./a.py", offset=10, limit=20)
    changed = add_edit(log, "a.py")
    add_call(log, "Edit", {"file_path": "a.py", "old_string": "a", "new_string": "b"}, failed=True)
    assert files_shown(log) == {"a.py": (first, part, changed)}
    written, _ = add_call(log, "Write", {"file_path": "a.py", "content": "anew"})
    other = read(log, "b.py")
    assert files_shown(log) == {"a.py": (written,), "b.py": (other,)}


def test_an_edit_that_only_deletes_shows_nothing() -> None:
    log = Log()
    log.user()
    deletion = {"file_path": "a.py", "old_string": "a " * 200, "new_string": ""}
    add_call(log, "Edit", deletion)
    assert files_shown(log) == {} and ranked_files(log.plan(1_000_000).context) == ()
    first = read(log, "a.py")
    add_call(log, "Edit", deletion)
    assert files_shown(log) == {"a.py": (first,)}
    mostly, less = ({**deletion, "new_string": "b " * count} for count in (30, 60))
    add_call(log, "Edit", mostly)
    assert files_shown(log) == {"a.py": (first,)}
    changed, _ = add_call(log, "Edit", less)
    assert files_shown(log) == {"a.py": (first, changed)}


def test_the_answer_that_a_file_does_not_exist_shows_nothing_of_it() -> None:
    log = Log()
    log.user()
    call = log.call("Read", 20, body={"arguments": {"file_path": "a.py"}})
    log.result(call, 600, gist="File does not exist. Did you mean b.py?")
    assert files_shown(log) == {}


def test_short_results_of_searches_stay_for_the_turn_that_made_them() -> None:
    log = Log()
    log.user()
    add_search(log)
    log.user()
    search, listing = add_search(log), add_call(log, "Bash", {"command": "git status"}, 500)[1]
    add_search(log, 801)
    add_call(log, "Bash", {"command": "make test"}, 500)
    context = log.plan(1_000_000).context
    assert [list(short_search_results(context, calls)) for calls in (16, 3, 0)] == [[listing, search], [listing], []]
    reducer = EconomicReducer(DEFAULT.retention, DEFAULT.economics, CACHE, "cold")
    assert {listing, search} <= reducer.working_set(context, START)


@pytest.mark.parametrize(
    ("command", "shows", "changes"),
    [
        ("cd src && cat a.py | head -20", ["src/a.py"], []),
        ("sed -n 1,40p b.py; tail -n 5 c.py", ["b.py", "c.py"], []),
        ("sed -n -e 1,5p -e 9p b.py; sed -n --expression=7p c.py", ["b.py", "c.py"], []),
        ("sed -i s/a/b/ b.py; sed -n -i s/a/b/p c.py", [], ["b.py", "c.py"]),
        ("apply_patch <<'X'\n*** Begin Patch\n*** Update File: d.py\n+new\n*** End Patch\nX", [], ["d.py"]),
        ("make test > /dev/null", [], []),
    ],
)
def test_commands_show_and_change_files_as_well(command: str, shows: list[str], changes: list[str]) -> None:
    log = Log()
    log.user()
    call, result = add_call(log, "Bash", {"command": command})
    assert files_shown(log) == dict.fromkeys(shows, (result,)) | dict.fromkeys(changes, (call,))


def test_content_leaves_the_working_set_when_its_file_is_no_longer_used() -> None:
    log = Log()
    log.user()
    old, changed = read(log, "a.py"), add_edit(log, "a.py")
    new = read(log, "b.py")
    context = log.plan(1_000_000).context
    assert ranked_files(context, 4) == (changed, new, old)
    for _ in range(4):
        add_search(log)
    assert ranked_files(log.plan(1_000_000).context, 4) == (changed,)  # arguments stay four times as long
    assert ranked_files(log.plan(1_000_000).context, 0) == ()
    log.user()
    assert ranked_files(log.plan(1_000_000).context, 8) == (changed,)
    assert set(ranked_files(log.plan(1_000_000).context)) == {old, changed, new}


def test_the_working_set_is_smaller_where_writing_the_cache_is_dearer() -> None:
    log = Log()
    log.user()
    file = read(log, "a.py")
    for _ in range(12):
        add_search(log)
    context = log.plan(1_000_000).context

    def goes(cache: CacheProfile) -> bool:
        queue = EconomicReducer(DEFAULT.retention, DEFAULT.economics, cache, "cold").due_candidates(context, START)
        return file in {candidate.item.event.seq for candidate in queue}

    assert [goes(cache) for cache in (ANTHROPIC, OPENAI, OPENAI_PAID, ANTHROPIC_HOUR)] == [False, False, False, True]


def test_no_more_is_held_than_its_share_of_the_goal() -> None:
    log = Log()
    log.user()
    small, large, newest = read(log, "a.py", 300), read(log, "b.py", 5_000), read(log, "c.py", 400)
    context = log.plan(1_000_000).context
    assert held_content(context, 16, 1_000) == (newest, small)
    assert held_content(context, 16, 100_000) == (newest, large, small)
    assert held_content(context, 0, 100_000) == ()


def test_the_working_set_excludes_the_prefixs_tokens() -> None:
    log = Log()
    log.system(9_000)
    log.user()
    older, newest = read(log, "a.py", 800), read(log, "b.py", 400)
    context = log.plan(1_000_000).context
    assert held_content(context, 16, 10_000) == (newest,)
    assert held_content(context, 16, 12_000) == (newest, older)
    assert held_content(replace(context, ephemeral_tokens=2_000), 16, 12_000) == (newest,)
    assert held_content(context, 16, 5_000) == ()


def test_the_budget_keeps_the_newest_content_of_files_outside_the_working_set() -> None:
    log = Log()
    log.user()
    file = read(log, "a.py", 300)
    for _ in range(20):
        add_search(log)
    for _ in range(3):
        log.user()
    context = log.plan(1_000_000).context
    assert ranked_files(context, 4) == ()
    assert held_content(context, 4, 10_000) == (file,)


def run(log: Log, command: str, output: str, tokens: int = 400) -> int:
    """Append a shell command and its output; return the seq of that."""
    call = log.call("Bash", 20, body={"arguments": {"command": command}})
    return log.result(call, tokens, body={"content": output})


RED, GREEN = "Exit code 1\n--- FAIL: TestTide\nFAIL", "ok  tide 0.2s"


def test_the_output_of_a_check_that_still_fails_is_held_first() -> None:
    log = Log()
    log.user()
    read(log, "a.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (3,)
    run(log, "go build ./...", "")
    failure = run(log, "go test ./...", RED)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (failure, 3)
    run(log, "git commit -m x", "")
    run(log, "go vet ./...", "")
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (failure, 3)
    assert held_content(log.plan(1_000_000).context, 0, 10_000) == ()
    newer = run(log, "go test ./... 2>&1", RED)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (newer, 3)
    run(log, "go test ./...", GREEN)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (3,)


def test_short_results_of_the_newest_searches_are_held_last_as_far_as_their_share_allows() -> None:
    log = Log()
    log.user()
    add_search(log, 300)
    file = read(log, "a.py", 300)
    newer, newest = add_search(log, 500), add_search(log, 400)
    add_search(log, 900)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (file, newest, newer)
    assert held_content(log.plan(1_000_000).context, 2, 10_000) == (file, newest)
    log.user()
    assert newest not in held_content(log.plan(1_000_000).context, 16, 10_000)


def test_a_refused_edit_shows_no_content_of_its_file() -> None:
    log = Log()
    log.user()
    file = read(log, "a.py", 300)
    arguments = {"file_path": "a.py", "old_string": "a", "new_string": "b"}
    log.result(log.call("Edit", 80, body={"arguments": arguments}), gist="<tool_use_error>File has not been read yet.")
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (file,)


@pytest.mark.parametrize("tokens", [400, 2_000])
def test_large_outputs_and_those_of_earlier_turns_are_not_held(tokens: int) -> None:
    log = Log()
    log.user()
    run(log, "go test ./...", RED, tokens)
    if tokens == 400:
        log.user()
    assert held_content(log.plan(1_000_000).context, 16, 100_000) == ()


def test_the_budget_keeps_the_error_to_mend() -> None:
    log = Log()
    log.user()
    failure = run(log, "go test ./...", RED)
    for _ in range(8):
        add_search(log)
    kept, plain = make_plan(log, 3_500), make_plan(log, 3_500, PLAIN)
    assert kept.cause == plain.cause == "budget"
    assert failure in whole_seqs(kept) and failure not in whole_seqs(plain)


def test_the_budget_evicts_content_outside_the_working_set_first() -> None:
    log = Log()
    log.user()
    file, changed = read(log, "a.py"), add_edit(log, "a.py")
    newer = [add_search(log) for _ in range(8)]
    kept, plain = make_plan(log, 5_500), make_plan(log, 5_500, PLAIN)
    assert kept.cause == plain.cause == "budget"
    assert {file, changed} <= whole_seqs(kept)
    assert not {file, changed} & whole_seqs(plain)
    assert not set(newer[:5]) & whole_seqs(kept)


def test_a_cold_cache_evicts_only_content_outside_the_working_set() -> None:
    log = Log()
    log.user()
    file, changed = read(log, "a.py", 3_000), add_edit(log, "a.py")
    search = add_search(log, 2_000)
    for _ in range(2):
        add_search(log, 40)
    log.assistant()
    log.user()
    kept, plain = make_plan(log, 1_000_000, now=400.0), make_plan(log, 1_000_000, PLAIN, now=400.0)
    assert kept.cause == plain.cause == "cold_cache"
    assert {file, changed} <= whole_seqs(kept) and search not in whole_seqs(kept)
    assert not {file, changed, search} & whole_seqs(plain)


def test_the_last_resort_drops_other_rounds_first() -> None:
    log = Log()
    log.user()
    file = read(log, "a.py", 1_000)
    for _ in range(40):
        log.assistant(300)
    add_edit(log, "a.py")
    kept, plain = make_plan(log, 6_000), make_plan(log, 6_000, PLAIN)
    assert kept.state.drops and plain.state.drops
    assert file in whole_seqs(kept)
    assert file not in whole_seqs(plain)
    assert max(kept.context.tokens, plain.context.tokens) <= 6_000


def test_files_are_restored_into_a_third_of_the_freed_tokens() -> None:
    log = Log()
    log.user()
    old = read(log, "a.py", 500)
    for _ in range(20):
        add_search(log, 700)
    room = 6_000
    planned = make_plan(log, room)
    assert old not in ranked_files(planned.context, DEFAULT.retention.working_set)  # no longer in the working set
    assert old in whole_seqs(planned)
    assert planned.context.tokens <= Budget(room, 0, 0, room, int(0.7 * room)).refill
    tight = make_plan(log, room, replace(DEFAULT, low_water=1.0))
    assert tight.context.tokens <= room


def test_a_fold_keeps_the_rounds_of_the_working_set_next_to_its_summary() -> None:
    log = Log()
    log.user()
    file = read(log, "a.py", 900)
    search = add_search(log, 900)
    for _ in range(20):
        log.assistant(400)
    add_edit(log, "a.py")
    last = len(log.events) - 3
    tree = (Summary("one", 1, last, 0, 60, "what was said", 9_000, last),)
    kept, plain = make_plan(log, 6_000, tree=tree), make_plan(log, 6_000, PLAIN, tree=tree)
    assert kept.state.folded_to == plain.state.folded_to == last
    assert not kept.state.drops
    assert file in whole_seqs(kept) and search not in {item.event.seq for item in kept.context.items}
    assert file not in whole_seqs(plain)


def test_covered_content_of_files_is_evicted_before_uncovered_rounds() -> None:
    log = Log()
    log.user()
    files = {read(log, f"{name}.py", 900) for name in "abcd"}
    last = log.events[-1].seq
    tree = (Summary("one", 1, last, 0, 60, "what was said", 9_000, last),)
    for _ in range(5):
        log.assistant(600)
    planned = make_plan(log, 5_000, tree=tree)
    assert not planned.state.drops
    assert set(range(last + 1, len(log.events) + 1)) <= whole_seqs(planned)
    assert 0 < len(files & whole_seqs(planned)) < len(files)
    assert make_plan(log, 5_000).state.drops  # without a summary some events are dropped


def plan_with_summary(target: int, files: int, tokens: int, words: int) -> tuple[Plan, list[int]]:
    """Return a plan whose budget folds reads of files under a summary, and the seqs of the reads."""
    log = Log()
    log.user()
    reads = [read(log, f"{number}.py", tokens) for number in range(files)]
    last = log.events[-1].seq
    tree = (Summary("one", 1, last, 0, words, "word " * words, 90_000, last),)
    for _ in range(4):
        log.assistant(target // 12)
    found = make_plan(log, target, tree=tree)
    assert found.state.folds and found.cause == "budget"
    return found, [seq for seq in reads if seq in whole_seqs(found)]


@pytest.mark.parametrize("words", [300, 500, 900])
def test_content_of_files_next_to_summaries_leaves_room_for_one_more_call(words: int) -> None:
    """Without it the next call would open another epoch, and so would most calls after it."""
    target, tokens = 20_000, 600
    found, shown = plan_with_summary(target, 24, tokens, words)
    assert target - target * ROUND_SHARE - tokens < found.context.tokens <= target - target * ROUND_SHARE
    assert shown == sorted(shown) and len(shown) > 10


def test_content_larger_than_that_room_stays() -> None:
    """An edit may quote it, and far more would be freed than one more call takes."""
    target = 5_000
    found, shown = plan_with_summary(target, 7, 680, 300)
    assert found.context.tokens > target - target * ROUND_SHARE
    assert shown


@given(st.lists(st.tuples(st.sampled_from(["read", "part", "edit", "write"]), st.sampled_from("abc")), max_size=12))
@settings(max_examples=examples(60))
def test_knowledge_of_files_is_independent_of_batches(steps: list[tuple[str, str]]) -> None:
    log = Log()
    log.user()
    for how, path in steps:
        if how in ("read", "part"):
            read(log, path, **({"offset": 3} if how == "part" else {}))
        elif how == "edit":
            add_edit(log, path)
        else:
            add_call(log, "Write", {"file_path": path, "content": "new"})
    answers = log.plan(1_000_000).context.paired_results
    at_once = WorkedFiles().extend(answers)
    for count in range(len(answers) + 1):
        assert WorkedFiles().extend(answers[:count]).extend(answers[count:]) == at_once
        assert list(WorkedFiles().extend(answers[:count]).extend(answers[count:]).shown_by) == list(at_once.shown_by)
    results = {e.seq for e in log.events if e.type is EventType.TOOL_RESULT}
    calls = {e.seq for e in log.events if e.type is EventType.TOOL_CALL}
    assert {seq for seqs in at_once.shown_by.values() for seq in seqs} <= results | calls
    assert set(at_once.shown_by) == {path for _, path in steps}


def test_the_report_that_the_newest_request_follows_is_held_first() -> None:
    log = Log()
    log.user()
    older = read(log, "a.py", 300)
    report = log.assistant(600)
    assert report not in held_content(log.plan(1_000_000).context, 16, 10_000)  # its turn is running
    log.user()
    newer = read(log, "b.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (report, newer, older)
    assert held_content(log.plan(1_000_000).context, 0, 10_000) == ()
    log.assistant(REPORT_TOKENS_MAX + 1)
    log.user()
    newest = read(log, "c.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (newest, newer, older)


def test_a_turn_that_ends_with_a_call_has_no_report() -> None:
    log = Log()
    log.user()
    log.assistant(100)
    older = read(log, "a.py", 300)
    log.user()
    newer = read(log, "b.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (newer, older)


PLAN = "Implement the following plan:\n\n# Gauge\n\n## Steps\n" + "Sort the gauge, then print it.\n" * 40


def test_the_plan_that_the_user_gave_in_an_earlier_turn_is_held() -> None:
    log = Log()
    plan = log.user(body={"content": PLAN}, tokens=400)
    older = read(log, "a.py", 300)
    assert plan not in log.plan(1_000_000).state.kept
    log.user(body={"content": "done, continue"})
    newer = read(log, "b.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (plan, newer, older)
    assert held_content(log.plan(1_000_000).context, 16, 2_000) == (newer, older)  # larger than its share
    for _ in range(4):
        log.user(body={"content": "go on"})
    assert plan not in held_content(log.plan(1_000_000).context, 16, 10_000)


@pytest.mark.parametrize(
    "text", ["Sort the gauge. " * 100, f"Base directory for this skill: /a\n{PLAN}", "# Gauge\n\n## Steps\n- Sort it."]
)
def test_a_long_text_without_headings_a_loaded_one_and_a_short_one_are_no_plan(text: str) -> None:
    log = Log()
    log.user(body={"content": text}, tokens=400)
    log.user(body={"content": "go on"})
    file = read(log, "a.py", 300)
    assert held_content(log.plan(1_000_000).context, 16, 10_000) == (file,)


@pytest.mark.parametrize(("calls", "kept"), [(16, True), (0, False)])
def test_the_report_stays_when_dropped_events_are_folded(calls: int, kept: bool) -> None:
    log = Log()
    log.user()
    report = log.assistant(200)
    log.user()
    dropped = read(log, "a.py", 300)
    read(log, "b.py", 300)
    context = log.plan(1_000_000).context
    context = replace(context, items=tuple(i for i in context.items if i.event.seq not in (dropped - 1, dropped)))
    state = replace(START, drops=(Drop(dropped - 1, dropped, 300, "last_resort", "oldest"),))
    tree = (Summary("one", 1, dropped, 0, 20, "the gauge was read", 500, dropped),)
    budget = Budget(100_000, 0, 0, 100_000, 70_000, 100_000, 0.7)
    healed = HealReducer(tree, DEFAULT.summarize, calls).reduce(context, budget, state)
    assert (healed.context.item(report) is not None) is kept
    assert healed.state.drops == () and healed.context.item(1) is None
