"""The environments of wrapped agents, and the findings of `palimpsest doctor`."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
import typer
from palimpsest.types import GatewayCall, GatewayOut

from palimpsest_tools.server import Address
from palimpsest_tools.wrap.agents import AGENTS, DEFAULT_UPSTREAMS, is_first_party, missing_key, start_of, upstreams_of
from palimpsest_tools.wrap.doctor import (
    call_findings,
    key_findings,
    probe_finding,
    recall_findings,
    upstream_findings,
)
from palimpsest_tools.wrap.run import require_upstream

SERVER = "http://127.0.0.1:8700"
CLAUDE, CODEX, OPENCODE = (AGENTS[name] for name in ("claude", "codex", "opencode"))


def test_claude_keeps_its_window_only_where_upstream_is_anthropic_s_own_api() -> None:
    own = start_of(CLAUDE, SERVER, None, DEFAULT_UPSTREAMS, {})
    assert own.variables == {
        "ANTHROPIC_BASE_URL": f"{SERVER}/gateway/anthropic",
        "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1",
    }
    other = start_of(CLAUDE, SERVER, None, {"anthropic": "https://router.example/anthropic.com"}, {})
    assert [*other.variables] == ["ANTHROPIC_BASE_URL"]
    assert not is_first_party("https://anthropic.com.example") and is_first_party("https://api.anthropic.com/v1")


def test_headers_of_the_user_are_kept() -> None:
    given = {"ANTHROPIC_CUSTOM_HEADERS": "x-team: a"}
    start = start_of(CLAUDE, SERVER, "pal_k", DEFAULT_UPSTREAMS, given)
    assert start.variables["ANTHROPIC_CUSTOM_HEADERS"] == "x-team: a\nx-palimpsest-key: pal_k"


def test_codex_gets_arguments_and_no_secret_in_them() -> None:
    start = start_of(CODEX, SERVER, "pal_k", DEFAULT_UPSTREAMS, {})
    assert start.arguments[:3] == ("-c", 'model_provider="palimpsest"', "-c")
    assert f'base_url="{SERVER}/gateway/openai/v1"' in start.arguments[3]
    assert "pal_k" not in "".join(start.arguments)
    assert [*start.variables.values()] == ["pal_k"] and next(iter(start.variables)) in start.arguments[3]


def test_a_configuration_of_opencode_is_extended() -> None:
    given = {"theme": "x", "provider": {"anthropic": {"options": {"timeout": 9}}, "local": {"npm": "y"}}}
    start = start_of(OPENCODE, SERVER, None, DEFAULT_UPSTREAMS, {"OPENCODE_CONFIG_CONTENT": json.dumps(given)})
    config = json.loads(start.variables["OPENCODE_CONFIG_CONTENT"])
    assert config["theme"] == "x" and config["provider"]["local"] == {"npm": "y"}
    assert config["provider"]["anthropic"]["options"] == {"timeout": 9, "baseURL": f"{SERVER}/gateway/anthropic/v1"}
    assert config["provider"]["openai"] == {"options": {"baseURL": f"{SERVER}/gateway/openai/v1"}}


def test_the_gateway_forwards_to_the_addresses_that_the_user_has_chosen() -> None:
    assert upstreams_of({}) == DEFAULT_UPSTREAMS
    given = {"ANTHROPIC_BASE_URL": "http://localhost:4000", "OPENAI_BASE_URL": ""}
    assert upstreams_of(given) == {**DEFAULT_UPSTREAMS, "anthropic": "http://localhost:4000"}


def test_a_server_that_forwards_elsewhere_than_the_user_s_address_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = GatewayOut(upstreams=DEFAULT_UPSTREAMS, since=datetime(2026, 1, 2, tzinfo=UTC), calls=[])
    proxy = {"ANTHROPIC_BASE_URL": "http://localhost:4000"}
    fine: tuple[dict[str, str], ...] = (
        {},
        {"ANTHROPIC_BASE_URL": "https://api.anthropic.com/v1/"},
        {"ANTHROPIC_BASE_URL": f"{SERVER}/gateway/anthropic"},
        {"OPENAI_BASE_URL": "http://localhost:4000"},
        {**proxy, "PALIMPSEST_GATEWAY_ANTHROPIC_URL": "https://api.anthropic.com"},
    )
    for environment in fine:
        require_upstream(CLAUDE, server, Address(SERVER), environment)
    with pytest.raises(typer.Exit):
        require_upstream(CLAUDE, server, Address(SERVER), proxy)
    said = capsys.readouterr().err
    assert "ANTHROPIC_BASE_URL is http://localhost:4000, but" in said and "api.anthropic.com" in said


def test_an_agent_without_a_login_needs_its_key() -> None:
    assert missing_key(CLAUDE, {}) is None and missing_key(CODEX, {"OPENAI_API_KEY": "k"}) is None
    reason = missing_key(CODEX, {})
    assert reason is not None and "OPENAI_API_KEY" in reason
    assert [one.state for one in key_findings(CODEX, {})] == ["fault"]


def test_keys_are_named_and_never_shown() -> None:
    findings = [*key_findings(CLAUDE, {"ANTHROPIC_API_KEY": "sk-secret"})]
    assert [one.state for one in findings] == ["ok"] and "sk-secret" not in findings[0].text
    assert [one.state for one in key_findings(CLAUDE, {})] == ["note"]


def test_a_base_url_that_was_set_by_hand_costs_the_larger_window() -> None:
    by_hand = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": f"{SERVER}/gateway/anthropic"}
    assert "a million tokens" in [*key_findings(CLAUDE, by_hand)][-1].text
    kept = {**by_hand, "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1"}
    assert len([*key_findings(CLAUDE, kept)]) == 1


@pytest.mark.parametrize(
    ("status", "has_key", "state", "text"),
    [
        (200, True, "ok", "takes the key"),
        (401, True, "fault", "refuses the key"),
        (401, False, "ok", "without a key"),
        (404, True, "ok", "answers"),
        (502, True, "fault", "cannot reach"),
        (504, False, "fault", "cannot reach"),
        (529, True, "fault", "status 529"),
    ],
)
def test_the_provider_s_status_is_explained(status: int, has_key: bool, state: str, text: str) -> None:
    found = probe_finding("anthropic", "https://api.example", status, has_key=has_key)
    assert found.state == state and text in found.text


def test_a_gateway_without_the_agent_s_provider_is_a_fault() -> None:
    assert upstream_findings(CLAUDE, {"anthropic": "https://a"}) == []
    assert upstream_findings(None, {"openai": "https://a"}) == []
    assert upstream_findings(CLAUDE, {"bedrock": "https://a"}) == []
    assert "PALIMPSEST_GATEWAY_ANTHROPIC_URL" in upstream_findings(CLAUDE, {"openai": "https://a"})[0].text
    assert upstream_findings(None, {})[0].state == "fault"


def test_recall_is_found_among_the_servers_of_the_project(tmp_path: Path) -> None:
    assert [one.state for one in recall_findings(CLAUDE, tmp_path, tmp_path)] == ["note"]
    places = (".mcp.json", ".claude/plugins/installed_plugins.json")
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"palimpsest@palimpsest": {}}')
        assert [one.state for one in recall_findings(CLAUDE, tmp_path, tmp_path)] == ["ok"]
        path.unlink()


def test_a_call_that_was_forwarded_unchanged_has_its_reason_in_words() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)

    def call(mode: Literal["context", "bypass", "observed", "passthrough"], reason: str | None = None) -> GatewayCall:
        missing = dict.fromkeys(("session", "line", "call_id", "tokens_sent", "tokens_wanted", "potential_tokens"))
        return GatewayCall(at=at, provider="anthropic", path="/v1/messages", mode=mode, reason=reason, **missing)

    made = [call("context"), call("bypass", "too-slow"), call("bypass", "new-reason"), call("observed")]
    held_out = GatewayOut(upstreams={}, since=at, calls=[call("observed", "held-out")])
    assert "its session is held out" in next(iter(call_findings(held_out))).text
    texts = [one.text for one in call_findings(GatewayOut(upstreams={}, since=at, calls=made * 3))]
    assert len(texts) == 10
    assert "PALIMPSEST_GATEWAY_CONTEXT_SECONDS" in texts[1] and "new-reason" in texts[2] and "only observes" in texts[3]
