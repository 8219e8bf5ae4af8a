/** Tool agents of forty calls in a quarter of the required window, one for each provider's SDK. */

import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";
import { type Format, Palimpsest, type Reply, type Turn } from "palimpsest-context-client";
import { lookup } from "./orders.js";

const PARAMETERS = { type: "object", properties: { order: { type: "integer" } }, required: ["order"] } as const;
const ABOUT = { name: "lookup", description: "All that is known of an order." };

async function run<F extends Format>(
    format: F,
    model: string,
    tool: object,
    send: (turn: Turn<F>) => Promise<Reply>,
): Promise<void> {
    const memory = new Palimpsest().session("orders", { model, format, max_tokens: 8_000 });
    await memory.system("You look up orders, one after the other.");
    await memory.tools([tool]);
    await using turn = await memory.turn("Look up all orders, then tell the gate word of order 3.");
    let reply = await send(turn);
    while (reply.toolCalls.length) {
        await turn.results(reply.toolCalls.map((call) => lookup(call.arguments["order"])));
        reply = await send(turn);
    }
    const leftOut = turn.leftOut.reduce((sum, one) => sum + one.tokens_saved, 0);
    console.log(JSON.stringify({ said: reply.content, leftOut, usage: reply.usage }));
}

const [, , format, streamed] = process.argv;
if (format === "openai") {
    const openai = new OpenAI();
    const tool = { type: "function", function: { ...ABOUT, parameters: PARAMETERS } };
    await run(format, "gpt-4o", tool, async (turn) => {
        if (!streamed) return turn.send((request) => openai.chat.completions.create(request));
        const reply = await turn.send((request) => openai.chat.completions.create(request), { stream: true });
        for await (const chunk of reply) if (!chunk.choices.length) throw new Error("a chunk that was not asked for");
        return reply;
    });
} else if (format === "openai-responses") {
    const openai = new OpenAI();
    const tool = { type: "function", ...ABOUT, parameters: PARAMETERS, strict: false };
    await run(format, "gpt-4o", tool, (turn) =>
        streamed
            ? turn.send((request) => openai.responses.create(request), { stream: true }).then((reply) => reply.done())
            : turn.send((request) => openai.responses.create(request)),
    );
} else if (format === "anthropic") {
    const anthropic = new Anthropic();
    const tool = { ...ABOUT, input_schema: PARAMETERS };
    await run(format, "claude-sonnet-5-5", tool, (turn) =>
        streamed
            ? turn
                  .send((request) => anthropic.messages.stream({ ...request, max_tokens: 500 }))
                  .then((reply) => reply.done())
            : turn.send((request) => anthropic.messages.create({ ...request, max_tokens: 500 })),
    );
} else if (format === "gemini") {
    const { models } = new GoogleGenAI({});
    const tool = { functionDeclarations: [{ ...ABOUT, parametersJsonSchema: PARAMETERS }] };
    await run(format, "gemini-2.5-flash", tool, (turn) =>
        streamed
            ? turn.send((request) => models.generateContentStream(request)).then((reply) => reply.done())
            : turn.send((request) => models.generateContent(request)),
    );
}
