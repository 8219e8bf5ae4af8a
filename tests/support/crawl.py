"""The pages under `/ui/` that links lead to, one of each kind for each session."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit

import httpx
from starlette.routing import Match, Route

from app.core.log.segments import session_of
from app.wings.pages.routes import ROUTES
from tests.support.markup import Markup

FIRST: Final = "/ui/"
PAGES_MAX: Final = 120


@dataclass(frozen=True)
class Page:
    """A page, a text or a file, as the server sends it; `kind` is its route and the names in its query."""

    path: str
    kind: tuple[str, ...]
    status: int
    headers: httpx.Headers
    html: str

    @property
    def is_html(self) -> bool:
        """Whether a browser shows it as a page: neither a text nor a file to download."""
        return self.headers["content-type"].startswith("text/html") and "content-disposition" not in self.headers

    @classmethod
    def of(cls, path: str, kind: tuple[str, ...], answer: httpx.Response) -> "Page":
        """Return the page of a response."""
        return cls(path, kind, answer.status_code, answer.headers, answer.text)


async def crawl(http: httpx.AsyncClient, sessions: Sequence[str], fields: Mapping[str, str]) -> list[Page]:
    """Return the pages that links and searches lead to, one of each kind for each of these sessions.

    `fields` are the values that are entered into the fields of search forms, by name.
    """
    found: dict[tuple[str, ...], Page] = {}
    waiting, known = [FIRST], {FIRST}
    while waiting and len(found) < PAGES_MAX:
        path = waiting.pop(0)
        kind = kind_of(path, sessions)
        if kind is None or kind in found:
            continue
        answer = await http.get(path, headers={"Accept": "text/html"}, follow_redirects=True)
        found[kind] = page = Page.of(path, kind, answer)
        for link in targets(page, fields):
            target = urljoin(path, link).partition("#")[0]
            if target not in known:
                known.add(target)
                waiting.append(target)
    assert len(found) < PAGES_MAX, "the crawl has no end"
    return list(found.values())


def targets(page: Page, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses of a page's links, and of its search forms with these fields filled in."""
    if not page.is_html:
        return
    found = Markup.of(page.html)
    yield from found.links
    for form in found.forms:
        if form.method == "get":
            entered = {name: fields.get(name, value) for name, value in form.fields.items()}
            yield f"{form.action}?{urlencode({name: value for name, value in entered.items() if value})}"


def kind_of(path: str, sessions: Sequence[str]) -> tuple[str, ...] | None:
    """Return the kind of the page at an address; None for other addresses and other sessions."""
    at = urlsplit(path)
    route = route_of(at.path)
    if at.netloc or route is None or not at.path.startswith(FIRST):
        return None
    found = re.match(r"/ui/sessions/([^/]+)", at.path)
    session = session_of(unquote(found[1])) if found else ""
    if session and session not in sessions:
        return None
    return (route.path, session, *sorted({name for name, _ in parse_qsl(at.query)}))


def route_of(path: str) -> Route | None:
    """Return the route of a page, if it is one."""
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    for route in ROUTES:
        if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
            return route
    return None


def declared() -> set[str]:
    """Return the paths of the routes that are pages with a link to them: HTML that a reader gets."""
    apart = ("/", "/ui", "/ui/login", "/ui/static/{name}", "/ui/sessions/{sid}/live", "/ui/{path:path}")
    return {one.path for one in ROUTES if isinstance(one, Route) and "GET" in (one.methods or ())} - {*apart}
