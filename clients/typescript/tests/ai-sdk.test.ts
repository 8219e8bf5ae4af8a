/** The AI SDK's middleware when something is unusual: outages, overflows, broken streams, and parts of all kinds. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { generateText, streamText, wrapLanguageModel } from "ai-v6";
import { AuthenticationError } from "palimpsest-context-client";
import { type AiSdkSettings, palimpsest } from "palimpsest-context-client/ai-sdk";
import { Gate } from "./gate.js";
import { type Model, type Part, type Prompt, Script, TOO_LONG, asked, long, size, text } from "./scripts.js";

const gate = await Gate.open();
beforeEach(() => {
    gate.mode = "open";
    gate.seen.length = 0;
    gate.warnings.length = 0;
});

/** The script's model within the budget. */
function fitted(script: Script, settings: AiSdkSettings): { middleware: ReturnType<typeof palimpsest>; model: Model } {
    const middleware = palimpsest({ client: gate.client, max_tokens: 4_000, ...settings });
    return { middleware, model: wrapLanguageModel({ model: script.model, middleware }) };
}

test("messages that are shown are the same objects, and a reply is logged with its usage", async () => {
    const script = new Script("The ninth.");
    const { model } = fitted(script, { session: "objects" });
    let own: Prompt = [];
    const spied = { ...model, doGenerate: (params: any) => ((own = params.prompt), model.doGenerate(params)) };
    await generateText({ model: spied as Model, system: "Be brief.", messages: asked(9) });
    const [sent] = script.prompts;
    assert.ok(size(own) > 4_000 && size(sent!) < 4_000);
    assert.equal(sent![0], own[0]);
    assert.equal(sent!.at(-1), own.at(-1));
    assert.ok(sent!.filter((message) => own.includes(message)).length >= 3);
    const [outcome] = gate.at("/outcome");
    assert.deepEqual(outcome!.sent.usage, {
        input_tokens: size(sent!),
        cache_read_tokens: 10,
        cache_write_tokens: 0,
        output_tokens: 5,
    });
    assert.deepEqual(gate.at("/messages")[0]!.sent.messages, [{ role: "assistant", content: "The ninth." }]);
});

test("a prompt that was too long is sent once more, smaller; a second refusal is thrown", async () => {
    const script = new Script(TOO_LONG, "The ninth.");
    const { model } = fitted(script, { session: "overflow" });
    const { text: said } = await generateText({ model, messages: asked(9) });
    assert.equal(said, "The ninth.");
    assert.ok(size(script.prompts[1]!) < size(script.prompts[0]!));
    assert.equal(gate.at("/outcome")[0]!.sent.error.status, 400);

    const never = new Script(TOO_LONG);
    await assert.rejects(
        generateText({ model: fitted(never, { session: "never" }).model, messages: asked(9) }),
        /4000/,
    );
    assert.equal(never.prompts.length, 2);
});

test("a stream is sent once more if it was refused before the answer began, as an error or as a part", async () => {
    for (const [session, refusal] of [
        ["thrown", TOO_LONG],
        ["part", [{ type: "error", error: TOO_LONG }]],
    ] as const) {
        const script = new Script(refusal as Error, "The ninth.");
        const result = streamText({ model: fitted(script, { session }).model, messages: asked(9) });
        assert.equal(await result.text, "The ninth.");
        assert.equal(script.prompts.length, 2);
        assert.ok(size(script.prompts[1]!) < size(script.prompts[0]!));
    }
});

test("a stream that breaks after it began is reported, and its parts stay as they are", async () => {
    const script = new Script([...text("The "), { type: "error", error: new Error("overloaded") }]);
    const { model } = fitted(script, { session: "broken" });
    const result = streamText({ model, messages: asked(9), onError: () => {} });
    let said = "";
    for await (const piece of result.textStream) said += piece;
    assert.equal(said, "The ");
    assert.equal(script.prompts.length, 1);
    assert.deepEqual(
        gate.at("/outcome").map(({ sent }) => sent.error?.message),
        ["overloaded"],
    );
});

