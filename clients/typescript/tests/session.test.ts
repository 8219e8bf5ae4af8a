/** Sessions against the real server of PALIMPSEST_URL; the provider is a function that answers as a test specifies. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import {
    type CallOptions,
    type ChatRequest,
    ContextInfeasibleError,
    type EventOut,
    HeadConflictError,
    Palimpsest,
    RecallLoop,
    ReplyNotLogged,
    type Session,
    type SessionOptions,
    type StreamEvent,
} from "palimpsest-context-client";

type Json = Record<string, unknown>;
const palimpsest = new Palimpsest();

function opened(t: TestContext, options: SessionOptions<"openai"> = {}): Session<"openai"> {
    const id = t.name.replaceAll(/[^A-Za-z0-9]/g, "-").slice(0, 90);
    return palimpsest.session(id, { model: "gpt-4o", ...options });
}

const tool = (name: string) => ({
    type: "function",
    function: { name, description: name, parameters: { type: "object" } },
});
const called = (...names: string[]): Json => ({
    role: "assistant",
    content: null,
    tool_calls: names.map((name, at) => ({
        id: `call_${at}`,
        type: "function",
        function: { name: name.split(" ")[0], arguments: name.split(" ")[1] ?? "{}" },
    })),
});
const whole = (message: Json | string, usage: Json = { prompt_tokens: 20, completion_tokens: 3 }): Json => ({
    choices: [
        {
            index: 0,
            message: typeof message === "string" ? { role: "assistant", content: message } : message,
            finish_reason: "stop",
        },
    ],
    usage,
});

/** A provider that gives the answers in order; errors are thrown. It keeps the requests. */
function model(...answers: unknown[]): ((request: ChatRequest) => Promise<Json>) & { requests: ChatRequest[] } {
    const requests: ChatRequest[] = [];
    const create = async (request: ChatRequest) => {
        requests.push(request);
        const answer = answers.length > 1 ? answers.shift() : answers[0];
        if (answer instanceof Error) throw answer;
        return answer as Json;
    };
    return Object.assign(create, { requests });
}

async function* chunks(text: string, { stop = true, error }: { stop?: boolean; error?: Error } = {}) {
    for (const word of text.split(/(?<= )/)) {
        yield {
            id: "c",
            choices: [{ index: 0, delta: { role: "assistant", content: word }, finish_reason: null as string | null }],
        };
    }
    if (error) throw error;
    if (stop) yield { id: "c", choices: [{ index: 0, delta: {} as Json, finish_reason: "stop" }] };
    yield { id: "c", choices: [], usage: { prompt_tokens: 20, completion_tokens: 3 } };
}

async function eventsOf(session: Session<"openai">): Promise<EventOut[]> {
    const found: EventOut[] = [];
    for await (const event of session.listEvents()) found.push(event);
    return found;
}

const typesOf = async (session: Session<"openai">) => (await eventsOf(session)).map((event) => event.type);
const TOO_LONG = Object.assign(new Error("This model's maximum context length is 8000 tokens."), {
    status: 400,
    code: "context_length_exceeded",
});

test("prompt and tools are appended once, and again only after others", async (t) => {
    for (let start = 0; start < 2; start++) {
        const session = opened(t);
        await session.system("You are careful.");
        await session.tools([tool("a")]);
    }
    assert.deepEqual(await typesOf(opened(t)), ["system.prompt", "tools"]);
    const session = opened(t);
    await session.system("You are careless.");
    await session.system("You are careful.");
    await session.user("Hello.");
    await session.system("You are careful.");
    assert.equal((await typesOf(session)).filter((type) => type === "system.prompt").length, 3);
});

test("a turn logs each reply with the results of its tools", async (t) => {
    const session = opened(t);
    await session.tools([tool("a"), tool("b")]);
    const turn = await session.turn("Go.");
    const create = model(whole(called("a", "b")), whole("Done."));
    const first = await turn.send(create);
    assert.deepEqual([first.toolCalls.map((call) => call.name), first.content], [["a", "b"], ""]);
    await turn.results([Promise.resolve("one"), new RangeError("no such file")]);
    const last = await turn.send(create);
    assert.deepEqual(
        [last.content, last.usage, last.stopReason],
        ["Done.", { input_tokens: 20, output_tokens: 3 }, "stop"],
    );
    const events = await eventsOf(session);
    assert.deepEqual(
        events.map((event) => event.type),
        ["tools", "user.message", "tool.call", "tool.call", "tool.result", "tool.result", "assistant.message"],
    );
    assert.deepEqual(
        [events[4]!.content, events[5]!.content, events[5]!.is_error],
        ["one", "RangeError: no such file", true],
    );
    assert.deepEqual(
        create.requests[1]!.messages.map((message) => message.role),
        ["user", "assistant", "tool", "tool"],
    );
});

test("the parts of a turn take their requests one by one", async (t) => {
    const session = opened(t, { recall: false });
    await session.tools([tool("a")]);
    await session.user("Go.");
    const call = await session.call();
    await call.send(model(whole(called("a", "a"))));
    await session.results({ call_1: Promise.resolve({ rows: 3 }) });
    await session.results([{ tool_call_id: "call_0", content: "text" }]);
    assert.deepEqual(
        (await eventsOf(session)).slice(-2).map((event) => event.content),
        ['{"rows":3}', "text"],
    );
    await assert.rejects(session.results(["one more"]), TypeError);
});

