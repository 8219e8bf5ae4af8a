"""The ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain
from typing import Any, Final, Protocol, TypedDict, runtime_checkable
from uuid import UUID

import structlog
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.routing import BaseRoute

from app import tokenizers
from app.core.assembly.inputs import ContextRequest
from app.core.errors import NotFound
from app.http import errors, openapi, operations
from app.http.body import JsonLimits
from app.http.middleware import RequestLimits, RequestMiddleware
from app.http.operation import Resource
from app.http.problems import with_problem_schemas
from app.resources.contexts import routes as context
from app.resources.events import routes as events
from app.resources.feedback import routes as feedback
from app.resources.keys import routes as keys
from app.resources.layers import routes as layers
from app.resources.lines import routes as lines
from app.resources.policies import routes as policies
from app.resources.policies.routes import POLICY_SCHEMA
from app.resources.sessions import routes as sessions
from app.resources.summaries import routes as summaries
from app.resources.turns import routes as turns
from app.resources.visibility import routes as visibility
from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement, installed, observers
from app.store import calls
from app.store.engine import Database, acting_for
from app.version import VERSION

_BUSIEST_FIRST: Final = (
    context,
    events,
    feedback,
    sessions,
    lines,
    layers,
    turns,
    visibility,
    summaries,
    policies,
    keys,
    operations,
)
"""Routes are tried in this order."""
WARM_UP_SECONDS: Final = 1.0
"""Maximum duration of the warm-up, so that a process without a database starts nearly as fast."""


@runtime_checkable
class Closes(Protocol):
    """A service that holds connections or tasks of its own."""

    async def aclose(self) -> None:
        """Release them."""


class RequestState(TypedDict):
    """The contents of `request.state`."""

    services: wiring.Services


def create_app(settings: Settings, database_url: str) -> FastAPI:
    """Return the application on a migrated database; its lifespan owns every resource.

    The server must set `state.stopping` when it begins to stop, or endless streams would keep it running.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[RequestState]:
        database = Database(
            database_url,
            pool_size=settings.pool_size,
            pooler_url=settings.database_pooler_url,
            find_placement=find_placement,
            on_wait=observers().pool_wait,
        )
        services = wiring.build(settings, database, tokenizers.load(settings.tiktoken_cache_dir))
        try:
            await _warm_up(services)
            async with AsyncExitStack() as stack:
                for wing in installed():
                    await stack.enter_async_context(wing.lifespan(settings, services, app.state.stopping))
                yield {"services": services}
        finally:
            for service in services.wings:
                if isinstance(service, Closes):
                    await service.aclose()
            await services.tenants.aclose()
            await database.close()

    app = FastAPI(
        title="Palimpsest",
        version=VERSION,
        summary="A context-assembly server for LLM agents",
        description=openapi.introduction(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # a wing does it
        redirect_slashes=False,  # a redirect would lead wherever the caller's Host says
    )
    app.state.stopping = asyncio.Event()
    app.state.json_limits = JsonLimits(settings.json_elements_max, settings.json_depth_max)
    app.state.foreign_paths = tuple(path for wing in installed() for path in wing.foreign_paths)
    app.add_middleware(
        RequestMiddleware,
        limits=RequestLimits(settings.requests_max, settings.tenant_requests_max, settings.body_bytes_max),
        open_hosts=settings.open_hosts,
        observe=observers().request,
    )
    errors.install(app)
    schemas: list[type[BaseModel]] = []
    for part in chain((module.router for module in _BUSIEST_FIRST), *(wing.routes(settings) for wing in installed())):
        # Not by `include_router`, which builds every route again for this application at its first request.
        app.router.routes.extend([part] if isinstance(part, BaseRoute) else part.routes)
        schemas += part.schemas if isinstance(part, Resource) else ()
    _describe(app, schemas)
    return app


async def _warm_up(services: wiring.Services) -> None:
    """Open a connection and prepare its statements: plan a context for a session that nobody has, and record no call.

    The first context of a process without it takes twice as long.
    """
    nobody = UUID(int=0)
    try:
        async with asyncio.timeout(WARM_UP_SECONDS):
            with acting_for(nobody):
                with suppress(NotFound):
                    await services.assembly.plan(nobody, "warm-up", ContextRequest())
                if services.database.is_direct:
                    await calls.prepare(services.database)
    except Exception as error:  # the same error meets the first request, and the readiness probe
        structlog.get_logger().warning("warm-up", error=repr(error))


def _describe(app: FastAPI, schemas: Sequence[type[BaseModel]]) -> None:
    """Add to the OpenAPI document these schemas, which FastAPI does not see."""
    generate = app.openapi

    def described_document() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = openapi.with_body_problems(openapi.with_schemas(generate(), schemas))
            document = with_problem_schemas(openapi.add_descriptions(document, app.routes))
            # Set afterwards, because FastAPI's own rendering leaves out every default that is null.
            document["components"]["schemas"]["PolicyDocument"] = POLICY_SCHEMA
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = described_document  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