test("a stream that is left is reported", async () => {
    const { model } = fitted(new Script("The ninth of many."), { session: "left" });
    const { stream } = await model.doStream({
        prompt: [{ role: "user", content: [{ type: "text", text: "Which?" }] }],
    });
    const reader = stream.getReader();
    while ((await reader.read()).value?.type !== "text-delta");
    await reader.cancel();
    assert.match(gate.at("/outcome")[0]!.sent.error.message, /not read to its end/);
});

test("without the server the model gets all messages; the log catches up when it is back", async () => {
    const script = new Script("One.", "Two.", "Three.");
    const { model, middleware } = fitted(script, { session: "outage", timeout: 5_000 });
    await generateText({ model, messages: asked(1) });
    gate.mode = "failing";
    for (const rounds of [8, 9]) await generateText({ model, messages: asked(rounds) });
    assert.ok(size(script.prompts[2]!) > 4_000);
    assert.equal(middleware.passedThrough.get("outage"), 2);
    gate.mode = "open";
    await generateText({ model, messages: asked(10) });
    assert.ok(size(script.prompts[3]!) < 4_000);
    assert.deepEqual(
        gate.warnings.map((warning) => warning.match(/unreachable|is back/)?.[0]),
        ["unreachable", "is back"],
    );
    const logged = await gate.client.session("outage").listEvents({ limit: 1_000 });
    assert.equal(logged.items.filter((event) => event.type === "user.message").length, 11);
});

test("a call that is only observed keeps its own prompt, and its usage is reported; it is not repeated", async () => {
    const script = new Script("The ninth.", TOO_LONG);
    const { model, middleware } = fitted(script, { session: "observed", observe: true });
    let own: Prompt = [];
    const spied = { ...model, doGenerate: (params: any) => ((own = params.prompt), model.doGenerate(params)) };
    await generateText({ model: spied as Model, system: "Be brief.", messages: asked(9) });
    assert.ok(size(own) > 4_000);
    assert.equal(script.prompts[0]!.length, own.length);
    assert.ok(script.prompts[0]!.every((message, index) => message === own[index]));
    assert.equal(middleware.passedThrough.get("observed"), undefined);
    const { items } = await gate.client.session("observed").listCalls();
    assert.deepEqual(
        items.map(({ view, outcome }) => [view, outcome?.usage?.input_tokens]),
        [["~observed", size(own)]],
    );

    await assert.rejects(generateText({ model, messages: asked(10) }), /4000/);
    assert.equal(script.prompts.length, 2);
    assert.equal(gate.at("/outcome").at(-1)!.sent.error.status, 400);
});

test("a share of the sessions is held out", async () => {
    const shown = new Map<string, boolean>();
    for (let n = 0; n < 16; n += 1) {
        const script = new Script("The ninth.");
        const { model } = fitted(script, { session: `drawn-${n}`, holdout: 0.5 });
        await generateText({ model, messages: asked(9) });
        const { items } = await gate.client.session(`drawn-${n}`).listCalls();
        shown.set(items[0]!.view, size(script.prompts[0]!) > 4_000);
    }
    assert.deepEqual(Object.fromEntries(shown), { main: false, "~observed": true });
});

test("what the server refuses, or answers without a plan, goes to the model unchanged, with one warning", async () => {
    for (const mode of ["refusing", "hollow"] as const) {
        gate.warnings.length = 0;
        gate.mode = mode;
        const script = new Script("All.");
        const { model, middleware } = fitted(script, { session: mode });
        for (const rounds of [8, 9]) await generateText({ model, messages: asked(rounds) });
        assert.equal(script.prompts[1]!.length, 19);
        assert.equal(middleware.passedThrough.get(mode), 2);
        assert.equal(gate.warnings.length, 1, gate.warnings.join("\n"));
    }
});

