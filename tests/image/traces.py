"""Takes the traces of a server in a container, and says what came: `python -m tests.image.traces`.

Prints the address to send them to; ends when a request, its statement and its plan have come, or else with a status.
"""

import asyncio

from tests.support.collector import collector

WANTED = frozenset({"GET /v1/sessions/{sid}/context", "plan", "SELECT views.load"})


async def main() -> None:
    """Collect until all is there that is wanted."""
    async with collector() as collected:
        print(collected.url, flush=True)
        spans = await collected.until(lambda spans: {span.name for span in spans} >= WANTED)
        services = {span.resource["service.name"] for span in spans}
        print(f"ok: {len(spans)} spans of {', '.join(services)} came, among them {', '.join(sorted(WANTED))}")


if __name__ == "__main__":
    asyncio.run(main())
