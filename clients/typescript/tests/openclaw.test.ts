/** OpenClaw's context engine, called as OpenClaw calls it: turns, overflows, outages, and histories that were cut. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { AuthenticationError, Palimpsest } from "palimpsest-context-client";
import plugin, { type AgentMessage, PalimpsestContextEngine } from "palimpsest-context-client/openclaw";
import { Gate } from "./gate.js";
import { long } from "./scripts.js";

type Json = Record<string, any>;

const gate = await Gate.open();
beforeEach(() => {
    gate.mode = "open";
    gate.seen.length = 0;
    gate.warnings.length = 0;
});
const BUDGET = 4_000;
const OVERFLOW = { trigger: "overflow" };
const size = (messages: unknown) => Math.ceil(JSON.stringify(messages).length / 4);
const usage = (input: number) => ({ input, output: 5, cacheRead: 0, cacheWrite: 0 });
const engineOf = (settings = {}, own?: (params: any) => Promise<any>) =>
    new PalimpsestContextEngine({ client: gate.client, ...settings }, own);

/** The messages of a turn: a question, a tool call with its result, and an answer. */
function turnOf(n: number, id = `call_${n}_0`): AgentMessage[] {
    const call = { type: "toolCall", id, name: "weigh", arguments: { crate: n } };
    return [
        { role: "user", content: `${n}: weigh the crate.`, timestamp: n },
        { role: "assistant", content: [call], stopReason: "toolUse", timestamp: n },
        { role: "toolResult", toolCallId: id, toolName: "weigh", content: [{ type: "text", text: long(n) }] },
        { role: "assistant", content: [{ type: "text", text: `Noted ${n}.` }], usage: usage(1_800), timestamp: n },
    ] as unknown as AgentMessage[];
}
const historyOf = (turns: number) => Array.from({ length: turns }, (_, n) => turnOf(n)).flat();

/** Run a turn as the host does: the first call, the others with what the first returned, and the acceptance. */
async function run(engine: PalimpsestContextEngine, sessionId: string, history: AgentMessage[], turn: AgentMessage[]) {
    const params = { sessionId, messages: history, tokenBudget: BUDGET, model: "gpt-4o" };
    const result = await engine.assemble(params);
    const again = await engine.assemble({ ...params, messages: result.messages, tokenBudget: 2 * BUDGET });
    assert.equal(again, result);
    (turn[1] as Json)["usage"] = usage(500 + size(result.messages.map(({ content }) => content)));
    const advancementKey = `${sessionId}-${history.length}`;
    assert.deepEqual(await engine.commitTurn({ sessionId, advancementKey, messages: turn }), { status: "committed" });
    assert.deepEqual(await engine.commitTurn({ sessionId, advancementKey, messages: turn }), { status: "duplicate" });
    return result;
}

async function linesOf(session: string): Promise<number> {
    return (await gate.client.session(session).listLines()).items.length;
}

test("turns stay within the budget, are logged once, and report usage once the rest of the request is known", async () => {
    const engine = engineOf();
    let history: AgentMessage[] = [];
    for (let n = 0; n < 12; n += 1) {
        const result = await run(engine, "turns", history, turnOf(n));
        assert.ok(size(result.messages) < BUDGET && result.estimatedTokens < BUDGET, `${n}: ${size(result.messages)}`);
        const least = size(result.messages.map(({ content }) => content)) / 2;
        assert.ok(result.estimatedTokens >= least, `${n}: ${result.estimatedTokens} of ${least}`);
        assert.equal(result.messages.at(-1), history.at(-1));
        // OpenClaw rewrites the calls' ids between the turns.
        history = [...history, ...turnOf(n, `call${n}0`)];
    }
    assert.ok(size(history) > 2 * BUDGET);
    assert.equal(await linesOf("turns"), 1);
    const session = await gate.client.session("turns").getSession();
    assert.equal(session.head, history.length);
    // Another process does not know it at first.
    await run(engineOf(), "turns", history, turnOf(12));
    const reported = gate.at("/outcome").map(({ sent }) => sent.usage?.input_tokens);
    assert.equal(reported.pop(), undefined);
    assert.ok(reported.length === 11 && reported.every((count) => count > 500 && count < BUDGET + 500), `${reported}`);
    const { epoch, fingerprint } = (
        await engine.assemble({ sessionId: "turns", messages: history, tokenBudget: BUDGET })
    ).contextProjection!;
    assert.match(`${epoch} ${fingerprint}`, /^\d+ [0-9a-f]{64}$/);
});

test("an overflow makes the context smaller once, and is left to OpenClaw's compaction after that", async () => {
    const own: unknown[] = [];
    const engine = engineOf({}, async (params) => (own.push(params), { ok: true, compacted: true }));
    const params = { sessionId: "overflow", messages: historyOf(12), tokenBudget: BUDGET };
    const first = await engine.assemble(params);
    const preflight = { ...params, runtimeContext: { trigger: "budget" } };
    assert.deepEqual(await engine.compact(preflight), { ok: true, compacted: false, reason: "below threshold" });
    const made = await engine.compact({ ...params, runtimeContext: OVERFLOW });
    assert.ok(made.compacted && made.result!.tokensAfter < made.result!.tokensBefore);
    const smaller = await engine.assemble(params);
    assert.ok(size(smaller.messages) < size(first.messages));
    assert.equal(own.length, 0);
    await engine.compact({ ...params, runtimeContext: OVERFLOW });
    assert.equal(own.length, 1);
    assert.equal(gate.at("/outcome").length, 2);
    const alone = await engineOf().compact({ sessionId: "unknown", runtimeContext: OVERFLOW });
    assert.deepEqual(alone, { ok: true, compacted: false, reason: "already compacted" });
});

