"""Takes the traces of a server in a container, and says what came: `python -m tests.image.traces`.

Prints the address to send them to, and ends when a request, its statement and its plan have come.
"""

import asyncio

from tests.support.collector import collector

WANTED = frozenset({"GET /v1/sessions/{sid}/context", "plan", "SELECT views.load"})


async def main() -> None:
    """Collect until all is there that is wanted."""
    async with collector() as collected:
        print(collected.url, flush=True)
        async with collected.changed:  # for as long as it takes: whoever started this knows how long that may be
            await collected.changed.wait_for(lambda: {span.name for span in collected.spans} >= WANTED)
        services = {span.resource["service.name"] for span in collected.spans}
        print(f"ok: spans of {', '.join(services)} came, among them {', '.join(sorted(WANTED))}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
