"""Operations of no resource: liveness and readiness; and the pages for people, the API's document and the problems."""

import base64
import gzip
import hashlib
from html import escape
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.core.errors import NotFound
from app.http import errors
from app.http.openapi import open_problems
from app.http.past_reads import past_reads
from app.http.problems import TEXTS
from app.http.query import check_query
from app.version import VERSION

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
    replica = past_reads(request).replica_state
    return {"status": "ready"} if replica is None else {"status": "ready", "replica": replica}


_pages = APIRouter(include_in_schema=False)

ASSETS: Final = Path(__file__).parent / "swagger_ui"
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
