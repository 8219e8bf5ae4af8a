"""Start an agent with a server as its provider's address, for this process only."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Final

import typer
from palimpsest.types import GatewayOut

from palimpsest_tools.server import Address, connected, run, stop
from palimpsest_tools.wrap.agents import AGENTS, URL_VARIABLES, Agent, AgentName, missing_key, start_of, upstreams_of
from palimpsest_tools.wrap.shared import shared_server

_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP)
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal sends to the agent itself."""


def wrap(name: AgentName, own: Sequence[str], address: Address) -> None:
    """Run an agent with its own arguments, and end with its exit status."""
    agent, environment = AGENTS[name], dict(os.environ)
    program = shutil.which(agent.program)
    if program is None:
        stop(f"{agent.program} is not installed: npm install -g {agent.package}", 127)
    if reason := missing_key(agent, environment):
        stop(reason)
    status = run(_run(agent, program, own, address, environment))
    raise typer.Exit(status)


async def _run(agent: Agent, program: str, own: Sequence[str], address: Address, environment: Mapping[str, str]) -> int:
    async with shared_server(address, upstreams_of(environment)) as started:
        async with connected(address) as client:
            gateway = await client.get_gateway(limit=0)
        require_upstream(agent, gateway, address, environment)
        start = start_of(agent, address.url, address.key, gateway.upstreams, environment)
        where = "started for this; it stops with the last agent" if started else "already running"
        _say(f"server {address.url} ({where})")
        ways = ", ".join(f"/gateway/{name} → {gateway.upstreams[name]}" for name in _used(agent, gateway))
        _say(f"{agent.name} uses {ways}; nothing is changed but the environment of this process")
        _say(f"sessions: {address.url}/ui/ · checks: palimpsest doctor {agent.name}")
        return await _wait([program, *start.arguments, *own], {**environment, **start.variables})


def _used(agent: Agent, gateway: GatewayOut) -> list[str]:
    return [name for name in agent.providers if name in gateway.upstreams]


def require_upstream(agent: Agent, gateway: GatewayOut, address: Address, environment: Mapping[str, str]) -> None:
    """Stop if the gateway forwards to no provider of the agent, or not to the address in a variable of the user."""
    if not _used(agent, gateway):
        variable = f"PALIMPSEST_GATEWAY_{agent.providers[0].upper()}_URL"
        lack = f"runs without a gateway for {agent.name}: start it with {variable}, or stop it"
        stop(f"the server at {address.url} {lack}")
    for name in _used(agent, gateway):
        variable, upstream = URL_VARIABLES[name], gateway.upstreams[name]
        chosen = environment.get(variable) or upstream
        replaced = "/gateway/" in chosen or f"PALIMPSEST_GATEWAY_{name.upper()}_URL" in environment
        if not replaced and len({url.rstrip("/").removesuffix("/v1") for url in (chosen, upstream)}) > 1:
            stop(f"{variable} is {chosen}, but the server forwards to {upstream}: unset it, or stop the server")


def _say(line: str) -> None:
    typer.echo(f"palimpsest: {line}", err=True)


async def _wait(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in the foreground; return its exit status, as a shell gives it.

    Signals from the terminal reach the agent directly, the others are forwarded.
    """
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    loop = asyncio.get_running_loop()
    for one in _FROM_TERMINAL:
        loop.add_signal_handler(one, lambda: None)
    for one in _FORWARDED:
        loop.add_signal_handler(one, process.send_signal, one)
    status = await process.wait()
    return 128 - status if status < 0 else status
