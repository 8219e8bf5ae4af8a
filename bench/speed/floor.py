"""The composite floor: the smallest FastAPI and asyncpg program that does the same work without our code.

Append: count the tokens, insert, commit. Context: read the tail backwards to 8,000 tokens and return it. No plan, no
formats, no checks. A second context also commits one small row before it answers, as a record of the call would: the
difference is the cost of durability on this disk.

`for_agents` serves the traffic of agents in the same way: it stores a request's messages in a row each, returns the
newest of a session that fit, and commits a row for each call. `summarize` is its worker.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

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
# `upto` is the session's running total of tokens including this message, which is also its position.
MESSAGES_TABLE: Final = """
CREATE TABLE floor_messages (session text, upto bigint, body json, PRIMARY KEY (session, upto));
CREATE TABLE floor_calls (id bigserial PRIMARY KEY, session text, seq bigint, at timestamptz DEFAULT now());
"""
STORE: Final = """
INSERT INTO floor_messages
SELECT $1, (SELECT coalesce(max(upto), 0) FROM floor_messages WHERE session = $1) + sum(tokens) OVER (ORDER BY n), body
FROM unnest($2::int[], $3::json[]) WITH ORDINALITY AS given (tokens, body, n)
"""
NEWEST: Final = """
SELECT upto, body FROM floor_messages WHERE session = $1
AND upto > (SELECT max(upto) FROM floor_messages WHERE session = $1) - $2 ORDER BY upto
"""
SUMMARIES_TABLE: Final = """
CREATE TABLE floor_jobs (session text PRIMARY KEY, due timestamptz DEFAULT clock_timestamp());
CREATE TABLE floor_summaries (session text, upto bigint, text text, due timestamptz,
                              made timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (session, upto));
"""
LAST: Final = "(SELECT coalesce(max(upto), 0) FROM floor_summaries WHERE session = $1)"
DUE: Final = f"""
INSERT INTO floor_jobs SELECT $1 WHERE (SELECT max(upto) FROM floor_messages WHERE session = $1) - {LAST} >= $2
ON CONFLICT DO NOTHING
"""
TAKE: Final = "DELETE FROM floor_jobs RETURNING session, due"
SPAN: Final = f"SELECT upto, body FROM floor_messages WHERE session = $1 AND upto > {LAST} ORDER BY upto"
SUMMARIZED: Final = "INSERT INTO floor_summaries (session, upto, text, due) VALUES ($1, $2, $3, $4)"
SPAN_TOKENS: Final = 12_000
"""Tokens of a span: those that one of our summaries covers in a window of 60,000."""
EXCERPT_CHARS: Final = 100
POLL_SECONDS: Final = 0.02
CHARS_PER_TOKEN: Final = 3
"""About the ratio of our estimator for Claude models, so that contexts are similar in size."""
TAIL = "SELECT tokens, body FROM floor_events WHERE session = $1 ORDER BY seq DESC LIMIT $2"


def create_app(dsn: str, encoding: tiktoken.Encoding, tokens_max: int, page: int) -> FastAPI:
    """Return the app; `page` is the number of rows read, enough for `tokens_max`."""
    app = FastAPI(lifespan=_pooled(dsn, 16))

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


def for_agents(dsn: str, pool_size: int) -> FastAPI:
    """Return the app for agents: it stores messages and returns the newest that fit the requested window."""
    app = FastAPI(lifespan=_pooled(dsn, pool_size))

    @app.post("/messages/{session}")
    async def store(session: str, request: Request, *, summaries: bool = False) -> dict[str, int]:
        bodies = [json.dumps(message) for message in json.loads(await request.body())["messages"]]
        tokens = [1 + len(body) // CHARS_PER_TOKEN for body in bodies]
        await app.state.pool.execute(STORE, session, tokens, bodies)
        if summaries:
            await app.state.pool.execute(DUE, session, SPAN_TOKENS)
        return {"messages": len(bodies), "tokens": sum(tokens)}

    @app.get("/newest/{session}")
    async def newest(session: str, max_tokens: int) -> Response:
        rows = await app.state.pool.fetch(NEWEST, session, max_tokens)
        body = '{"messages":[' + ",".join([row["body"] for row in rows]) + "]}"
        await app.state.pool.execute(RECORD, session, rows[-1]["upto"])
        return Response(body, media_type="application/json")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def summarize(dsn: str) -> None:
    """Run the minimal worker: excerpt each message since the last summary once there are SPAN_TOKENS. Never returns."""
    connection = await asyncpg.connect(dsn)
    while True:
        for job in await connection.fetch(TAKE):
            rows = await connection.fetch(SPAN, job["session"])
            if rows:  # empty if queued again while its messages were being summarized
                text = "\n".join(row["body"][:EXCERPT_CHARS] for row in rows)
                await connection.execute(SUMMARIZED, job["session"], rows[-1]["upto"], text, job["due"])
        await asyncio.sleep(POLL_SECONDS)


def _pooled(dsn: str, size: int) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncpg.create_pool(dsn, min_size=size, max_size=size) as pool:
            app.state.pool = pool
            yield

    return lifespan
