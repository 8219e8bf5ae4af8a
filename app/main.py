"""The ASGI application, with the operations of no resource.

These are liveness and readiness, and the pages of the API's document and of the problems.
"""

import asyncio
import base64
import gzip
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from html import escape
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypedDict, runtime_checkable
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import BaseModel
from starlette.routing import BaseRoute

from app import tokenizers
from app.core.assembly.inputs import ContextRequest
from app.core.errors import NotFound
from app.http import errors, openapi
from app.http.middleware import RequestLimits, RequestMiddleware
from app.http.openapi import open_problems
from app.http.operation import Resource, past_reader
from app.http.problems import TEXTS, with_problem_schemas
from app.http.requests import JsonLimits, check_query
from app.resources import keys, turns, visibility
from app.resources.contexts import routes as context
from app.resources.events import routes as events
from app.resources.feedback import routes as feedback
from app.resources.layers import routes as layers
from app.resources.lines import routes as lines
from app.resources.policies import routes as policies
from app.resources.policies.routes import POLICY_SCHEMA
from app.resources.sessions import routes as sessions
from app.resources.summaries import routes as summaries
from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement, installed, observers
from app.store import calls
from app.store.engine import Database, acting_for
from app.version import VERSION

_BUSIEST: Final = (context, events, feedback, sessions, lines, layers, turns, visibility, summaries, policies, keys)
"""Routes are tried in this order, and then those of no resource."""
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
            for service in reversed(services.others):
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
    resources = (module.router for module in _BUSIEST)
    for part in chain(resources, (router,), *(wing.routes(settings) for wing in installed())):
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


router = APIRouter(tags=["operations"], dependencies=[Depends(check_query)])


@router.head("/healthz", include_in_schema=False)  # monitors ask so
@router.get("/healthz", operation_id="healthz", summary="Liveness", responses=open_problems())
async def healthz() -> dict[str, str]:
    """Check that the process is running, without using the database."""
    return {"status": "ok", "service": "palimpsest", "version": VERSION}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", operation_id="readyz", summary="Readiness", responses=open_problems("store-unavailable"))
async def readyz(request: Request) -> dict[str, str]:
    """Check that requests can be served: the database responds, and has not just refused a write for lack of space.

    If there is a replica, `replica` is its state; the primary is used while the replica cannot be.
    """
    await request.state.services.database.ready()
    replica = past_reader(request).replica_state
    return {"status": "ready"} if replica is None else {"status": "ready", "replica": replica}


_pages = APIRouter(include_in_schema=False)

ASSETS: Final = Path(__file__).parent / "http" / "swagger_ui"
SERVED: Final = frozenset({"swagger-ui.css", "initializer.js", "favicon-32x32.png"})
BUNDLE: Final = "swagger-ui-bundle.js"
"""The program of the page, kept compressed: it would be a third of all of the server's files."""
_TITLES: Final = {problem.slug: (problem.title, problem.status) for problem in errors.ALL}

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem;color:#222}"
    "code{background:#f2f2f2;padding:.1em .3em}td{padding:.2em 1em .2em 0;vertical-align:top}a{color:#0550ae}"
)
_NO_EMBEDDING: Final = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; {_NO_EMBEDDING}",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# Swagger UI itself needs inline styles and data images; scripts and requests are limited to this server.
_DOCS_HEADERS: Final = {
    **_PAGE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    f"img-src 'self' data:; connect-src 'self'; {_NO_EMBEDDING}",
}
_ASSET_HEADERS: Final = {**_PAGE_HEADERS, "Cache-Control": "max-age=3600"}
_DOCS: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Palimpsest API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="docs/swagger-ui.css"><link rel="icon" href="docs/favicon-32x32.png"></head>
<body><div id="swagger-ui"></div><noscript>The API is described in <a href="openapi.json">openapi.json</a>.</noscript>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/initializer.js"></script></body></html>
"""


@_pages.get("/docs")
async def show_docs() -> Response:
    """Get the interactive API document. All of its files come from this server."""
    return HTMLResponse(_DOCS, headers=_DOCS_HEADERS)


@_pages.get(f"/docs/{BUNDLE}")
def docs_program(accept_encoding: Annotated[str, Header()] = "") -> Response:
    """Get the program of the interactive API document, compressed for those who accept that."""
    program = (ASSETS / f"{BUNDLE}.gz").read_bytes()
    headers = {**_ASSET_HEADERS, "Vary": "Accept-Encoding"}
    if "gzip" in accept_encoding:
        headers["Content-Encoding"] = "gzip"
    else:
        program = gzip.decompress(program)
    return Response(program, media_type="text/javascript", headers=headers)


@_pages.get("/docs/{asset}")
async def docs_asset(asset: str) -> Response:
    """Get a file of the interactive API document."""
    if asset not in SERVED:
        raise NotFound(f"there is nothing at /docs/{asset}")
    return FileResponse(ASSETS / asset, headers=_ASSET_HEADERS)


@_pages.get("/problems")
async def show_problems() -> Response:
    """List the kinds of problems."""
    rows = "".join(
        f'<tr><td><a href="problems/{slug}">{slug}</a></td><td>{status}</td><td>{escape(title)}</td></tr>'
        for slug, (title, status) in sorted(_TITLES.items())
    )
    return _page("Problems", f"<h1>Problems</h1><p>Every error is one of these.</p><table>{rows}</table>")


@_pages.get("/problems/{slug}")
async def show_problem(slug: str) -> Response:
    """Explain a kind of problem: its meaning, its remedy and its fields."""
    if slug not in _TITLES:
        raise NotFound(f"there is nothing at /problems/{slug}")
    (title, status), text = _TITLES[slug], TEXTS[slug]
    rows = "".join(
        f"<tr><td><code>{name}</code></td><td>{escape(str(field['description']))}</td></tr>"
        for name, field in text.fields.items()
    )
    fields = f"<h2>Fields</h2><table>{rows}</table>" if rows else ""
    body = (
        f"<h1>{escape(title)}</h1><p><code>/problems/{slug}</code>, HTTP {status}</p><p>{escape(text.meaning)}</p>"
        f'<h2>What to do</h2><p>{escape(text.remedy)}</p>{fields}<p><a href="../problems">All problems</a></p>'
    )
    return _page(title, body)


def _page(title: str, body: str) -> Response:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>', headers=_PAGE_HEADERS
    )


router.routes.extend(_pages.routes)


def document() -> str:
    """Return the document as committed. No database is needed: the application connects only when it is served."""
    app = create_app(Settings(), "postgresql+asyncpg://nowhere/nothing")
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":  # python -m app.main FILE
    Path(sys.argv[1]).write_text(document())
