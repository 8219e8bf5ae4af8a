/** Models whose answers are scripted, and conversations that take more than the window. */

import type { wrapLanguageModel } from "ai-v6";

export type Model = Exclude<Parameters<typeof wrapLanguageModel>[0]["model"], string>;
export type Prompt = Parameters<Model["doGenerate"]>[0]["prompt"];

export const size = (prompt: Prompt) => Math.ceil(JSON.stringify(prompt).length / 4);
const usage = (prompt: Prompt) => ({
    inputTokens: { total: size(prompt), noCache: size(prompt) - 10, cacheRead: 10, cacheWrite: 0 },
    outputTokens: { total: 5, text: 5, reasoning: 0 },
});
export const TOO_LONG = Object.assign(new Error("This model's maximum context length is 4000 tokens."), {
    statusCode: 400,
    isRetryable: false,
    data: { error: { code: "context_length_exceeded" } },
});
export const long = (n: number) => `Crate ${n} was weighed, sealed and put on a shelf. `.repeat(60);

export type Part = { type: string; [member: string]: unknown };
export const text = (said: string): Part[] => [
    { type: "text-start", id: "1" },
    ...said.split(/(?<= )/).map((delta) => ({ type: "text-delta", id: "1", delta })),
    { type: "text-end", id: "1" },
];
const FINISHED = { unified: "stop" as const, raw: "stop" };

/** A model whose answers are scripted: text, an error to throw, or the parts of a stream. */
export class Script {
    readonly prompts: Prompt[] = [];
    readonly model: Model;

    constructor(...answers: (string | Error | Part[])[]) {
        const next = (prompt: Prompt) => {
            const answer = answers[Math.min(this.prompts.push(prompt), answers.length) - 1]!;
            if (answer instanceof Error) throw answer;
            return answer;
        };
        this.model = {
            specificationVersion: "v3",
            provider: "scripted",
            modelId: "gpt-4o",
            supportedUrls: {},
            doGenerate: async ({ prompt }) => ({
                content: [{ type: "text", text: String(next(prompt)) }],
                finishReason: FINISHED,
                usage: usage(prompt),
                warnings: [],
            }),
            doStream: async ({ prompt }) => {
                const answer = next(prompt);
                const parts =
                    typeof answer === "string"
                        ? [...text(answer), { type: "finish", usage: usage(prompt), finishReason: FINISHED }]
                        : answer;
                const all = [{ type: "stream-start", warnings: [] }, ...parts];
                const stream = new ReadableStream({
                    pull(controller) {
                        if (all.length) controller.enqueue(all.shift());
                        else controller.close();
                    },
                });
                return { stream: stream as never };
            },
        };
    }
}

/** Rounds of a conversation that takes more than the window. */
export const conversation = (rounds: number) =>
    Array.from({ length: rounds }, (_, n) => [
        { role: "user" as const, content: `${n}: ${long(n)}` },
        { role: "assistant" as const, content: `Noted ${n}.` },
    ]).flat();
export const asked = (rounds: number) => [
    ...conversation(rounds),
    { role: "user" as const, content: "Which crate is last?" },
];
