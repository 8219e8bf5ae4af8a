"""The page on replayed sessions in the user's browser."""

import asyncio
import signal
import webbrowser
from collections.abc import Sequence
from urllib.parse import quote

import typer

from palimpsest_tools.server import RunningServer


def page_url(server: str, sessions: Sequence[str | None]) -> str:
    """Return the address of a session's page; of the list of sessions if there are several."""
    base = f"{server.rstrip('/')}/ui/"
    if len(sessions) != 1 or sessions[0] is None:
        return base
    return f"{base}sessions/{quote(sessions[0], safe=':@')}"


async def open_page(server: RunningServer, sessions: Sequence[str | None]) -> None:
    """Open the page in a browser and print its address; keep a server that the replay started until Ctrl-C."""
    url = page_url(server.url, sessions)
    typer.echo(f"page: {url}", err=True)
    if not await asyncio.to_thread(webbrowser.open, url):
        typer.echo("no browser could be opened; open that address yourself", err=True)
    if server.temporary:
        typer.echo("the server that this replay started runs until Ctrl-C; then its sessions are gone", err=True)
        await _interruption()


async def _interruption() -> None:
    """Wait for Ctrl-C, or for a request to end."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    await interrupted.wait()
