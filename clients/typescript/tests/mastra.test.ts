/** Mastra's processor when something is unusual: overflows, outages, and sessions named by the memory's thread. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Agent } from "@mastra/core/agent";
import { MockMemory } from "@mastra/core/memory";
import { type MastraSettings, PalimpsestProcessor } from "palimpsest-context-client/mastra";
import { Gate } from "./gate.js";
import { type Prompt, Script, TOO_LONG, asked, size } from "./scripts.js";

const gate = await Gate.open();
beforeEach(() => {
    gate.mode = "open";
    gate.seen.length = 0;
    gate.warnings.length = 0;
});

function agentOf(script: Script, settings: MastraSettings, memory?: MockMemory) {
    const processor = new PalimpsestProcessor({ client: gate.client, max_tokens: 4_000, ...settings });
    const agent = new Agent({
        id: "crates",
        name: "crates",
        instructions: "Be brief.",
        model: script.model,
        inputProcessors: [processor],
        errorProcessors: [processor],
        ...(memory && { memory }),
    });
    return { agent, processor };
}

test("a prompt that was too long is sent once more, smaller; a second refusal is the agent's error", async () => {
    for (const streamed of [false, true]) {
        const script = new Script(TOO_LONG, "The ninth.");
        const { agent } = agentOf(script, { session: `overflow-${streamed}` });
        const result = streamed ? await agent.stream(asked(9)) : await agent.generate(asked(9));
        assert.equal(await result.text, "The ninth.");
        assert.equal(script.prompts.length, 2);
        assert.ok(size(script.prompts[1]!) < size(script.prompts[0]!));
        assert.ok(size(script.prompts[0]!) < 4_000);
    }
    const never = new Script(TOO_LONG);
    await assert.rejects(agentOf(never, { session: "never" }).agent.generate(asked(9)), /4000/);
    assert.equal(never.prompts.length, 2);
    const refused = gate.at("/outcome").filter(({ path, sent }) => path.includes("/never/") && sent.error);
    assert.equal(refused.length, 2);
});

test("a call that is only observed keeps its own prompt, and is not repeated", async () => {
    const script = new Script("The ninth.", TOO_LONG);
    const { agent } = agentOf(script, { session: "observed", observe: true });
    await agent.generate(asked(9));
    assert.ok(size(script.prompts[0]!) > 4_000);
    assert.equal(script.prompts[0]!.length, asked(9).length + 1);
    await assert.rejects(agent.generate(asked(10)), /4000/);
    assert.equal(script.prompts.length, 2);
    const { items } = await gate.client.session("observed").listCalls();
    assert.deepEqual(
        items.map(({ view }) => view),
        ["~observed", "~observed"],
    );
});

test("without the server the model gets all messages; the log catches up when it is back", async () => {
    const script = new Script("One.", "Two.", "Three.", "Four.");
    const { agent, processor } = agentOf(script, { session: "outage", timeout: 5_000 });
    await agent.generate(asked(1));
    gate.mode = "failing";
    for (const rounds of [8, 9]) await agent.generate(asked(rounds));
    assert.ok(size(script.prompts[2]!) > 4_000);
    assert.equal(processor.passedThrough.get("outage"), 2);
    gate.mode = "open";
    await agent.generate(asked(10));
    assert.ok(size(script.prompts[3]!) < 4_000);
    assert.deepEqual(
        gate.warnings.map((warning) => warning.match(/unreachable|is back/)?.[0]),
        ["unreachable", "is back"],
    );
});

test("the session is the memory's thread, and its answers are logged", async () => {
    const script = new Script("One.", "Two.");
    const { agent } = agentOf(script, {}, new MockMemory());
    const options = { memory: { thread: "thread-7", resource: "ann" } };
    await agent.generate("Which crate is first?", options);
    await agent.generate("And then?", options);
    const { items } = await gate.client.session("thread-7").listEvents({ limit: 1_000 });
    assert.deepEqual(
        items.filter((event) => event.type.endsWith(".message")).map((event) => event.content),
        [[{ type: "text", text: "Which crate is first?" }], "One.", [{ type: "text", text: "And then?" }], "Two."],
    );
    const lines: Prompt = script.prompts[1]!;
    assert.equal(lines.filter((message) => message.role !== "system").length, 3);
});

test("without a session the error says how to name one", async () => {
    await assert.rejects(agentOf(new Script("One."), {}).agent.generate("Which?"), /no session is given/);
});
