"""The composite floor: the smallest FastAPI and asyncpg program that does the same work with nothing of ours.

Append: count the tokens, insert, commit. Context: read the tail backwards to 8,000 tokens and return it. No plan, no
formats, no checks. A second context also commits one small row before it answers, as a record of the call would: the
difference is what durability alone costs on this disk.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import tiktoken
from fastapi import FastAPI, Request, Response

TABLE = """
CREATE TABLE floor_events (session text, seq bigint, tokens int, body json, PRIMARY KEY (session, seq));
CREATE TABLE floor_calls (id bigserial PRIMARY KEY, session text, seq bigint, at timestamptz DEFAULT now());
"""
RECORD = "INSERT INTO floor_calls (session, seq) VALUES ($1, $2)"
INSERT = """
INSERT INTO floor_events SELECT $1, coalesce(max(seq), 0) + 1, $2, $3 FROM floor_events WHERE session = $1 RETURNING seq
"""
TAIL = "SELECT tokens, body FROM floor_events WHERE session = $1 ORDER BY seq DESC LIMIT $2"


def create_app(dsn: str, encoding: tiktoken.Encoding, tokens_max: int, page: int) -> FastAPI:
    """The program; `page` rows are read, enough for `tokens_max`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncpg.create_pool(dsn, min_size=16, max_size=16) as pool:
            app.state.pool = pool
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/append/{session}")
    async def append(session: str, request: Request) -> dict[str, int]:
        body = (await request.body()).decode()
        tokens = len(encoding.encode_ordinary(body))
        return {"seq": await app.state.pool.fetchval(INSERT, session, tokens, body), "tokens": tokens}

    @app.get("/context/{session}")
    async def context(session: str) -> Response:
        total, bodies = 0, []
        for row in await app.state.pool.fetch(TAIL, session, page):
            total += row["tokens"]
            if total > tokens_max:
                break
            bodies.append(row["body"])
        return Response('{"messages":[' + ",".join(reversed(bodies)) + "]}", media_type="application/json")

    @app.get("/recorded/{session}")
    async def recorded(session: str) -> Response:
        answer = await context(session)
        await app.state.pool.execute(RECORD, session, 1)
        return answer

    return app
