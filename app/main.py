"""The ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from fastapi import FastAPI

from app import tokenizers, wiring
from app.api import documents, errors
from app.api.body import LimitBody
from app.api.measure import Measure
from app.api.routes import context, events, operations, policies, sessions, summaries
from app.api.schemas.events import EventsIn, MessagesIn
from app.api.schemas.policies import POLICY_SCHEMA
from app.settings import Settings
from app.store.engine import Database
from app.version import VERSION


class State(TypedDict):
    """What a request finds in `request.state`."""

    services: wiring.Services


def create_app(settings: Settings, database_url: str) -> FastAPI:
    """The application over a migrated database; its lifespan holds every resource."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        database = Database(database_url, pool_size=settings.pool_size)
        try:
            yield {"services": wiring.build(settings, database, tokenizers.load(settings.tiktoken_cache_dir))}
        finally:
            await database.close()

    app = FastAPI(
        title="Palimpsest",
        version=VERSION,
        summary="A context-assembly server for LLM agents",
        description=documents.problem_table(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(LimitBody, limit_bytes=settings.body_bytes_max)
    app.add_middleware(Measure)
    errors.install(app)
    for module in (
        context,
        events,
        sessions,
        summaries,
        policies,
        operations,
    ):  # the busiest first: routes are tried in order
        app.include_router(module.router)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """The OpenAPI document, with the bodies that routes read themselves."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = documents.with_schemas(generate(), {"EventsIn": EventsIn, "MessagesIn": MessagesIn})
            # As it is: FastAPI's own rendering leaves out every default that is null.
            document["components"]["schemas"]["PolicyDocument"] = POLICY_SCHEMA
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
