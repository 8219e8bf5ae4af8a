"""The agents that `wrap` can start: the environment and the arguments by which each uses the gateway."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

AgentName = Literal["claude", "codex", "opencode"]
KEY_HEADER: Final = "x-palimpsest-key"
KEY_VARIABLE: Final = "PALIMPSEST_WRAP_KEY"
"""Variable of the agent's process that holds the server's key, where the agent reads headers from variables."""
DEFAULT_UPSTREAMS: Final = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
URL_VARIABLES: Final = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL"}
"""Variables in which a user may name another address of a provider's API."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: its program, the package that installs it, the providers that it uses, and their keys' variables."""

    name: AgentName
    program: str
    package: str
    providers: tuple[str, ...]
    key_variables: tuple[str, ...]
    login: str | None = None
    """The login that the agent can use instead of a key."""
    others: tuple[str, ...] = ()
    """Further providers that its user can configure."""


AGENTS: Final[Mapping[str, Agent]] = {
    agent.name: agent
    for agent in (
        Agent(
            "claude",
            "claude",
            "@anthropic-ai/claude-code",
            ("anthropic",),
            ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"),
            login="its own login",
            others=("bedrock", "vertex"),
        ),
        Agent("codex", "codex", "@openai/codex", ("openai",), ("OPENAI_API_KEY",), others=("azure", "local")),
        Agent(
            "opencode",
            "opencode",
            "opencode-ai",
            ("anthropic", "openai"),
            ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
            login="its own login",
            others=("gemini", "azure", "vertex", "bedrock", "local"),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Start:
    """The way to start an agent: variables to add to its environment, and arguments before the user's own."""

    variables: Mapping[str, str]
    arguments: tuple[str, ...] = ()


def start_of(
    agent: Agent, server: str, key: str | None, upstreams: Mapping[str, str], environment: Mapping[str, str]
) -> Start:
    """Return the way to start an agent with the gateway of the server at `server`.

    `key` is the server's, if it needs one; `upstreams` are the addresses that the gateway forwards to. Settings in the
    user's `environment` are extended where they can hold more than one value.
    """
    if agent.name == "claude":
        variables = {"ANTHROPIC_BASE_URL": f"{server}/gateway/anthropic"}
        if is_first_party(upstreams.get("anthropic", "")):  # otherwise Claude Code gives up its larger window
            variables["_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"] = "1"
        if key is not None:
            given = environment.get("ANTHROPIC_CUSTOM_HEADERS")
            variables["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(filter(None, (given, f"{KEY_HEADER}: {key}")))
        return Start(variables)
    if agent.name == "codex":
        provider = f'name="OpenAI", base_url="{server}/gateway/openai/v1", env_key="OPENAI_API_KEY"'
        provider += ', wire_api="responses"'
        if key is not None:
            provider += f', env_http_headers={{"{KEY_HEADER}"="{KEY_VARIABLE}"}}'
        chosen = ("-c", 'model_provider="palimpsest"', "-c", f"model_providers.palimpsest={{{provider}}}")
        return Start({} if key is None else {KEY_VARIABLE: key}, chosen)
    options: dict[str, Any] = {"headers": {KEY_HEADER: key}} if key is not None else {}
    providers = {
        name: {"options": {"baseURL": f"{server}/gateway/{name}/v1", **options}}
        for name in agent.providers
        if name in upstreams
    }
    given = environment.get("OPENCODE_CONFIG_CONTENT")
    config = _merged(json.loads(given) if given else {}, {"provider": providers})
    return Start({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def upstreams_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the providers' addresses that a user's agents use now, to which the gateway is to forward."""
    return {
        provider: environment.get(URL_VARIABLES[provider]) or address for provider, address in DEFAULT_UPSTREAMS.items()
    }


def is_first_party(address: str) -> bool:
    """Return whether an address is that of Anthropic's own API."""
    host = urlsplit(address).hostname or ""
    return host == "anthropic.com" or host.endswith(".anthropic.com")


def missing_key(agent: Agent, environment: Mapping[str, str]) -> str | None:
    """Return the reason why an agent cannot call its provider; None if it has a key, or may have a login."""
    if agent.login is not None or any(environment.get(name) for name in agent.key_variables):
        return None
    names = " or ".join(agent.key_variables)
    return f"{agent.name} needs {names}: its other login is for a service that the gateway does not forward to"


def _merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with changes, object by object."""
    result = dict(document)
    for name, value in changes.items():
        own = result.get(name)
        result[name] = _merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return result
