"""Readers of public data on small files of their form, and measures that are computed by hand."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.believed import __main__ as program
from bench.believed import beam, claude_code, compactions, locomo, recordings, tables
from bench.believed.conversations import conversation, flat, source
from bench.believed.downloads import UnknownData
from bench.believed.evidence import ARMS, BM25, CONTEXT, NEWEST, NEWEST_BM25, Baselines, Found
from bench.believed.shares import cell, wilson

pytestmark = pytest.mark.wing("recall")

DIALOGUE = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bo",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I moved to Oslo."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a red boat"},
        ],
        "session_10_date_time": "9:00 am on 1 June, 2023",
        "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "My boat is sold."}],
        "session_2_date_time": "8:00 am on 9 May, 2023",
        "session_2": [{"speaker": "Bo", "dia_id": "D2:1", "text": "Hi."}],
    },
    "qa": [
        {"question": "Where to?", "answer": "Oslo", "evidence": ["D1:1"], "category": 4},
        {"question": "Which boat?", "answer": 2022, "evidence": ["D1:2; D10:1", "D", "D9:9"], "category": 1},
        {"question": "Why?", "adversarial_answer": "bored", "evidence": [], "category": 5},
    ],
}
CHAT = [
    {
        "batch_number": 1,
        "turns": [
            [
                {
                    "role": "user",
                    "id": 0,
                    "time_anchor": "March-15-2024",
                    "content": "The **first** sprint ends\nMay 3.",
                },
                {"role": "assistant", "id": 1, "content": "Noted."},
            ],
            [{"role": "user", "id": 7, "content": "It ends on May 9 now. Thank you for that!"}],
        ],
    }
]
PROBES = {
    "abstention": [{"question": "Which colour?", "ideal_response": "None was named."}],
    "knowledge_update": [
        {
            "question": "When does the sprint end?",
            "answer": "on May 9",
            "source_chat_ids": {"original_info": [0], "updated_info": [7, 7]},
        }
    ],
}


def locomo_file(folder: Path, content: Any) -> Path:
    file = folder / "locomo10.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def beam_folder(folder: Path, probes: Any = PROBES) -> Path:
    one = folder / "100K" / "3"
    (one / "probing_questions").mkdir(parents=True)
    (one / "chat.json").write_text(json.dumps(CHAT), encoding="utf-8")
    (one / "probing_questions" / "probing_questions.json").write_text(json.dumps(probes), encoding="utf-8")
    return one.parent


def test_locomo_is_read_in_the_order_of_its_sessions(tmp_path: Path) -> None:
    (one,) = locomo.dialogues(locomo_file(tmp_path, [DIALOGUE]))
    assert [(m["role"], m["content"]) for m in one["messages"]] == [
        ("user", "[session 1, 1:56 pm on 8 May, 2023] Ann: I moved to Oslo."),
        ("assistant", "Bo: Look! [shares image: a red boat]"),
        ("assistant", "[session 2, 8:00 am on 9 May, 2023] Bo: Hi."),
        ("assistant", "[session 10, 9:00 am on 1 June, 2023] Bo: My boat is sold."),
    ]
    assert one["meta"]["ts"][:2] == [1683554160.0, 1683554180.0]
    assert [(q["category"], q["answer"], q["evidence_idx"]) for q in one["meta"]["qa"]] == [
        ("single-hop", "Oslo", [0]),
        ("multi-hop", "2022", [1, 3]),
        ("adversarial", "bored", []),
    ]


def test_beam_is_read_with_the_sources_of_its_questions(tmp_path: Path) -> None:
    (one,) = beam.conversations(beam_folder(tmp_path))
    assert one["id"] == "beam-100K-3"
    assert [m["role"] for m in one["messages"]] == ["user", "assistant", "user"]
    assert one["meta"]["ts"] == [1710460800.0, 1710460820.0, 1710460840.0]
    assert [(q["category"], q["evidence_idx"]) for q in one["meta"]["qa"]] == [
        ("abstention", []),
        ("knowledge update", [0, 2]),
    ]


def test_other_data_are_refused_with_the_way_to_get_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownData, match=r"locomo10\.json does not exist\. Get data/locomo10\.json of https://"):
        list(locomo.dialogues(tmp_path / "locomo10.json"))
    with pytest.raises(UnknownData, match="has no field `sample_id` of type str"):
        list(locomo.dialogues(locomo_file(tmp_path, [{"id": 1}])))
    with pytest.raises(UnknownData, match="holds no numbered folders"):
        list(beam.conversations(tmp_path))
    strange = {"summarization": [{"question": "All?", "source_chat_ids": [0, 99]}]}
    with pytest.raises(UnknownData, match="no message 99"):
        list(beam.conversations(beam_folder(tmp_path, strange)))
    with pytest.raises(UnknownData, match="no session log of Claude Code"):
        claude_code.logs(tmp_path / "none")
    with pytest.raises(UnknownData, match=r"Check out https://github\.com/entireio/cli"):
        recordings.coding(tmp_path)


def test_the_program_ends_with_the_error_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["believed", "--locomo", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit, match=r"none\.json does not exist"):
        program.main()


def test_a_source_is_present_word_for_word_or_by_the_sentence_of_the_answer(tmp_path: Path) -> None:
    (value,) = beam.conversations(beam_folder(tmp_path))
    (question,) = conversation(value, 1).questions
    first, second = question.sources
    assert first.has_all(flat("- The first sprint ends May 3"))
    assert not first.has_all(flat("The first sprint ends May 30"))
    assert second.by_sentence(flat("it ends on May 9 now"))
    assert not second.has_all(flat("it ends on May 9 now"))
    assert not second.by_sentence(flat("Thank you for that!"))


def test_a_source_that_shares_no_word_with_the_answer_is_needed_whole() -> None:
    one = source("Yes. I would.", "never")
    assert one.by_sentence(flat("yes, i would"))
    assert not one.by_sentence(flat("yes"))


def test_baselines_fill_the_window_with_whole_messages() -> None:
    texts = ["The key is under the red stone.", *(f"Message {n} about rain. " * 200 for n in range(8))]
    qa = [{"question": "Where is the key?", "category": "x", "answer": "under the stone", "evidence_idx": [0]}]
    messages = [{"role": "user", "content": text} for text in texts]
    one = conversation({"id": "a", "system": None, "tools": None, "messages": messages, "meta": {"qa": qa}}, 1)
    found = {each.arm: each for each in Baselines(one).measure(8_192)}
    assert {arm: each.whole for arm, each in found.items()} == {
        NEWEST: (False,),
        NEWEST_BM25: (True,),
        BM25: (True,),
    }
    assert all(0 < each.tokens <= 8_192 for each in found.values())
    assert found[BM25].tokens < 100 < found[NEWEST].tokens


def test_results_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    one = Found("a", 0, "x", 8_192, NEWEST, (True,), (True,), 5)
    program.Results(tmp_path / "r.jsonl").add([one])
    (again,) = program.Results(tmp_path / "r.jsonl").of("a", 8_192)
    assert again == one
    assert program.Results(tmp_path / "r.jsonl").of("a", 16_384) == []


def test_tables_count_a_question_with_all_its_sources() -> None:
    found = [
        Found("a", number, "x", 8_192, arm, whole, (True, arm != NEWEST), 100)
        for arm in ARMS
        for number, whole in enumerate([(True, True), (True, False)])
    ]
    whole = tables.by_window(found, [("all", lambda one: True), ("none", lambda one: False)])
    assert f"| all, 2 | 8,192 | {CONTEXT} | 50.0% (9-91) | 100.0% (34-100) | 75.0% | 100 |" in whole
    assert "none" not in whole
    assert "| 8,192 | 2 | 0 |" in tables.lost_to(found)
    assert "| x | 2 | 2.0 | 50.0% (9-91); 0.0% (0-66) |" in tables.by_kind(found, 8_192)
    assert "| a | 2 | 0% | 100% |" in tables.by_conversation(found, 8_192)


def test_wilson_intervals() -> None:
    low, high = wilson(81, 263)
    assert (round(low, 3), round(high, 3)) == (0.255, 0.366)  # Newcombe (1998), table I
    assert cell([]) == ""
    assert cell([True] * 10) == "100.0% (72-100)"


def line(kind: str, uuid: str, content: Any, **more: Any) -> str:
    message = {"role": kind, "content": content} | ({"id": uuid} if kind == "assistant" else {})
    return json.dumps({"type": kind, "uuid": uuid, "sessionId": "s1", "message": message} | more)


def use(id: str, name: str, **arguments: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": id, "name": name, "input": arguments}]


def answer(id: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": text}]


LOG = [
    line("user", "1", "Always run make. Fix retry_count in src/net/client.go."),
    line("assistant", "2", use("a", "Edit", file_path="src/net/client.go", old_string="x", new_string="y")),
    line("user", "3", answer("a", "updated; see DialTimeout and MaxBackoff")),
    line("user", "4", "This session is continued. It changed client.go.", isCompactSummary=True),
    line("user", "5", "Go on."),
    line("assistant", "6", use("b", "Grep", pattern="DialTimeout|retry_count|NeverSeen")),
    line("user", "7", answer("b", "DialTimeout = 3")),
    line("assistant", "8", use("c", "Grep", pattern="DialTimeout MaxBackoff")),
]


def test_a_claude_code_log_is_read_with_its_compactions_and_needs(tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text("\n".join(LOG), encoding="utf-8")
    (tmp_path / "old.jsonl").write_text("\n".join([*LOG[:3], *LOG[4:]]) + "\n" * 900, encoding="utf-8")
    ((name, text),) = claude_code.logs(tmp_path).items()
    value = claude_code.neutral(name, text)
    assert value is not None
    roles = " ".join(m["role"] for m in value["messages"])
    assert roles == "user assistant tool user assistant tool assistant"
    assert value["meta"]["compactions"] == [{"at": 3, "summary": "This session is continued. It changed client.go."}]
    assert [(g["i"], g["v"], g["first"], g["last"], g["kind"]) for g in value["meta"]["grounding"]] == [
        (1, "src/net/client.go", 0, 0, "any"),
        (4, "DialTimeout", 2, 2, "tool"),
        (4, "retry_count", 0, 0, "any"),
        (6, "DialTimeout", 2, 5, "any"),
        (6, "MaxBackoff", 2, 2, "tool"),
    ]
    (row,) = compactions.rows(value)
    assert row.own.values == (False,) * 3
    assert row.ours.tokens <= row.own.tokens
    assert len(row.own.unseen) == 3
    assert (row.own.files, row.own.names) == ((False,), (True,))
    assert not row.developed
    assert "| s1 | 3 |" in compactions.table([row])
    assert "| by name | 100.0% (21-100), of 1 |" in compactions.sums([row])


def test_the_usage_of_a_call_has_the_part_that_was_written_for_an_hour() -> None:
    used = {"input_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 50, "output_tokens": 7}
    reply = json.loads(LOG[1])
    reply["message"]["usage"] = used | {"cache_creation": {"ephemeral_1h_input_tokens": 40}}
    value = claude_code.neutral("s1", "\n".join([LOG[0], json.dumps(reply)]))
    assert value is not None
    assert value["meta"]["usage"] == [{"i": 1, "in": 2, "read": 30, "write": 50, "write_1h": 40, "out": 7}]


def test_our_summary_has_at_most_the_tokens_of_the_agents_own(tmp_path: Path) -> None:
    long = line("user", "4", "It changed client.go and more. " * 20, isCompactSummary=True)
    value = claude_code.neutral("s1", "\n".join([*LOG[:3], long, *LOG[4:]]))
    assert value is not None
    (row,) = compactions.rows(value)
    assert 0 < row.ours.tokens <= row.own.tokens
    assert row.ours.values == (True, True, True)
    assert row.own.messages == (False,)
    assert row.ours.messages == (True,)
