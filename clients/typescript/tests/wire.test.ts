/** Requests on the wire: retries, errors and pages, against a server that answers as a test specifies. */

import assert from "node:assert/strict";
import { type IncomingHttpHeaders, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import {
    ConflictError,
    ConnectionFailed,
    ConnectionTimedOut,
    ContextInfeasibleError,
    HeadConflictError,
    InvalidRequestError,
    Palimpsest,
    ServerError,
    StatusError,
    UnavailableError,
    UnreadableAnswer,
} from "palimpsest-context-client";

interface Seen {
    method: string;
    url: string;
    headers: IncomingHttpHeaders;
    body: string;
}

type Answer = (response: ServerResponse) => void;
const seen: Seen[] = [];
let answers: Answer[] = [];

const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    seen.push({ method: request.method!, url: request.url!, headers: request.headers, body });
    (answers.length > 1 ? answers.shift()! : answers[0]!)(response);
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const baseURL = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
after(() => server.close().closeAllConnections());

const json =
    (status: number, body: object, headers: Record<string, string> = {}): Answer =>
    (response) => {
        response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
    };
const problem = (status: number, slug: string, more: object = {}, headers: Record<string, string> = {}): Answer =>
    json(status, { type: `/problems/${slug}`, title: slug, status, detail: `a ${slug}`, ...more }, headers);
const now = { "retry-after": "0" };

function client(...given: Answer[]): Palimpsest {
    seen.length = 0;
    answers = given;
    return new Palimpsest({ baseURL, apiKey: "a key", timeout: 5_000 });
}

test("temporary failures are retried, with one idempotency key and one key of the API", async () => {
    const palimpsest = client(
        problem(503, "overloaded", {}, now),
        (r) => r.destroy(),
        json(200, { events: [], head: 1 }),
    );
    await palimpsest.session("s").appendEvents({ events: [{ type: "user.message", content: "Hello." }] });
    assert.equal(seen.length, 3);
    assert.equal(new Set(seen.map((one) => one.headers["idempotency-key"])).size, 1);
    assert.ok(seen.every((one) => one.headers.authorization === "Bearer a key"));
    assert.match(seen[0]!.headers["user-agent"]!, /^palimpsest-context-client-ts\//);
});

test("a given idempotency key is sent", async () => {
    const session = client(json(200, { events: [] })).session("s");
    await session.appendEvents({ events: [] }, { idempotencyKey: "mine" });
    assert.equal(seen[0]!.headers["idempotency-key"], "mine");
});

test("after the retries the error is thrown", async () => {
    await assert.rejects(client(problem(503, "overloaded", {}, now)).getRetention(), UnavailableError);
    assert.equal(seen.length, 3);
});

test("without retries there is one attempt", async () => {
    const hasty = client(problem(500, "internal", {}, now)).withOptions({ maxRetries: 0 });
    await assert.rejects(hasty.getRetention(), ServerError);
    assert.equal(seen.length, 1);
});

test("a longer Retry-After than a minute is not waited for", async () => {
    await assert.rejects(
        client(problem(503, "overloaded", {}, { "retry-after": "61" })).getRetention(),
        UnavailableError,
    );
    assert.equal(seen.length, 1);
});

for (const slug of ["head-conflict", "conflict"]) {
    test(`a ${slug} is never retried`, async () => {
        const append = client(problem(409, slug, { head: 7 }))
            .session("s")
            .appendEvents({ events: [], expected_head: 3 });
        await assert.rejects(append, (error) => {
            assert.ok(error instanceof ConflictError);
            assert.equal(error instanceof HeadConflictError && error.head, slug === "head-conflict" && 7);
            assert.equal(error.slug, slug);
            return true;
        });
        assert.equal(seen.length, 1);
    });
}

test("a call that no longer renders is not retried", async () => {
    await assert.rejects(client(problem(500, "not-reproducible")).session("s").getCallContext("c"), ServerError);
    assert.equal(seen.length, 1);
});

test("a request whose first answer has a secret is not repeated after a lost one", async () => {
    await assert.rejects(client((r) => r.destroy()).createKey({ name: "a", scopes: ["read"] }), ConnectionFailed);
    assert.equal(seen.length, 1);
});

test("an infeasible context says the size of its parts", async () => {
    const made = problem(422, "context-infeasible", { minimum_tokens: 9, by_source: { system: 9 }, part: "context" });
    await assert.rejects(client(made).session("s").getContext(), (error) => {
        assert.ok(error instanceof ContextInfeasibleError && error instanceof InvalidRequestError);
        assert.deepEqual([error.minimumTokens, error.bySource, error.part], [9, { system: 9 }, "context"]);
        return true;
    });
});

test("an unknown problem has the class of its status, and a proxy's page no slug", async () => {
    const page: Answer = (response) => response.writeHead(403, { "content-type": "text/html" }).end("<html>No.</html>");
    await assert.rejects(client(problem(422, "of-a-newer-server")).getRetention(), InvalidRequestError);
    await assert.rejects(client(json(409, { type: 5, detail: "odd" })).getRetention(), ConflictError);
    await assert.rejects(client(page).getRetention(), (error) => {
        assert.ok(error instanceof StatusError);
        assert.deepEqual([error.status, error.slug, error.detail], [403, undefined, "<html>No.</html>"]);
        return true;
    });
});

test("a success that is not JSON is unreadable", async () => {
    await assert.rejects(client((r) => r.end("<html>Log in.</html>")).getRetention(), UnreadableAnswer);
    await assert.rejects(async () => await client(json(200, {})).listKeys(), UnreadableAnswer);
});

test("a server that does not answer times out, and one that is not there is named", async () => {
    const silent = client(() => undefined).withOptions({ timeout: 50, maxRetries: 0 });
    await assert.rejects(silent.getRetention(), ConnectionTimedOut);
    await assert.rejects(new Palimpsest({ baseURL: "http://127.0.0.1:9", maxRetries: 0 }).healthz(), (error) => {
        assert.ok(error instanceof ConnectionFailed);
        assert.match(error.message, /127\.0\.0\.1:9 cannot be reached: .*PALIMPSEST_URL/);
        return true;
    });
});

test("a caller's own abort is thrown as it is", async () => {
    const session = client(() => undefined).session("s");
    const signal = AbortSignal.timeout(20);
    await assert.rejects(session.postContext({}, { signal }), (error) => error === signal.reason);
    assert.ok(seen.length <= 1);
});

test("a list is fetched page by page, and only as far as it is read", async () => {
    const palimpsest = client(
        json(200, { items: [1, 2], next_cursor: "b" }),
        json(200, { items: [3], next_cursor: null }),
    );
    const found: unknown[] = [];
    for await (const item of palimpsest.listSessions({ limit: 2, metadata: { team: "a" } })) found.push(item);
    assert.deepEqual(found, [1, 2, 3]);
    assert.deepEqual(
        seen.map((one) => one.url),
        [
            "/v1/sessions?limit=2&metadata=%7B%22team%22%3A%22a%22%7D",
            "/v1/sessions?limit=2&metadata=%7B%22team%22%3A%22a%22%7D&cursor=b",
        ],
    );
    const page = await client(json(200, { items: [1], next_cursor: "b" }))
        .session("s")
        .listCalls();
    assert.deepEqual([page.items, page.nextCursor, seen.length], [[1], "b", 1]);
});

test("ids in paths are escaped, and unset members are not sent", async () => {
    await client(json(200, { x: 1 }))
        .session("a/b:c@d é")
        .getEvent(3);
    assert.equal(seen[0]!.url, "/v1/sessions/a%2Fb:c@d%20%C3%A9/events/3");
    const session = client(json(200, { x: 1 })).session("s");
    await session.postContext({ format: "openai", model: null });
    assert.deepEqual(JSON.parse(seen[0]!.body), { format: "openai" });
});
