"""The parts of `bench`: rules of other clients by hand, values, places and reports."""

from pathlib import Path

import pytest

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import REQUEST_TOKENS
from app.core.tokens.models import ANTHROPIC, Bill
from palimpsest_tools.bench import clients
from palimpsest_tools.bench.billing import OUTPUT_PRICE
from palimpsest_tools.bench.find import NoSessions, Sources, default_paths
from palimpsest_tools.bench.outcomes import APPEND_ONLY, OURS, KeptValues, Recorded, RuleOutcome, outcome, rules_for
from palimpsest_tools.bench.play import SessionOutcome
from palimpsest_tools.bench.rivals import Player, append_only
from palimpsest_tools.bench.sessions import CallMade, LoggedSession, Value
from palimpsest_tools.bench.show import lines, losses
from palimpsest_tools.bench.values import Holders, values_in
from palimpsest_tools.recordings.recording import RecordedUsage, Recording
from tests.tools.logs import lines as json_lines
from tests.tools.logs import log_line, text

SAMPLES = Path(__file__).parents[1] / "samples"
SIZE = 4_000
WINDOW = 100_000


def long_session(reads: int, turns: int = 1, used: tuple[Value, ...] = ()) -> LoggedSession:
    """Return turns of reads of SIZE tokens, a call before each; the last call uses values."""
    events: list[Event] = []
    calls: list[CallMade] = []

    def add(type: EventType, tokens: int, content: str, tool: str | None = None) -> None:
        events.append(Event(len(events) + 1, type, 1, tokens, tool=tool, body={"content": content}))

    for _ in range(turns):
        add(EventType.USER_MESSAGE, 10, "go on")
        for number in range(reads):
            calls.append(CallMade(len(events), 10.0 * len(calls), ()))
            add(EventType.TOOL_CALL, 20, "", "read")
            add(EventType.TOOL_RESULT, SIZE, f"value-{number} and more", "read")
    calls[-1] = CallMade(calls[-1].events, calls[-1].at, used)
    return LoggedSession("made", tuple(events), tuple(calls), 5_000)


def played(session: LoggedSession, play: Player) -> RuleOutcome:
    return outcome(session, play(session, ANTHROPIC), ANTHROPIC, WINDOW)


def test_each_agent_compacts_at_its_own_size() -> None:
    session = long_session(40)
    peaks = {agent: played(session, clients.compacting(agent, WINDOW)).peak for agent in ("claude", "codex")}
    assert WINDOW - 33_000 - 2 * SIZE < peaks["claude"] < WINDOW - 33_000
    assert WINDOW * 0.9 - 2 * SIZE < peaks["codex"] < WINDOW * 0.9
    assert played(session, append_only).over_window > 0


def test_a_compaction_is_billed_with_the_request_for_its_summary() -> None:
    session = long_session(40)
    found = played(session, clients.compacting("codex", WINDOW))
    assert found.summaries == 1
    assert found.output == OUTPUT_PRICE * clients.SUMMARY_TOKENS
    assert found.billed == found.bill.billed + found.output
    gemini = played(long_session(20, turns=3), clients.compacting("gemini", WINDOW))
    assert gemini.summaries % 2 == 0 < gemini.summaries


def test_gemini_compresses_nothing_within_a_single_turn() -> None:
    session = long_session(40)
    assert played(session, clients.compacting("gemini", WINDOW)) == played(session, append_only)


def test_claude_code_restores_the_five_last_files_and_opencode_keeps_the_newest_messages() -> None:
    session = long_session(30)
    for agent, kept in (("claude", 5 * SIZE), ("opencode", 15_000)):
        sent = list(clients.compacting(agent, WINDOW)(session, ANTHROPIC))
        first = next(request for request in sent if request.cause == "compacted")
        size = sum(one.tokens for one in first.shown) - clients.SUMMARY_TOKENS
        assert kept - SIZE <= size <= kept


def test_pruning_clears_old_results_of_earlier_turns_only() -> None:
    single, several = long_session(40), long_session(12, turns=6)
    assert played(single, clients.prune) == played(single, append_only)
    *_, last = clients.prune(several, ANTHROPIC)
    cleared = [one.seq for one in last.shown if one.version == "stub"]
    turns = [event.seq for event in several.events if event.type is EventType.USER_MESSAGE]
    assert cleared
    assert max(cleared) < turns[-3]


def test_values_of_a_summarized_part_are_kept_by_the_share_that_summaries_keep() -> None:
    session = long_session(40, used=(Value("value-0", (3,), only_results=True),))
    found = played(session, clients.compacting("codex", WINDOW)).kept
    assert (found.uses, found.visible, found.in_results) == (1, clients.SUMMARY_KEEPS, 1)
    assert played(session, append_only).kept.visible == 1.0
    assert played(session, rules_for(session, WINDOW)["keep the newest 10 tool results"]).kept.visible == 0.0


def test_a_rule_is_left_out_where_its_agent_has_no_room() -> None:
    small = rules_for(long_session(1), 40_000)
    assert "Claude Code's compaction" not in small
    assert "Codex's compaction" in small


