"""Check that agents work with the server, and say what to do where they do not."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

import httpx2
import typer
from palimpsest import AsyncPalimpsest, PalimpsestError
from palimpsest.types import GatewayCall, GatewayOut

from palimpsest_tools.output import counted, moment
from palimpsest_tools.server import Address, connected, run
from palimpsest_tools.wrap.agents import AGENTS, KEY_HEADER, Agent, AgentName, is_first_party, missing_key, upstreams_of
from palimpsest_tools.wrap.shared import shared_server

State = Literal["ok", "note", "fault"]
CALLS_SHOWN: Final = 10
CALLS_REMEMBERED: Final = 200
_MARKS: Final[Mapping[State, str]] = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}
_PROBE_SECONDS_MAX: Final = 10.0
_PROBES: Final[Mapping[str, tuple[str, str, str]]] = {
    "anthropic": ("/v1/models", "ANTHROPIC_API_KEY", "x-api-key"),
    "openai": ("/v1/models", "OPENAI_API_KEY", "authorization"),
    "gemini": ("/v1beta/models", "GEMINI_API_KEY", "x-goog-api-key"),
    "azure": ("/openai/v1/models", "AZURE_OPENAI_API_KEY", "api-key"),
}
"""Path, the variable of the key, and its header, by provider. Others list no models without a project."""
_UNAUTHORIZED: Final = (401, 403)
_NO_UPSTREAM: Final = (502, 504)
REASONS: Final[Mapping[str, str]] = {
    "no-session": "the call named no session",
    "too-slow": "the context took longer than PALIMPSEST_GATEWAY_CONTEXT_SECONDS",
    "conversation-at-provider": "only the provider has the conversation",
    "not-in-log": "a count of messages that are not in the log",
    "compaction": "the agent requested the provider's own compaction",
    "no-messages": "the call had no messages",
    "unknown-format": "its body is for a model of another maker",
    "unreadable": "its body is not JSON within the limits",
    "context-infeasible": "no context fits the window",
    "store-unavailable": "the database was not reachable",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check: a fault must be repaired, a note is for information."""

    state: State
    text: str


def doctor(name: AgentName | None, address: Address) -> None:
    """Print all findings; end with status 1 if one is a fault."""
    agent = None if name is None else AGENTS[name]
    findings = run(_examine(agent, address))
    for one in findings:
        typer.echo(f"{_MARKS[one.state]} {one.text}")
    raise typer.Exit(int(any(one.state == "fault" for one in findings)))


async def _examine(agent: Agent | None, address: Address) -> list[Finding]:
    async with shared_server(address, upstreams_of(os.environ)) as started, connected(address) as client:
        gateway = await client.get_gateway(limit=CALLS_REMEMBERED)
        where = f"the server answers at {address.url}"
        findings = [Finding("ok", f"{where}; none ran, so it was started for these checks" if started else where)]
        findings += upstream_findings(agent, gateway.upstreams)
        providers = [name for name in gateway.upstreams if agent is None or name in agent.providers + agent.others]
        for provider in providers:
            findings.append(await _probe(provider, address, gateway.upstreams[provider]))
        findings += key_findings(agent, os.environ)
        findings += await _windows(client, gateway)
        findings += recall_findings(agent, Path.home(), Path.cwd())
        findings += call_findings(gateway)
        return findings if gateway.calls else [*findings, *await _recorded(client)]


def upstream_findings(agent: Agent | None, upstreams: Mapping[str, str]) -> list[Finding]:
    """Return whether the gateway forwards to the agent's provider."""
    if not upstreams:
        return [Finding("fault", "the gateway is off: set PALIMPSEST_GATEWAY_ANTHROPIC_URL or …_OPENAI_URL")]
    if agent is not None and not set(agent.providers + agent.others) & set(upstreams):
        variable = f"PALIMPSEST_GATEWAY_{agent.providers[0].upper()}_URL"
        return [Finding("fault", f"the gateway forwards nothing for {agent.name}: set {variable}")]
    return []


async def _probe(provider: str, address: Address, upstream: str) -> Finding:
    """Ask a provider for its models through the gateway, with the user's key."""
    path, variable, header = _PROBES.get(provider, ("/", "", ""))
    key = os.environ.get(variable)
    headers = {} if address.key is None else {KEY_HEADER: address.key}
    if key:
        headers[header] = f"Bearer {key}" if header == "authorization" else key
    if provider == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    url = f"{address.url}/gateway/{provider}{path}"
    try:
        async with httpx2.AsyncClient(timeout=_PROBE_SECONDS_MAX) as http:
            status = (await http.get(url, headers=headers)).status_code
    except httpx2.HTTPError as error:
        return Finding("fault", f"{provider}: no answer through the gateway: {error!r}")
    return probe_finding(provider, upstream, status, has_key=bool(key))


