"""The check that every recorded call of a running server renders again as it was sent."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.text import Text

from app.remote.address import Address
from app.remote.client import Client, RequestFailed
from app.remote.server import NoServer, found_server
from app.remote.stopping import stop

_SECONDS_MAX: Final = 60.0
_AT_ONCE: Final = 4


@dataclass(slots=True)
class Verified:
    """What was found: calls that come out as they were sent, those but for what was erased since, and all others."""

    exact: int = 0
    erased: int = 0
    failed: list[str] = field(default_factory=list)


def verify(address: Address) -> None:
    """Print what a running server's recorded calls come out as; exit with 1 unless all are as they were."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        found = asyncio.run(_verify(address))
    except NoServer as error:
        stop(str(error))
    except RequestFailed as problem:
        stop(problem.detail)
    except KeyboardInterrupt:
        stop("interrupted")
    for line in found.failed:
        console.print(Text(line))
    console.print(
        f"{found.exact} calls render again as they were sent, {found.erased} but for what was erased since, "
        f"{len(found.failed)} do not"
    )
    if found.failed:
        raise SystemExit(1)


async def _verify(address: Address) -> Verified:
    """Render all calls again, a few at a time. Raises RequestFailed when the server cannot list them."""
    await found_server(address)
    found = Verified()
    async with address.http(_SECONDS_MAX) as http:
        client = Client(http, waits=True)
        running: set[asyncio.Task[None]] = set()
        async for call in client.calls():
            if len(running) == _AT_ONCE:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            running.add(asyncio.create_task(_look(client, found, call["line"], call["call_id"], call["sha256"])))
        await asyncio.gather(*running)
    return found


async def _look(client: Client, found: Verified, line: str, call_id: str, sha256: str) -> None:
    try:
        again = await client.call_again(line, call_id)
    except RequestFailed as problem:
        found.failed.append(f"call {call_id} of {line}: {problem}")
        return
    if again["sha256"] == sha256:
        found.exact += 1
    else:  # the server refuses whatever differs for any other reason
        found.erased += 1
