"""The server processes that the benchmark compares, and our worker."""

import os

import tiktoken
import uvicorn
from sqlalchemy.engine import make_url

from app.cli import options
from app.main import create_app
from app.runtime.serve import run_worker
from app.runtime.settings import Settings
from bench.speed import floor

TAIL_TOKENS = 8_000
FLOOR_PAGE_ROWS = 100
"""Rows the floor reads: 8,000 tokens are 95 of the benchmark's events."""


def serve(kind: str, url: str, port: int, cache_dir: str) -> None:
    """Serve `floor` or `ours`, or run our `worker`, until killed."""
    os.environ["TIKTOKEN_CACHE_DIR"] = cache_dir
    settings = Settings(pool_size=16, log_level="warning")
    options.configure_logging(settings)
    if kind == "worker":
        run_worker(settings, url, quiet=True)
        return
    if kind == "floor":
        app = floor.create_app(dsn(url), tiktoken.get_encoding("o200k_base"), TAIL_TOKENS, FLOOR_PAGE_ROWS)
    else:
        app = create_app(settings, url)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False, ws="none")


def dsn(url: str) -> str:
    """Return the URL in asyncpg's form."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