test("without the server the history is sent as it is, with one warning; the log catches up when it is back", async () => {
    const own: unknown[] = [];
    const engine = engineOf({ timeout: 5_000 }, async (params) => (own.push(params), { ok: true, compacted: true }));
    await run(engine, "outage", historyOf(1), turnOf(1));
    gate.mode = "failing";
    for (const turns of [11, 12]) {
        const history = historyOf(turns);
        assert.equal((await run(engine, "outage", history, turnOf(turns))).messages, history);
    }
    assert.equal(engine.passedThrough.get("outage"), 2);
    await engine.assemble({ sessionId: "outage", messages: historyOf(13), tokenBudget: BUDGET });
    await engine.compact({ sessionId: "outage", runtimeContext: OVERFLOW });
    assert.equal(own.length, 1);
    gate.mode = "open";
    const back = await engine.assemble({ sessionId: "outage", messages: historyOf(14), tokenBudget: BUDGET });
    assert.ok(size(back.messages) < BUDGET);
    assert.deepEqual(
        gate.warnings.map((warning) => warning.match(/unreachable|is back/)?.[0]),
        ["unreachable", "is back"],
    );
    assert.equal((await gate.client.session("outage").getSession()).head, 14 * 4);
    assert.equal(await linesOf("outage"), 1);
});

test("a history without its beginning that is new to the server is logged as it is", async () => {
    const engine = engineOf();
    const cutBefore = (n: number) => [
        { role: "user", content: "(session bootstrap)", timestamp: n } as AgentMessage,
        ...turnOf(n).slice(1),
    ];
    const params = { sessionId: "late", messages: cutBefore(7), tokenBudget: BUDGET };
    assert.deepEqual((await engine.assemble(params)).messages, params.messages);
    await run(engine, "late", params.messages, turnOf(8));
    const later = await engineOf().assemble({ ...params, messages: [...cutBefore(8), ...turnOf(9)] });
    assert.deepEqual(later.messages[0].content, "(session bootstrap)");
    assert.equal(later.messages.at(-1).content[0].text, "Noted 8.");
    assert.equal(await linesOf("late"), 1);
});

test("a history without its beginning is that of the log", async () => {
    const engine = engineOf();
    const image = { type: "image", mimeType: "image/png", data: "aGVyb24=" };
    const seen = { role: "user", content: [{ type: "text", text: "Seen:" }, image], timestamp: 1 } as AgentMessage;
    const begun = [seen, ...turnOf(0).slice(1)];
    await run(engine, "cut", begun, turnOf(1));
    const cut = [{ role: "user", content: "(session bootstrap)", timestamp: 7 } as AgentMessage, ...turnOf(1).slice(1)];
    const { messages } = await engine.assemble({ sessionId: "cut", messages: cut, tokenBudget: 2 * BUDGET });
    assert.deepEqual(
        messages.map(({ role }) => role),
        [...begun, ...turnOf(1)].map(({ role }) => role),
    );
    assert.deepEqual(messages[0].content, (seen as Json)["content"]);
    const [call] = messages[1].content;
    assert.deepEqual([call.name, call.arguments, call.id], ["weigh", { crate: 0 }, messages[2].toolCallId]);
    assert.equal(messages[2].toolName, "weigh");
    assert.equal(await linesOf("cut"), 1);
    assert.equal((await gate.client.session("cut").getSession()).head, 8);
});

test("a subagent that continues the conversation begins with its parent's log; another one does not", async () => {
    const engine = engineOf();
    const [parentSessionId, keys] = ["parent", { parentSessionKey: "p", childSessionKey: "c" }];
    await run(engine, parentSessionId, historyOf(1), turnOf(1));
    await engine.prepareSubagentSpawn({ ...keys, parentSessionId, childSessionId: "child", contextMode: "fork" });
    const child = await gate.client.session("child").getSession();
    assert.deepEqual([child.head, child.parent?.at], [8, 8]);
    await engine.prepareSubagentSpawn({ ...keys, parentSessionId, childSessionId: "alone", contextMode: "isolated" });
    assert.equal(gate.at("/fork").length, 1);
    await Promise.all(["one", "two"].map((id) => run(engine, id, historyOf(10), turnOf(10))));
    assert.deepEqual(await Promise.all(["one", "two"].map(linesOf)), [1, 1]);
});

test("the plugin registers an engine with its settings; a key that never worked is an error", async () => {
    const made: (() => Promise<PalimpsestContextEngine>)[] = [];
    const url = gate.client.transport.baseURL;
    plugin.register({
        pluginConfig: { url, max_tokens: BUDGET, observe: true },
        registerContextEngine: (id, factory) => assert.equal(id, "palimpsest", String(made.push(factory))),
    });
    const engine = await made[0]!();
    assert.equal(await made[0]!(), engine);
    const history = historyOf(12);
    const { messages } = await engine.assemble({ sessionId: "observed", messages: history });
    assert.ok(messages.every((message, index) => message === history[index]));
    const { items } = await gate.client.session("observed").listCalls();
    assert.deepEqual(
        items.map(({ view }) => view),
        ["~observed"],
    );
    gate.mode = "locked";
    const locked = engineOf({ client: new Palimpsest({ baseURL: url, apiKey: "no" }) });
    await assert.rejects(locked.assemble({ sessionId: "locked", messages: history }), AuthenticationError);
});