def test_values_are_names_that_stood_in_the_log() -> None:
    assert values_in({"path": "src/tide.py", "text": "please read it now", "n": "readTide(123456)"}) == [
        "src/tide.py",
        "readTide",
        "123456",
    ]
    assert values_in({"content": "src/tide.py " * 40}) == []
    holders = Holders()
    assert holders.value("src/tide.py") is None
    holders.add(Event(1, EventType.TOOL_RESULT, 1, 9, body={"content": "see src/tide.py:9"}))
    assert holders.value("src/tide.py") == Value("src/tide.py", (1,), only_results=True)
    holders.add(Event(2, EventType.USER_MESSAGE, 1, 9, body={"content": "open src/tide.py"}))
    assert holders.value("src/tide.py") == Value("src/tide.py", (1, 2), only_results=False)


def test_uses_and_different_values_are_counted_apart() -> None:
    kept = KeptValues()
    for seen in (1.0, 0.0, 1.0):
        kept.add("a/b", seen, only_results=False)
    kept.add("c/d", 1.0, only_results=True)
    assert (kept.uses, kept.visible, len(kept.unique), kept.unique_visible) == (4, 3.0, 2, 1.0)


def test_recorded_usage_is_billed_by_its_own_prices() -> None:
    found = Recorded()
    found.add(RecordedUsage(1_000, read=600, write=300, output=9, write_hour=100), ANTHROPIC)
    assert found.billed == pytest.approx(0.1 * 600 + 1.25 * 200 + 2.0 * 100 + 100)
    assert (found.calls, found.tokens, found.writes_hour) == (1, 1_000, 100)


# Files


def conversation(answers: int) -> str:
    turns = (
        (log_line("user", f"go {n}", uuid=f"u{n}"), log_line("assistant", [text("ok")], key=f"m{n}", uuid=f"a{n}"))
        for n in range(answers)
    )
    return json_lines(*(line for turn in turns for line in turn))


def test_everything_that_is_not_read_is_counted(tmp_path: Path) -> None:
    good = conversation(4).splitlines(keepends=True)
    (tmp_path / "good.jsonl").write_text("".join((*good[:3], "{damaged\n", *good[3:], '{"type": "us')))
    (tmp_path / "short.jsonl").write_text(conversation(1))
    (tmp_path / "empty.jsonl").write_text(json_lines({"type": "summary", "summary": "s"}))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "settings.json").write_text("{}")
    sources = Sources([tmp_path], calls_min=3)
    assert [one.id for one in sources.sessions()] == ["good"]
    assert sources.notes() == [
        "1 session left out: fewer than 3 calls (--min-calls)",
        "1 log left out: no conversation in it",
        "2 damaged lines left out of logs",
        "1 file that could not be read:",
        "    binary.jsonl:1: not UTF-8: invalid start byte",
    ]


def test_a_named_file_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing of the kind")
    with pytest.raises(NoSessions, match=r"not JSON.*Claude Code, Codex, Gemini CLI, opencode"):
        list(Sources([file], 1).sessions())


def test_without_a_folder_those_of_the_agents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoSessions, match=r"agents keep their sessions in ~/\.claude/projects"):
        default_paths()
    (tmp_path / ".codex" / "sessions").mkdir(parents=True)
    assert default_paths() == [tmp_path / ".codex" / "sessions"]


# The report


def compared(**billed: float) -> SessionOutcome:
    names = {"ours": OURS, "base": APPEND_ONLY, "codex": "Codex's compaction"}
    found = {names[name]: RuleOutcome(Bill(billed=price)) for name, price in billed.items()}
    recording = Recording("one", "openai", None, None, (), agent="codex")
    return SessionOutcome(recording, WINDOW, ANTHROPIC, 1_000, Recorded(), found)


def test_a_loss_is_shown_with_its_rule_and_none_is_said() -> None:
    lost = compared(ours=120.0, base=200.0, codex=100.0)
    ((difference, one, rule),) = losses([lost])
    assert (round(difference, 2), one.recording.id, rule) == (0.2, "one", "Codex's compaction")
    shown = "\n".join(lines([lost], []))
    assert "+20.0%" in shown.split("WHERE PALIMPSEST LOSES")[1]
    won = "\n".join(lines([compared(ours=90.0, base=200.0, codex=100.0)], []))
    both = "\n".join(lines([compared(ours=90.0, base=200.0, codex=100.0), lost], []))
    assert "210" in both.split("\nall")[1].split("\n")[0]
    assert "in no session is a rule that fits the window cheaper" in won


def test_a_rule_that_exceeds_the_window_is_no_loss() -> None:
    lost = compared(ours=120.0, base=100.0)
    lost.outcomes[APPEND_ONLY].over_window = 1
    assert losses([lost]) == []
    assert "no other rule fits the window in any session" in "\n".join(lines([lost], []))


def test_rules_bill_the_same_calls() -> None:
    session = long_session(8)
    found = {name: played(session, play) for name, play in rules_for(session, WINDOW).items()}
    first = REQUEST_TOKENS + session.prefix_tokens + 10
    assert all(one.bill.tokens >= len(session.calls) * first for one in found.values())
    assert found[APPEND_ONLY].peak == first + 7 * (SIZE + 20)
