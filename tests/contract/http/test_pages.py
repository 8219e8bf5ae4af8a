"""Pages for people: the interactive API document without other hosts, and a page at each problem's `type`."""

import hashlib
import re

import httpx
import pytest

from app.http import errors
from app.http.problems import TEXTS
from app.main import ASSETS, BUNDLE
from app.runtime.settings import Settings
from tests.conftest import serving

PROGRAM = "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2"
PUBLISHED = {
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
    "favicon-32x32.png": "3ed612f41e050ca5e7000cad6f1cbe7e7da39f65fca99c02e99e6591056e5837",
}


def addresses(page: str) -> list[str]:
    """Return the addresses that a browser loads or links from a page."""
    return re.findall(r'(?:src|href)="([^"]+)"', page)


async def test_the_interactive_document_needs_no_other_host(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "script-src 'self';" in policy
    assert "http" not in policy and "eval" not in policy
    assert "<script>" not in answer.text and "http" not in " ".join(addresses(answer.text))
    for address in [*addresses(answer.text), "openapi.json"]:
        found = await client.get(f"/{address}")
        assert found.status_code == 200, address
        assert found.headers["content-type"].split(";")[0].split("/")[1] in ("css", "png", "javascript", "json")
    script = (await client.get("/docs/initializer.js")).text
    assert "validatorUrl: null" in script and 'url: "openapi.json"' in script
    for other in ("LICENSE", "README.md", "..%2Ferrors.py", "%2e%2e"):
        assert (await client.get(f"/docs/{other}")).status_code == 404, other


@pytest.mark.parametrize(("name", "sha256"), PUBLISHED.items())
def test_the_assets_are_the_published_files(name: str, sha256: str) -> None:
    assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == sha256
    assert {"LICENSE", "NOTICE"} <= {path.name for path in ASSETS.iterdir()}


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, br", "gzip"), ("identity", None)])
async def test_the_program_is_the_published_file_for_every_client(
    client: httpx.AsyncClient, accepted: str, encoding: str | None
) -> None:
    answer = await client.get(f"/docs/{BUNDLE}", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) < 500_000 or encoding is None
    assert hashlib.sha256(answer.content).hexdigest() == PROGRAM


async def test_every_problem_has_a_page_at_its_type(client: httpx.AsyncClient) -> None:
    slugs = {problem.slug: problem for problem in errors.ALL}
    assert set(TEXTS) == set(slugs)
    listed = await client.get("/problems")
    assert {one.removeprefix("problems/") for one in addresses(listed.text)} == set(slugs)
    for slug, problem in slugs.items():
        page = await client.get(f"/problems/{slug}")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), slug
        assert problem.title.split("'")[0] in page.text and str(problem.status) in page.text
        assert all(f"<code>{name}</code>" in page.text for name in TEXTS[slug].fields)
        assert "default-src 'none'" in page.headers["content-security-policy"]
    missing = await client.get("/v1/sessions/none")
    assert (await client.get(missing.json()["type"])).status_code == 200
    assert (await client.get("/problems/<b>")).status_code == 404


async def test_pages_need_no_key(database_url: str) -> None:
    settings = Settings(api_key="a-key-for-the-pages")
    async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url) as http:
        for path in ("/docs", "/docs/swagger-ui.css", "/problems", "/problems/unauthorized", "/openapi.json"):
            assert (await http.get(path)).status_code == 200, path
        assert (await http.get("/v1/sessions")).status_code == 401
