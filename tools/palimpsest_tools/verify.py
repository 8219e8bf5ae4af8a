"""The command `verify`: a check that every recorded call of a server renders again as it was sent."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import typer
from palimpsest import AsyncPalimpsest, PalimpsestError

from palimpsest_tools.server import PAGE, Address, connected, reason_of, run

_CONCURRENT_CALLS: Final = 4


@dataclass(slots=True)
class Verified:
    """The number of calls with the same bytes, of calls that differ only by later erasures, and the other calls."""

    exact: int = 0
    erased: int = 0
    failed: list[str] = field(default_factory=list)


def verify(address: Address) -> None:
    """Print the result for all recorded calls; exit with 1 if any differs for another reason than an erasure."""
    found = run(_verify(address))
    for line in found.failed:
        typer.echo(line)
    typer.echo(
        f"{found.exact} calls render again as they were sent, {found.erased} but for what was erased since, "
        f"{len(found.failed)} do not"
    )
    if found.failed:
        raise typer.Exit(1)


async def _verify(address: Address) -> Verified:
    """Render all calls again, a few at a time. Raises PalimpsestError if they cannot be listed."""
    found = Verified()
    async with connected(address) as client:
        running: set[asyncio.Task[None]] = set()
        async for call in client.audit_calls(limit=PAGE):
            if len(running) == _CONCURRENT_CALLS:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            running.add(asyncio.create_task(_verify_call(client, found, call.line, call.call_id, call.sha256)))
        await asyncio.gather(*running)
    return found


async def _verify_call(client: AsyncPalimpsest, found: Verified, line: str, call_id: str, sha256: str) -> None:
    try:
        again = await client.session(line).get_call_context(call_id)
    except PalimpsestError as error:
        found.failed.append(f"call {call_id} of {line}: {': '.join(reason_of(error))}")
        return
    if again.sha256 == sha256:
        found.exact += 1
    else:  # the server refuses a call that differs for any other reason
        found.erased += 1
