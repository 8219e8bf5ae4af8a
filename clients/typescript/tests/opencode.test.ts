/** opencode's plugin with unusual messages: cleared, failed and interrupted results, files, errors, and observed calls. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { AuthenticationError } from "palimpsest-context-client";
import palimpsest from "palimpsest-context-client/opencode";
import { Gate } from "./gate.js";
import { long } from "./scripts.js";

type Json = Record<string, any>;

const gate = await Gate.open();
beforeEach(() => {
    gate.mode = "open";
    gate.seen.length = 0;
    gate.warnings.length = 0;
});
const url = gate.client.transport.baseURL;
const size = (messages: unknown) => Math.ceil(JSON.stringify(messages).length / 4);

/** A session of opencode: its messages, and the plugin's hooks. */
async function sessionOf(sessionID: string, options: Json = {}) {
    const messages: Json[] = [];
    const host = { session: { messages: async () => ({ data: messages }) } };
    const hooks = await palimpsest({ client: host }, { url, ...options });
    await hooks["chat.params"]({ sessionID, model: { limit: { context: 5_000, output: 1_000 } } });
    const add = (info: Json, ...parts: Json[]) => {
        const id = `msg_${messages.length}`;
        const about = { sessionID, messageID: id };
        const whole = parts.map((part, index) => ({ id: `prt_${id}_${index}`, ...about, ...part }));
        messages.push({ info: { id, sessionID, time: { created: 1, completed: 2 }, ...info }, parts: whole });
    };
    return {
        messages,
        ask: (...parts: Json[]) => add({ role: "user", model: { modelID: "gpt-4o" } }, ...parts),
        reply: (info: Json, ...parts: Json[]) => add({ role: "assistant", ...info }, ...parts),
        async shown(): Promise<Json[]> {
            const output = { messages: [...messages] };
            await hooks["experimental.chat.messages.transform"]({}, output);
            return output.messages;
        },
        idle: () => hooks.event({ event: { type: "session.idle", properties: { sessionID } } }),
    };
}

const text = (said: string) => ({ type: "text", text: said });
const tokens = (input: number) => ({ tokens: { input, output: 5, reasoning: 1, cache: { read: 10, write: 0 } } });
function call(n: number, state: Json = { status: "completed", output: long(n) }) {
    const whole = { input: { crate: n }, time: { start: 1, end: 2 }, ...state };
    return { type: "tool", callID: `call_${n}`, tool: "weigh", state: whole };
}

test("results that were cleared, failed or interrupted, and files, are shown as they are if they fit", async () => {
    const session = await sessionOf("kinds");
    session.ask(
        text("Weigh them."),
        { type: "file", mime: "image/png", url: "data:image/png;base64,aGVyb24=" },
        { type: "file", mime: "application/pdf", filename: "crates.pdf", url: "file:///crates.pdf" },
    );
    const cleared = { status: "completed", output: "12 kg", time: { start: 1, end: 2, compacted: 3 } };
    session.reply(tokens(900), text("First."), call(1, cleared), call(2, { status: "error", error: "no scale" }));
    session.reply(tokens(950), { type: "step-start" }, call(3, { status: "running" }), {
        type: "reasoning",
        text: "?",
    });
    const shown = await session.shown();
    assert.deepEqual([shown[0], shown[2]], [session.messages[0], session.messages[2]]);
    assert.equal(shown[1]!["parts"][1].state.time.compacted, undefined);
    assert.equal(shown[1]!["parts"][1].state.output, "12 kg");
    const [asked] = gate.at("/context");
    assert.deepEqual(
        asked!.sent.messages.map(({ role, content }: Json) => [role, content?.[2]?.text ?? content]),
        [
            ["user", "[file crates.pdf application/pdf]"],
            ["assistant", "First."],
            ["tool", "12 kg"],
            ["tool", "no scale"],
            ["assistant", null],
            ["tool", "[Tool execution was interrupted]"],
        ],
    );
});

test("parts that do not fit are shortened or left out, and the others are the same objects", async () => {
    const session = await sessionOf("long");
    const seen = (messages: Json[]) =>
        size(messages.map(({ parts }) => parts.map(({ state, text }: Json) => state?.output ?? text)));
    session.ask(text("Weigh them."));
    let shown = await session.shown();
    for (let n = 0; n < 12; n += 1) {
        session.reply(tokens(500 + seen(shown)), text(`Crate ${n}.`), call(n));
        shown = await session.shown();
        assert.ok(seen(shown) < 4_000);
        assert.equal(shown.at(-1), session.messages.at(-1));
    }
    session.reply(tokens(500 + seen(shown)), text("All weighed."));
    await session.idle();
    await session.idle();
    assert.ok(size(session.messages) > 8_000);
    const logged = await gate.client.session("long").listEvents({ limit: 1_000 });
    assert.equal(logged.items.length, 1 + 12 * 3 + 1);
    assert.equal((await gate.client.session("long").listLines()).items.length, 1);
    const reported = gate.at("/outcome").map(({ sent }) => sent.usage?.input_tokens);
    assert.equal(reported.length, 13);
    assert.ok(reported[0] === undefined && reported.slice(1).every((count) => count > 500 && count < 4_510));
});

test("an error is reported; a call without a reply of its own has no usage", async () => {
    const session = await sessionOf("errors");
    session.ask(text("Weigh them."));
    await session.shown();
    session.reply({ error: { name: "APIError", data: { message: "overloaded", statusCode: 529 } } });
    session.ask(text("Again."));
    await session.shown();
    assert.equal(gate.at("/outcome")[0]!.sent.error.status, 529);
    session.messages.splice(0, session.messages.length); // opencode has compacted them
    session.ask(text("Anew."));
    session.reply({ summary: true, ...tokens(9_000) }, text("They weighed crates."));
    await session.shown();
    assert.equal(gate.at("/outcome")[1]!.sent.usage, undefined);
});

test("observed calls and calls that are refused keep their messages; a key that never worked is an error", async () => {
    const observed = await sessionOf("observed", { observe: true });
    observed.ask(text("Weigh them."));
    for (let n = 0; n < 12; n += 1) observed.reply(tokens(3_000), call(n));
    assert.deepEqual(await observed.shown(), observed.messages);
    const { items } = await gate.client.session("observed").listCalls();
    assert.deepEqual(
        items.map(({ view }) => view),
        ["~observed"],
    );
    gate.mode = "refusing";
    assert.deepEqual(await observed.shown(), observed.messages);
    gate.mode = "locked";
    const locked = await sessionOf("locked", { api_key: "no" });
    locked.ask(text("Weigh them."));
    await assert.rejects(locked.shown(), AuthenticationError);
});
