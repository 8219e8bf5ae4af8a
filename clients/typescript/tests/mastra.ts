/** A Mastra agent that looks up forty orders in a quarter of the required window: `mastra.js [streamed]`. */

import { createOpenAI } from "openai-v6";
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { PalimpsestProcessor } from "palimpsest-context-client/mastra";
import { lookup } from "./orders.js";

const memory = new PalimpsestProcessor({ session: "orders", max_tokens: 8_000, recall: true });
const { parameters, ...recall } = await memory.recall();
const agent = new Agent({
    id: "orders",
    name: "orders",
    instructions: "You look up orders, one after the other.",
    model: createOpenAI().chat("gpt-4o"),
    tools: {
        lookup: createTool({
            id: "lookup",
            description: "All that is known of an order.",
            inputSchema: { type: "object", properties: { order: { type: "integer" } }, required: ["order"] } as const,
            execute: async (input: unknown) => lookup((input as { order: number }).order),
        }),
        recall: createTool({ ...recall, inputSchema: parameters }),
    },
    inputProcessors: [memory],
    errorProcessors: [memory],
});
const prompt = "Look up all orders, then tell the gate word of order 3.";
let steps = 0;
const options = { maxSteps: 60, onStepFinish: () => void steps++ };
let said = "";
if (process.argv[2]) {
    const result = await agent.stream(prompt, options);
    for await (const piece of result.textStream) said += piece;
} else said = (await agent.generate(prompt, options)).text;
console.log(JSON.stringify({ said, steps }));
