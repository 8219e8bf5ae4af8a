"""The parts that MCP adds to the server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from starlette.routing import Route


def _routes(_: Any) -> "Sequence[Route]":
    from app.wings.mcp import routes

    return routes.routes()


WING = Wing(routes=_routes)
