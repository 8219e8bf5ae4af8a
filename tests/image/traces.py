"""Collect the traces of a server in a container and print their services: `python -m tests.image.traces`.

Prints the address for the traces, and ends when those of a request, its statement and its plan have arrived.
"""

import asyncio

from tests.support.collector import collector

WANTED = frozenset({"GET /v1/sessions/{sid}/context", "plan", "SELECT views.load"})


async def main() -> None:
    """Collect until all wanted spans have arrived."""
    async with collector() as collected:
        print(collected.url, flush=True)
        async with collected.changed:  # no timeout: the caller knows how long it may take
            await collected.changed.wait_for(lambda: {span.name for span in collected.spans} >= WANTED)
        services = {span.resource["service.name"] for span in collected.spans}
        print(f"ok: spans of {', '.join(services)} came, among them {', '.join(sorted(WANTED))}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
