"""The recordings of a folder, and the names of their sessions."""

import json
from pathlib import Path

import pytest

from palimpsest_tools.recordings.files import files_in, legal_id, read_file
from palimpsest_tools.recordings.recording import MalformedRecording
from tests.tools.logs import lines, log_line

TALK = {"messages": [{"role": "user", "content": "hi"}]}


def test_a_folder_means_its_jsonl_files_and_the_json_files_with_an_agents_log(tmp_path: Path) -> None:
    chat = {"sessionId": "s", "projectHash": "p", "messages": []}
    for name, held in (("a/chat.json", chat), ("b.json", {"info": {"id": "s"}, "messages": []})):
        tmp_path.joinpath(name).parent.mkdir(exist_ok=True)
        tmp_path.joinpath(name).write_text(json.dumps(held, indent=2))
    for name, text in (("logs.json", "[]"), ("talk.json", json.dumps(TALK)), ("broken.json", "{"), ("c.jsonl.bak", "")):
        tmp_path.joinpath(name).write_text(text)
    assert [one.path.name for one in files_in([tmp_path])] == ["chat.json", "b.json"]


def test_a_folder_means_its_jsonl_files_and_a_file_itself(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b.jsonl"
    for name in ("a/b.jsonl", "a/c.json", "d.jsonl", "e.jsonl/f.txt"):
        tmp_path.joinpath(name).parent.mkdir(exist_ok=True)
        tmp_path.joinpath(name).write_text("")
    file = tmp_path / "a" / "c.json"
    found = files_in([file, tmp_path])
    assert [(one.path, one.found) for one in found] == [(file, False), (deep, True), (tmp_path / "d.jsonl", True)]


def test_sessions_have_the_names_in_the_file_or_the_files_name(tmp_path: Path) -> None:
    chat = tmp_path / "my chat (2).json"
    chat.write_text(json.dumps(TALK))
    assert [one.id for one in read_file(chat, None)] == ["my-chat-2-"]
    assert [one.id for one in read_file(chat, "s")] == ["s"]
    several = tmp_path / "several.jsonl"
    several.write_text(lines({"id": "one", **TALK}, {"id": "t/wo", **TALK}))
    assert [one.id for one in read_file(several, None)] == ["one", "t-wo"]
    assert [one.id for one in read_file(several, "s")] == ["s.one", "s.t-wo"]
    side = {"isSidechain": True, "agentId": "a1"}
    log = tmp_path / "log.jsonl"
    log.write_text(lines(log_line("user", "hi"), log_line("user", "you", **side)))
    assert [one.id for one in read_file(log, None)] == ["log", "log.agent-a1"]
    assert [one.id for one in read_file(log, "s")] == ["s", "s.agent-a1"]


def test_two_sessions_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = tmp_path / "twice.jsonl"
    twice.write_text(lines({"id": "a/b", **TALK}, {"id": "a b", **TALK}))
    with pytest.raises(MalformedRecording, match="the same id"):
        read_file(twice, None)


def test_ids_are_legal() -> None:
    assert legal_id("ann@home:1.2_3-4") == "ann@home:1.2_3-4"
    assert legal_id("ü / ö") == "-"
    assert len(legal_id("x" * 300)) == 128
