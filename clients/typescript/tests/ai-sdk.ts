/** An AI SDK agent that looks up forty orders in a quarter of the required window: `ai-sdk.js VERSION API [streamed]`. */

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import * as ai7 from "ai";
import * as ai5 from "ai-v5";
import * as ai6 from "ai-v6";
import { createAnthropic as createAnthropic5 } from "anthropic-v5";
import { createOpenAI as createOpenAI5 } from "openai-v5";
import { createOpenAI as createOpenAI6 } from "openai-v6";
import { palimpsest } from "palimpsest-context-client/ai-sdk";
import { lookup } from "./orders.js";

const [, , version, api, streamed] = process.argv;
const middleware = palimpsest({ session: "orders", max_tokens: 8_000, recall: true });
const anthropicURL = { baseURL: `${process.env["ANTHROPIC_BASE_URL"]}/v1` };

// Each version's own types have to accept the middleware.
const named = "gpt-4o";
const models = {
    "5": () => {
        const openai = createOpenAI5();
        const claude = () => createAnthropic5(anthropicURL)("claude-sonnet-5-5");
        const model = api === "anthropic" ? claude() : api === "chat" ? openai.chat(named) : openai(named);
        return ai5.wrapLanguageModel({ model, middleware });
    },
    "6": () => {
        const openai = createOpenAI6();
        return ai6.wrapLanguageModel({ model: api === "chat" ? openai.chat(named) : openai(named), middleware });
    },
    "7": () => {
        const openai = createOpenAI();
        const claude = () => createAnthropic(anthropicURL)("claude-sonnet-5-5");
        const model = api === "anthropic" ? claude() : api === "chat" ? openai.chat(named) : openai(named);
        return ai7.wrapLanguageModel({ model, middleware });
    },
};
// Tools and loops are written alike in all versions, but their types differ.
const sdks: Record<string, any> = { "5": ai5, "6": ai6, "7": ai7 };
const { generateText, streamText, tool, jsonSchema, stepCountIs } = sdks[version!] as typeof ai7;
const model = models[version as keyof typeof models]() as Parameters<typeof generateText>[0]["model"];

const { parameters, ...recall } = await middleware.recall();
const asked = {
    model,
    system: "You look up orders, one after the other.",
    prompt: "Look up all orders, then tell the gate word of order 3.",
    stopWhen: stepCountIs(60),
    tools: {
        lookup: tool({
            description: "All that is known of an order.",
            inputSchema: jsonSchema<{ order: number }>({
                type: "object",
                properties: { order: { type: "integer" } },
                required: ["order"],
            }),
            execute: async ({ order }: { order: number }) => lookup(order),
        }),
        recall: tool({ ...recall, inputSchema: jsonSchema(parameters) }),
    },
};
if (streamed) {
    const result = streamText(asked);
    let said = "";
    for await (const piece of result.textStream) said += piece;
    console.log(JSON.stringify({ said, steps: (await result.steps).length }));
} else {
    const result = await generateText(asked);
    console.log(JSON.stringify({ said: result.text, steps: result.steps.length }));
}
