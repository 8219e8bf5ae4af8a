"""The quality benchmark's figures on a session small enough to compute by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.tokens.counter import REQUEST_TOKENS
from bench.cost.sessions import COUNTER
from bench.quality import baselines, tables, texts
from bench.quality.answers import short_answers, with_questions
from bench.quality.kept import Kept, count_dropped, kept_needs, text_of, total
from bench.quality.picture import svg
from bench.quality.recorded import Recorded, recorded
from bench.quality.scenarios import FIRST_ASKED, LIVED_THROUGH, Record, policy_of

SYSTEM = "Work on the parser."


def call(id: str, name: str, **arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "name": name, "arguments": json.dumps(arguments)}],
    }


def result(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


GOODBYE = [("assistant", "Pushed."), ("user", "Thanks"), ("assistant", "Anything else?"), ("user", "yes")]
LINE: dict[str, Any] = {
    "id": "one",
    "system": SYSTEM,
    "tools": None,
    "messages": [
        {"role": "user", "content": "Never touch  the lexer. Always run make. Fix it."},
        call("a", "Grep", pattern="x"),
        result("a", "found in src/old.py and src/both.py"),
        call("b", "Edit", file_path="src/old.py"),
        result("b", "edited " + "word " * 2_000),
        call("c", "Read", path="src/new.py"),
        result("c", "src/both.py"),
        call("d", "Read", path="src/old.py"),
        result("d", "src/old.py"),
        call("e", "Read", path="src/old.py"),
    ],
    "meta": {
        "ts": [0, 30, 20, None, 40, 50, 60, 70, 80, 90],
        "compactions": [{"at": 7, "summary": "Edited old.py in src/old.py."}],
        "artifacts": {"modified": ["src/old.py"]},
        "grounding": [
            {"i": 7, "v": "src/old.py", "first": 2, "last": 3, "kind": "both"},
            {"i": 9, "v": "src/old.py", "first": 2, "last": 8, "kind": "both"},
            {"i": 9, "v": "src/both.py", "first": 2, "last": 6, "kind": "tool"},
            {"i": 9, "v": "behind the point", "first": 8, "last": 8, "kind": "tool"},
        ],
    },
}


@pytest.fixture
def one() -> Recorded:
    return recorded(LINE, 1)


def test_a_session_is_posted_as_its_agent_appended_it(one: Recorded) -> None:
    assert list(one.calls(0, 7)) == [(0, 1), (1, 3), (3, 5), (5, 7)]
    assert list(one.calls(7, 9)) == [(7, 9)]
    assert one.messages[1]["content"] is None
    assert one.messages[1]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "Grep", "arguments": '{"pattern": "x"}'}}
    ]
    assert one.messages[2] == {"role": "tool", "content": LINE["messages"][2]["content"], "tool_call_id": "a"}
    assert [event["type"] for event in one.head] == ["system.prompt"]
    assert one.times[2] == one.times[3] == "1970-01-01T00:00:30+00:00"


def test_the_points_of_a_session_are_its_compactions_or_else_shares_of_it(one: Recorded) -> None:
    assert [(moment.point.at, moment.now) for moment in one.moments] == [(7, "1970-01-01T00:01:00+00:00")]
    without = LINE | {"meta": LINE["meta"] | {"compactions": []}}
    assert [moment.point.at for moment in recorded(without, 1, (0.5, 0.8)).moments] == [5, 9]
    assert recorded(without, 1).moments == ()


def test_a_session_without_a_system_prompt_is_given_one() -> None:
    given = recorded(LINE | {"system": None}, 1)
    assert given.system and given.head[0]["content"] == given.system


def test_kept_values_are_counted_by_use_and_by_value(one: Recorded) -> None:
    (moment,) = one.moments
    kept = kept_needs(moment, SYSTEM, "Edited old.py; Never touch\nthe lexer.")
    assert (kept.values, kept.distinct, kept.unseen) == ((0, 3), (0, 2), (0, 2))
    assert (kept.files, kept.names, kept.constraints) == ((0, 1), (1, 1), (1, 3))
    kept = kept_needs(moment, SYSTEM, f"{SYSTEM} src/old.py")
    assert (kept.values, kept.distinct, kept.unseen) == ((2, 3), (1, 2), (1, 2))
    assert (kept.files, kept.names, kept.constraints) == ((1, 1), (1, 1), (1, 3))


def test_a_request_is_searched_as_a_model_reads_it() -> None:
    arguments = json.dumps({"cmd": 'say "hi"\n', "deep": [{"path": "a/b"}], "n": 1})
    text = text_of(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "said"}]},
                {"role": "assistant", "tool_calls": [{"function": {"name": "sh", "arguments": arguments}}]},
                {"role": "assistant", "tool_calls": [{"function": {"name": "sh", "arguments": '{"broken'}}]},
            ]
        }
    )
    for needed in ("said", 'say "hi"\n', "a/b", '{"broken'):
        assert needed in text


def test_events_dropped_although_a_summary_covers_them() -> None:
    runs = [
        {"from_seq": 2, "to_seq": 9, "disposition": "dropped"},
        {"from_seq": 5, "to_seq": 5, "disposition": "dropped"},
        {"from_seq": 10, "to_seq": 20, "disposition": "summarized"},
    ]
    assert count_dropped(runs, [{"from_seq": 1, "to_seq": 4}, {"from_seq": 3, "to_seq": 3}]) == (3, 8)
    assert count_dropped(runs, []) == (0, 8)


def test_the_newest_rounds_that_fit_are_whole(one: Recorded) -> None:
    tokens = [10, 5, 20, 5, 900, 5, 20]
    assert baselines.fitting(one.messages[:7], tokens, 24) == (7, 0)
    assert baselines.fitting(one.messages[:7], tokens, 25) == (5, 25)
    assert baselines.fitting(one.messages[:7], tokens, 929) == (5, 25)
    assert baselines.fitting(one.messages[:7], tokens, 930) == (3, 930)
    assert baselines.fitting(one.messages[:7], tokens, 10_000) == (0, 965)


def test_the_newest_messages_with_a_summary(one: Recorded) -> None:
    (moment,) = one.moments
    tokens = baselines.tokens_by_message(moment.point.events, 7)
    assert tokens[4] == COUNTER.result(LINE["messages"][4]["content"])
    kept = baselines.newest(one, moment, 4_000)
    assert (kept.values, kept.files) == ((1, 3), (0, 1))
    target = int(3_600 / 1.1)
    assert kept.used == (REQUEST_TOKENS + COUNTER.message(SYSTEM) + tokens[5] + tokens[6]) / target
    own = baselines.own_summary(one, moment, 4_000)
    assert own is not None and (own.values, own.files, own.names) == ((3, 3), (1, 1), (1, 1))
    assert own.used == pytest.approx(kept.used + COUNTER.message(moment.point.summary) / target)
    assert baselines.newest(one, moment, 64_000).values == (3, 3)
    assert baselines.own_summary(one, replace(moment, point=replace(moment.point, summary="")), 4_000) is None


def test_points_are_weighted_by_their_needs() -> None:
    few, many = kept((1, 1)), kept((0, 3))
    records = [Record(FIRST_ASKED, 8_000, "one", 7, few), Record(FIRST_ASKED, 8_000, "two", 9, many)]
    assert total([few.values, many.values]) == (1, 4)
    assert tables.values(records, FIRST_ASKED, 8_000) == 0.25
    assert tables.values(records, FIRST_ASKED, 16_000) is None
    records.append(Record(LIVED_THROUGH, 8_000, "one", 7, kept((3, 4))))
    assert tables.comparison(records).splitlines()[-1] == "| 8,000 | 25.0% | 75.0% | -50.0 |"


def test_a_refused_context_keeps_nothing_and_is_counted() -> None:
    records = [
        Record(FIRST_ASKED, 8_000, "one", 7, replace(kept((0, 2)), refused="too small")),
        Record(
            FIRST_ASKED,
            8_000,
            "two",
            7,
            replace(kept((2, 2)), used=0.5, dropped=4, lost=1, covered=(3, 4), cause="budget"),
        ),
    ]
    heads, _, line = tables.scenario_table(records, FIRST_ASKED).splitlines()
    row = dict(zip(heads.split(" | "), line.split(" | "), strict=True))
    assert (row["values"], row["of the target"], row["least used"]) == ("50.0%", "50%", "50%")
    assert row["of all covered"] == "75%"
    assert (row["dropped"], row["of them covered"], row["epochs opened by"], row["refused"]) == (
        "4",
        "1",
        "budget 1",
        "1",
    )


def test_a_policy_is_compared_with_a_change_to_it() -> None:
    records = [
        Record("clip from the start", 8_000, "one", 7, replace(kept((3, 4)), used=0.5)),
        Record("default, then clip", 8_000, "one", 7, replace(kept((1, 4)), used=0.25, dropped=7, lost=6)),
        Record("default, then clip, worker done", 8_000, "one", 7, kept((2, 4))),
    ]
    assert tables.policies(records).splitlines()[2:] == [
        "| 8,000 | `clip` | 75.0% | 25.0% | 50.0% | 50% | 25% | 0 | 6 | 0 |"
    ]


def test_the_picture_has_a_line_for_each_scenario() -> None:
    drawn = svg("kept", {"first asked": [(8_000, 0.5), (64_000, 1.0)], "the newest": [(8_000, 0.1), (64_000, 0.9)]})
    assert drawn.count('<path class="line') == 2 + 2, "two lines, and the legend"
    assert "all messages arrive" in drawn and ">64,000</text>" in drawn


def test_contexts_are_written_for_readers_beside_the_messages_before_and_after_them(
    one: Recorded, tmp_path: Path
) -> None:
    shown = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a summary"}]}, one.messages[5]]}
    for title in ("first asked", "lived through"):
        texts.write(tmp_path / "out", title, one, one.moments[0], shown)
    index = (tmp_path / "out" / "index.txt").read_text()
    assert index == "01 first asked: one, before message 7\n02 lived through: one, before message 7\n"
    parts = {name: (tmp_path / "out" / f"02-{name}.txt").read_text() for name in ("context", "log", "next")}
    assert "[0] user\na summary\n" in parts["context"]
    assert 'CALL Read {"path": "src/new.py"}' in parts["context"]
    assert "[6] tool\nsrc/both.py" in parts["log"]
    assert "[7]" not in parts["log"]
    assert "[7] assistant" in parts["next"]


def test_a_preset_is_measured_at_a_window_of_its_own() -> None:
    assert policy_of("clip", 12_000)["window_tokens"] == 12_000
    assert policy_of("clip", 12_000)["trigger"] == {"ratio": 0.8}


def kept(values: tuple[int, int]) -> Kept:
    return Kept(values, values, values, (0, 0), (0, 0), (0, 0))


def test_a_short_answer_is_shown_with_its_question_or_without() -> None:
    asks, which = "It **compiles**. Shall I push it?", "1. Keep it\n2. Write it anew\n\nWhich one is it?"
    spoken = [("user", "Go"), ("assistant", asks), ("user", "yes"), ("assistant", which), ("user", "2"), *GOODBYE]
    messages = [{"role": role, "content": text} for role, text in spoken]
    line = {"id": "two", "system": None, "tools": None, "messages": messages, "meta": {"compactions": [{"at": 9}]}}
    [moment] = recorded(line, 1).moments
    assert [answer.words for answer in moment.answers] == ["yes", "2", "yes"]

    def share(*shown: dict[str, str]) -> tuple[int, int]:
        return with_questions(moment.answers, {"messages": list(shown)}, text_of(shown))

    assert share(*messages) == (3, 3)
    assert share(*messages[4:]) == (1, 2)
    assert share(*messages[2:]) == (2, 3)
    summary = '# Summary\n- yes (asked: "It compiles. Shall I push it?")\n- 2'
    assert share({"role": "user", "content": summary}) == (0, 2)
    assert share({"role": "user", "content": f'{summary}\n- yes (asked: "Anything else?")'}) == (2, 3)
    assert share({"role": "assistant", "content": "yes"}, {"role": "user", "content": "oh yes"}) == (0, 0)
    assert short_answers(()) == ()