test("a turn that is left logs the reply whose tools did not run", async (t) => {
    const session = opened(t);
    await session.tools([tool("a")]);
    {
        await using turn = await session.turn("Go.");
        await turn.send(model(whole(called("a"))));
        assert.deepEqual(await typesOf(session), ["tools", "user.message"]);
    }
    assert.deepEqual(await typesOf(session), ["tools", "user.message", "tool.call"]);
    const next = await session.turn("Go on.");
    const create = model(whole("Yes."));
    await next.send(create);
    assert.deepEqual(
        create.requests[0]!.messages.map((message) => message.role),
        ["user", "assistant", "tool", "user"],
    );
});

test("a streamed reply is logged at its end", async (t) => {
    const session = opened(t);
    const turn = await session.turn("Go.");
    const reply = await turn.send(
        (request) => (assert.deepEqual(request.stream_options, { include_usage: true }), chunks("One two three.")),
        {
            stream: true,
        } as { stream: true; stream_options?: object },
    );
    const texts: unknown[] = [];
    assert.throws(() => reply.content, /read the reply to its end/);
    for await (const chunk of reply) texts.push(chunk.choices[0]!.delta.content ?? "");
    assert.deepEqual(texts, ["One ", "two ", "three.", ""]);
    assert.equal(reply.content, "One two three.");
    assert.equal((await reply.done()).usage?.output_tokens, 3);
    assert.equal((await eventsOf(session)).at(-1)!.content, "One two three.");
    const [record] = (await session.listCalls()).items;
    assert.equal(record!.outcome?.usage?.input_tokens, 20);
});

test("a stream that is left is logged as partial", async (t) => {
    const session = opened(t);
    let closed = false;
    const stream = async function* () {
        try {
            yield* chunks("One two three.");
        } finally {
            closed = true;
        }
    };
    for await (const _ of await (await session.turn("Go.")).send(stream)) break;
    const last = (await eventsOf(session)).at(-1)!;
    assert.deepEqual([last.content, last.metadata, closed], ["One ", { partial: true }, true]);
});

test("a stream that is left after the answer's end is a complete reply", async (t) => {
    const session = opened(t);
    const reply = await (await session.turn("Go.")).send(() => chunks("One two."));
    for await (const chunk of reply) if (chunk.choices[0]!.finish_reason) break;
    assert.deepEqual([reply.content, reply.usage?.output_tokens], ["One two.", 3]);
    assert.deepEqual(
        (await eventsOf(session)).map((event) => [event.content, event.metadata?.["partial"]]),
        [
            ["Go.", undefined],
            ["One two.", undefined],
        ],
    );
});

test("a stream that breaks is logged as partial, and its error thrown", async (t) => {
    const session = opened(t);
    const broken = new Error("socket hang up");
    const reply = await (await session.turn("Go.")).send(() => chunks("One two.", { error: broken }));
    await assert.rejects(reply.done(), (error) => error === broken);
    const last = (await eventsOf(session)).at(-1)!;
    assert.deepEqual([last.content, last.metadata], ["One two.", { partial: true }]);
    const [record] = (await session.listCalls()).items;
    assert.equal(record!.outcome?.error?.message, "socket hang up");
});

test("a context that is too long is asked for again once, smaller", async (t) => {
    const session = opened(t, { max_tokens: 8_000 });
    for (let n = 0; n < 30; n++) {
        await session.log(
            { role: "user", content: `Question ${n}. ${"word ".repeat(300)}` },
            { role: "assistant", content: "Yes." },
        );
    }
    const create = model(TOO_LONG, whole("Done."));
    const turn = await session.turn("Go.");
    assert.equal((await turn.send(create)).content, "Done.");
    const sizes = create.requests.map((request) => JSON.stringify(request).length);
    assert.ok(sizes[1]! < sizes[0]!, String(sizes));
    assert.ok(turn.leftOut.length > 0);
    const twice = model(TOO_LONG);
    await assert.rejects((await session.turn("Again.")).send(twice), (error) => error === TOO_LONG);
    assert.equal(twice.requests.length, 2);
});

test("an error of the provider is reported and thrown unchanged", async (t) => {
    const session = opened(t);
    const refused = Object.assign(new Error("slow down"), { status: 429, code: "rate_limit_exceeded" });
    await assert.rejects((await session.turn("Go.")).send(model(refused)), (error) => error === refused);
    const [record] = (await session.listCalls()).items;
    assert.deepEqual(
        [record!.outcome?.error?.message, record!.outcome?.error?.status, record!.outcome?.error?.code],
        ["slow down", 429, "rate_limit_exceeded"],
    );
});

