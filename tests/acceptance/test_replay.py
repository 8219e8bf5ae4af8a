"""The real command on our samples, against a running server; twice with one that it starts and stops itself."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from tests.support.processes import Result, outcome, palimpsest

SAMPLES = Path(__file__).parents[1] / "samples"
NAMES = ("openai_messages.json", "anthropic_messages.json", "agent_log.jsonl", "neutral.jsonl")
README = SAMPLES.parents[1] / "README.md"
SMALL_WINDOW = "4000"

Replay: TypeAlias = Callable[..., Awaitable[Result]]


async def run(*arguments: str, fresh: bool = False) -> Result:
    # A free default port cannot be guaranteed, so a server that is found there will do.
    return await outcome(await palimpsest("replay", *arguments, settings={}, fresh=fresh))


@pytest.fixture
def replay(server: str) -> Replay:
    """Return a runner of the command against a running server."""
    return lambda *arguments: run(*arguments, "--url", server)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", NAMES)
async def test_every_sample_fits_a_small_window_and_loses_nothing(replay: Replay, name: str) -> None:
    *sessions, total = lines(await replay(str(SAMPLES / name), "--max-tokens", SMALL_WINDOW, "--json"))
    for session in sessions:
        assert session["ok"], session["failures"]
        assert session["context_tokens_max"] <= session["target_tokens"] < int(SMALL_WINDOW)
        assert session["left_out_at_end"], "the samples are larger than the window"
        assert session["epochs"] > 1
    assert total["total"]["calls"] == sum(session["calls"] for session in sessions)


async def test_the_samples_that_the_readme_names_save_and_cost_what_it_says(replay: Replay) -> None:
    for name, words, difference in (("agent_log.jsonl", "17% less", -17), ("openai_messages.json", "30% *more*", 30)):
        *_, total = lines(await replay(str(SAMPLES / name), "--max-tokens", "12000", "--json"))
        assert round(total["total"]["input"]["against_everything"] * 100) == difference
        assert words in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini", "blocks"])
async def test_any_recording_renders_in_any_format(replay: Replay, format: str) -> None:
    *sessions, _ = lines(await replay(str(SAMPLES / "agent_log.jsonl"), "--format", format, "--share", "0.5", "--json"))
    assert [session["format"] for session in sessions] == [format]


async def test_a_replays_sessions_are_erased_unless_kept(replay: Replay, client: httpx.AsyncClient) -> None:
    sample = str(SAMPLES / "anthropic_messages.json")
    lines(await replay(sample, "--share", "0.5", "--json"))
    lines(await replay(sample, "--max-tokens", SMALL_WINDOW, "--compare", "default", "clip", "--json"))
    assert (await client.get("/v1/sessions")).json()["items"] == []
    await client.put("/v1/sessions/mine", json={})
    lines(await replay(sample, "--session", "mine", "--json"))
    again = await replay(sample, "--session", "mine", "--json")
    assert "session-not-new" in again.stdout  # a session that existed before is never erased
    lines(await replay(sample, "--session", "kept", "--keep", "--json"))
    assert {one["id"] for one in (await client.get("/v1/sessions")).json()["items"]} == {"mine", "kept"}


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.parametrize(
    ("name", "recorded", "reported"),
    [
        ("codex_rollout.jsonl", 10, 7),
        ("gemini_chat.json", 6, 6),
        ("gemini_lines.jsonl", 4, 3),
        ("opencode_export.json", 7, 5),
    ],
)
async def test_recorded_usage_is_the_outcome_of_kept_calls_that_hold_what_was_sent(
    replay: Replay, client: httpx.AsyncClient, name: str, recorded: int, reported: int
) -> None:
    session, _ = lines(await replay(str(SAMPLES / name), "--session", "s", "--keep", "--json"))
    assert session["ok"], session["failures"]
    calls = (await client.get("/v1/sessions/s/calls", params={"limit": 100})).json()["items"]
    outcomes = [call["outcome"]["usage"] for call in reversed(calls) if call.get("outcome")]
    assert (len(calls), len(outcomes)) == (recorded, reported)
    assert outcomes[0]["output_tokens"] > 0
    assert f"recorded usage of {reported} calls" in session["notes"][-1]


@pytest.mark.wing("compare")
async def test_usage_teaches_nothing_where_sessions_are_erased_or_compared(
    replay: Replay, client: httpx.AsyncClient
) -> None:
    sample = str(SAMPLES / "gemini_chat.json")
    session, _ = lines(await replay(sample, "--json"))
    assert session["notes"][-1].endswith("not reported: the sessions are not kept")
    session, _ = lines(await replay(sample, "--keep", "--share", "0.5", "--json"))
    assert session["notes"][-1].endswith("not reported: windows or policies are compared")
    session, _ = lines(await replay(sample, "--keep", "--format", "openai", "--json"))
    assert session["notes"][-1].endswith("not reported: the contexts have another format")
    session, _ = lines(await replay(sample, "--keep", "--max-tokens", "12000", "--json"))
    assert session["notes"][-1].endswith("the window has no room for the tools that the agent sent")
    assert (await client.get("/v1/calibrations")).json()["items"] == []


async def test_the_page_of_the_kept_session_is_opened(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    arguments = (str(SAMPLES / "gemini_lines.jsonl"), "--open", "--session", "s", "--url", server)
    result = await run(*arguments, fresh=True)
    assert result.returncode == 0, result.stderr
    page = f"{server}/ui/sessions/s"
    assert opened.read_text() == page + "\n"
    assert f"page: {page}" in result.stderr


async def test_with_a_window_for_everything_it_costs_as_much_as_append_only(replay: Replay) -> None:
    session, _ = lines(await replay(str(SAMPLES / "anthropic_messages.json"), "--max-tokens", "200000", "--json"))
    assert session["left_out_at_end"] == {}
    assert session["epochs"] == 1
    assert abs(session["input"]["against_everything"]) < 0.1
    assert session["input"]["read_share"] > 0.5


async def test_people_see_which_server_it_was_and_a_summary() -> None:
    result = await run(str(SAMPLES / "neutral.jsonl"), "--limit", "1", "--max-tokens", SMALL_WINDOW, fresh=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("server: http://127.0.0.1:")
    assert "every context within its target" in result.stdout


async def test_a_malformed_line_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    whole = (SAMPLES / "neutral.jsonl").read_text(encoding="utf-8")
    file.write_text(whole + '{"id": "third", "messages": [oops]}\n', encoding="utf-8")
    result = await run(str(file))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("palimpsest: broken.jsonl:3: not JSON")


async def test_a_window_too_small_for_anything_fails_with_the_problem_type(replay: Replay) -> None:
    result = await replay(str(SAMPLES / "openai_messages.json"), "--max-tokens", "20", "--json")
    assert result.returncode == 1
    session, total = (json.loads(line) for line in result.stdout.splitlines())
    assert {failure["type"] for failure in session["failures"]} == {"context-infeasible"}
    assert total["total"]["ok"] is False


async def test_an_address_without_a_server_is_one_clear_line() -> None:
    result = await run(str(SAMPLES / "openai_messages.json"), "--url", "http://127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "palimpsest: http://127.0.0.1:1 does not answer /healthz as Palimpsest\n"


@pytest.mark.slow
async def test_two_policies_side_by_side(replay: Replay, tmp_path: Path) -> None:
    policy = tmp_path / "masking.json"
    policy.write_text('{"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}}', encoding="utf-8")
    sample, compare = str(SAMPLES / "neutral.jsonl"), ("--compare", "default", str(policy))
    *sessions, total = lines(await replay(sample, "--max-tokens", SMALL_WINDOW, *compare, "--json"))
    for session in sessions:
        assert session["ok"], session
        assert session["policies"] == {"a": "default", "b": str(policy)}
        numbers = [call["number"] for call in session["calls"]]
        assert numbers == list(range(1, session["a"]["calls"] + 1)) == list(range(1, session["b"]["calls"] + 1))
        for side in "ab":
            billed = sum(call[side]["billed"] for call in session["calls"])
            assert billed == pytest.approx(session[side]["input"]["billed"], abs=0.1 * len(numbers))
    assert total["total"]["a"] != total["total"]["b"]
    shown = await run(sample, "--limit", "1", "--max-tokens", SMALL_WINDOW, *compare)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "B to A" in shown.stdout
    assert "A: every context within its target" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--compare", "default", "clip", "--policy", "clip"), "--policy and --compare exclude each other"),
        (("--compare", "default", "no/such.json"), "no/such.json: No such file or directory"),
        (("--policy", str(SAMPLES / "neutral.jsonl") + ".json"), "No such file or directory"),
    ],
)
async def test_a_comparison_that_cannot_be_made_sends_nothing(arguments: tuple[str, ...], says: str) -> None:
    result = await run(str(SAMPLES / "openai_messages.json"), *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert says in result.stderr