def probe_finding(provider: str, upstream: str, status: int, *, has_key: bool) -> Finding:
    """Return the meaning of a provider's status for a list of its models."""
    if status in _NO_UPSTREAM:
        return Finding("fault", f"{provider}: the server cannot reach {upstream} (status {status})")
    if status in _UNAUTHORIZED and has_key:
        return Finding("fault", f"{provider}: {upstream} refuses the key of this environment (status {status})")
    if status in _UNAUTHORIZED:
        return Finding("ok", f"{provider}: {upstream} answers; without a key in this environment it refuses this check")
    if status >= 500:
        return Finding("fault", f"{provider}: {upstream} answers with status {status}")
    return Finding("ok", f"{provider}: {upstream} answers" + (", and takes the key" if has_key else ""))


def key_findings(agent: Agent | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether the agent's key is in the environment; the key itself is not shown."""
    if agent is None:
        return
    found = [name for name in agent.key_variables if environment.get(name)]
    if found:
        yield Finding("ok", f"{agent.name}: {' and '.join(found)} set")
    elif reason := missing_key(agent, environment):
        yield Finding("fault", reason)
    else:
        yield Finding("note", f"{agent.name}: no key in this environment; it uses {agent.login}")
    if agent.name == "claude" and (address := environment.get("ANTHROPIC_BASE_URL")) and "/gateway/" in address:
        kept = environment.get("_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL") == "1"
        if not kept:
            text = "ANTHROPIC_BASE_URL is set by hand, so Claude Code gives up its window of a million tokens"
            yield Finding("note", f"{text}; `palimpsest wrap claude` keeps it")


async def _windows(client: AsyncPalimpsest, gateway: GatewayOut) -> list[Finding]:
    """Return the window of the newest call with a context, as the server applied it."""
    newest = next((call for call in gateway.calls if call.call_id is not None and call.line is not None), None)
    if newest is None:
        return []
    try:
        record = await client.session(str(newest.line)).get_call(
            str(UUID(str(newest.call_id))), dispositions=False, declined=False
        )
    except PalimpsestError as error:
        return [Finding("note", f"the newest call cannot be read: {error}")]
    tokens = record.tokens
    kept = "assumed, since the model is unknown" if tokens.limit_assumed else f"for {record.model}"
    state: State = "note" if tokens.limit_assumed else "ok"
    first_party = is_first_party(gateway.upstreams.get("anthropic", ""))
    extra = "" if newest.provider != "anthropic" or first_party else "; the upstream is not Anthropic's own API"
    return [Finding(state, f"window of the newest call: {tokens.limit:,} tokens, {kept}{extra}")]


async def _recorded(client: AsyncPalimpsest) -> list[Finding]:
    """Return the newest recorded calls, which outlive the process that remembers all requests."""
    found = []
    async for session in client.list_sessions(limit=CALLS_SHOWN):
        async for call in client.session(session.id).list_calls(limit=CALLS_SHOWN):
            found.append((call.created_at, call, session.id))
            if len(found) % CALLS_SHOWN == 0:  # the list goes on to older pages
                break
        if len(found) >= CALLS_SHOWN:
            break
    found.sort(key=lambda one: one[0], reverse=True)
    return [
        Finding("ok", f"{moment(at)} recorded: a context of {call.estimate:,} tokens, session {name}")
        for at, call, name in found[:CALLS_SHOWN]
    ]


def recall_findings(agent: Agent | None, home: Path, project: Path) -> Iterator[Finding]:
    """Yield whether the agent has the recall tool of a Palimpsest server among its MCP servers."""
    if agent is None:
        return
    places = {
        "claude": (
            *(project / ".mcp.json", home / ".claude.json"),
            home / ".claude" / "plugins" / "installed_plugins.json",
        ),
        "codex": (home / ".codex" / "config.toml",),
        "opencode": (project / "opencode.json", home / ".config" / "opencode" / "opencode.json"),
    }[agent.name]
    found = next((path for path in places if _names_recall(path)), None)
    if found is not None:
        yield Finding("ok", f"recall: registered in {found}")
    else:
        yield Finding("note", f"recall: not among the MCP servers of {agent.name}; docs/adapters/mcp.md says how")


def _names_recall(path: Path) -> bool:
    try:
        return "palimpsest" in path.read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False


def call_findings(gateway: GatewayOut) -> Iterator[Finding]:
    """Yield the newest calls, and why one was forwarded without a context."""
    shown: Sequence[GatewayCall] = gateway.calls[:CALLS_SHOWN]
    if not shown:
        yield Finding("note", f"the server has forwarded no request since its start, {moment(gateway.since)}")
    for call in shown:
        about = f"{moment(call.at)} {call.provider} {call.path}"
        if call.mode == "context":
            sizes = f"{call.tokens_sent or 0:,} of {counted(call.tokens_wanted or 0, 'token')}"
            yield Finding("ok", f"{about}: a context was sent, {sizes}, session {call.session}")
        elif call.mode == "observed":
            why = "its session is held out" if call.reason == "held-out" else "the gateway only observes"
            yield Finding("ok", f"{about}: sent unchanged, since {why}; session {call.session}")
        elif call.mode == "bypass":
            reason = REASONS.get(call.reason or "", call.reason or "no reason is known")
            yield Finding("note", f"{about}: sent without a context: {reason}; session {call.session}")
        else:
            yield Finding("ok", f"{about}: passed through, as it is no conversation of a session")