test("settings that never worked are errors, and so is a missing session", async () => {
    gate.mode = "locked";
    const { model } = fitted(new Script("One."), { session: "locked" });
    await assert.rejects(generateText({ model, messages: asked(1), maxRetries: 0 }), AuthenticationError);
    gate.mode = "open";
    const unnamed = fitted(new Script("One."), {}).model;
    await assert.rejects(generateText({ model: unnamed, messages: asked(1) }), /no session is given/);
    await generateText({
        model: unnamed,
        messages: asked(1),
        providerOptions: { palimpsest: { session: "named" } },
    });
    assert.equal(gate.at("/context")[0]!.path, "/v1/sessions/named/context");
});

test("the server lacks a policy that is named: an error at the first call", async () => {
    const { model } = fitted(new Script("One."), { session: "policies", policy: "no-such-policy" });
    await assert.rejects(generateText({ model, messages: asked(1), maxRetries: 0 }), /no-such-policy/);
});

test("parts of all kinds are logged, and those that are no message stay with their message", async () => {
    const script = new Script("Done.");
    const { model } = fitted(script, { session: "parts", max_tokens: 8_000 });
    const image = { type: "file" as const, mediaType: "image/png", data: new Uint8Array([1, 2, 3]) };
    const results = (rounds: number) =>
        Array.from({ length: rounds }, (_, n): Prompt => [
            {
                role: "assistant",
                content: [
                    { type: "reasoning", text: "I look." },
                    { type: "text", text: `Looking at ${n}.` },
                    { type: "tool-call", toolCallId: `a${n}`, toolName: "look", input: { at: n } },
                    { type: "tool-call", toolCallId: `b${n}`, toolName: "look", input: { at: -n } },
                ],
            },
            {
                role: "tool",
                content: [
                    {
                        type: "tool-result",
                        toolCallId: `a${n}`,
                        toolName: "look",
                        output: { type: "text", value: long(n) },
                    },
                    {
                        type: "tool-result",
                        toolCallId: `b${n}`,
                        toolName: "look",
                        output: { type: "error-json", value: { crate: long(-n) } },
                    },
                ],
            },
        ]).flat();
    const prompt: Prompt = [
        { role: "system", content: "Look." },
        { role: "user", content: [{ type: "text", text: "Look at all." }, image] },
        ...results(12),
    ];
    await model.doGenerate({ prompt });
    const [sent] = script.prompts;
    assert.ok(size(sent!) < 8_000 && size(prompt) > 10_000);
    const [context] = gate.at("/context");
    assert.equal(context!.received.status, undefined);
    const [first, second, third] = context!.sent.messages;
    assert.equal(first.content[1].image_url.url, "data:image/png;base64,AQID");
    assert.deepEqual(
        second.tool_calls.map((call: any) => call.function.arguments),
        ['{"at":0}', '{"at":0}'],
    );
    assert.equal(third.content, long(0));
    const calls = sent!.flatMap((message) =>
        message.role === "assistant" ? message.content.filter((part) => part.type === "tool-call") : [],
    );
    const answers = sent!.flatMap((message) => (message.role === "tool" ? message.content : []));
    assert.deepEqual(
        answers.map((part) => (part as { toolCallId: string }).toolCallId),
        calls.map((part) => (part as { toolCallId: string }).toolCallId),
    );
    const shortened = answers.filter((part) => JSON.stringify(part).length < 1_000);
    assert.ok(shortened.length > 0);
    assert.ok(sent!.includes(prompt.at(-1)!));
    const shown = sent!.filter((message) => message.role === "assistant");
    assert.ok(shown.every((message) => message.content[0]?.type === "reasoning"));
});

test("the recall tool finds what was left out, and answers errors to the model", async () => {
    const script = new Script("The ninth.");
    const { model, middleware } = fitted(script, { session: "recalls", recall: true });
    await generateText({ model, messages: asked(9) });
    const { parameters, execute } = await middleware.recall();
    assert.ok("query" in (parameters["properties"] as object));
    assert.match(await execute({ query: "crate 1 weighed" }), /Crate 1 was weighed/);
    assert.match(await execute({ limit: -1 }), /limit/);
    assert.equal(await execute("crate"), "the arguments are not a JSON object");
    await assert.rejects(palimpsest({ client: gate.client }).recall(), /no session/);
});