test("recalls are answered from the log, and wrong ones told to the model", async (t) => {
    const session = opened(t);
    await session.tools([tool("a")]);
    await session.log({ role: "user", content: "The word is heliotrope." }, { role: "assistant", content: "Noted." });
    const create = model(
        whole(called('recall {"limit":"many"}')),
        whole(called('recall {"query":"heliotrope"}')),
        whole("It is heliotrope."),
    );
    const reply = await (await session.turn("What is it?")).send(create);
    assert.equal(reply.content, "It is heliotrope.");
    const [wrong, right] = (await eventsOf(session)).filter((event) => event.type === "tool.result");
    assert.deepEqual([wrong!.is_error, right!.is_error ?? false], [true, false]);
    assert.match(String(wrong!.content), /limit/);
    assert.match(String(right!.content), /"seq":2/);
    const looping = model(whole(called('recall {"query":"heliotrope"}')));
    await assert.rejects((await session.turn("Again?")).send(looping), RecallLoop);
    assert.equal(looping.requests.length, 8);
});

test("a tool of one's own may be named recall if the session declines ours", async (t) => {
    await assert.rejects(opened(t).tools([tool("recall")]), TypeError);
    const session = opened(t, { recall: false });
    await session.tools([tool("recall")]);
    const reply = await (await session.turn("Go.")).send(model(whole(called("recall {}"))));
    assert.deepEqual(
        reply.toolCalls.map((call) => call.name),
        ["recall"],
    );
});

test("an answer of a provider called otherwise is logged by log", async (t) => {
    const session = opened(t);
    await session.user("Go.");
    const call = await session.call();
    assert.equal(call.request.model, "gpt-4o");
    assert.equal((await call.log(whole("By hand."))).content, "By hand.");
    assert.equal(await call.failed(new Error("no")), false);
    assert.equal((await eventsOf(session)).at(-1)!.content, "By hand.");
});

test("a reply that cannot be logged is in the error", async (t) => {
    const session = opened(t);
    const down = palimpsest.withOptions({
        maxRetries: 0,
        fetch: (input, init) =>
            String(input).endsWith("/messages") ? Promise.reject(new TypeError("fetch failed")) : fetch(input, init),
    });
    const turn = await down.session(session.id, { model: "gpt-4o" }).turn("Go.");
    await assert.rejects(turn.send(model(whole("Lost?"))), (error) => {
        assert.ok(error instanceof ReplyNotLogged);
        assert.equal((error.reply as { content: string }).content, "Lost?");
        return true;
    });
});

test("a window that nothing fits is an error with the parts", async (t) => {
    const session = opened(t);
    const options: CallOptions = { max_tokens: 200 };
    await assert.rejects(session.turn("word ".repeat(2_000), options), (error) => {
        assert.ok(error instanceof ContextInfeasibleError);
        assert.equal(error.part, "context");
        return error.minimumTokens > 200;
    });
});

test("a fork shares the log, and rewind makes a line", async (t) => {
    const session = opened(t);
    await session.log(
        { role: "user", content: "One." },
        { role: "assistant", content: "Two." },
        { role: "user", content: "Three." },
    );
    const fork = await session.fork(`${session.id}-b`, { at: 2 });
    assert.deepEqual(await typesOf(fork), ["user.message", "assistant.message"]);
    await session.rewind(1);
    assert.deepEqual(await typesOf(session), ["user.message"]);
    assert.equal((await session.listLines()).items.length, 2);
    await assert.rejects(
        session.appendEvents({ events: [{ type: "user.message", content: "x" }], expected_head: 9 }),
        HeadConflictError,
    );
});

test("a view has its own window, and does not change the session's", async (t) => {
    const session = opened(t);
    await session.user("Hello.");
    const view = opened(t, { view: "title", model: "gpt-5-mini", max_tokens: 4_000, policy: "short-tasks" });
    const call = await view
        .call()
        .catch(() => opened(t, { view: "title", model: "gpt-5-mini", max_tokens: 4_000 }).call());
    assert.deepEqual([call.context.view, call.tokens.limit], ["title", 4_000]);
    assert.equal((await session.getSession()).model, "gpt-4o");
});

test("a stream gives what is appended, and is resumed after a break", async (t) => {
    const session = opened(t);
    await session.user("One.");
    let connections = 0;
    const flaky = palimpsest.withOptions({
        async fetch(input, init) {
            const response = await fetch(input, init);
            if (!String(input).includes("/stream")) return response;
            connections++;
            if (connections > 1) return response;
            const reader = response.body!.getReader();
            return new Response(
                new ReadableStream({
                    async pull(controller) {
                        const { value, done } = await reader.read();
                        if (done || String(new TextDecoder().decode(value)).includes("Two.")) {
                            await reader.cancel();
                            controller.error(new TypeError("terminated"));
                        } else controller.enqueue(value);
                    },
                }),
                response,
            );
        },
    });
    const seen: StreamEvent[] = [];
    for await (const event of flaky.session(session.id).stream({ after: 0, types: ["appended"] })) {
        seen.push(event);
        if (seen.length === 1) await session.user("Two.");
        if (seen.length === 2) break;
    }
    assert.deepEqual(
        seen.map((event) => event.kind === "appended" && event.data.content),
        ["One.", "Two."],
    );
    assert.equal(connections, 2);
});
