/** Providers' formats: reading complete and streamed answers. No SDK is imported. */

import type { ErrorIn, Format, UsageIn } from "./types.js";

type Json = Record<string, any>;

/** A tool call that the model made. */
export class ToolCall {
    constructor(
        readonly id: string,
        readonly name: string,
        /** The arguments as the model wrote them, usually JSON. */
        readonly text: string,
        /** Whether the tool accepts free text instead of JSON. */
        readonly freeText: boolean = false,
    ) {}

    /** The parsed arguments. Throws SyntaxError if they are not a JSON object; `results` accepts that error. */
    get arguments(): Record<string, any> {
        if (this.freeText) return { input: this.text };
        let parsed: unknown;
        try {
            parsed = JSON.parse(this.text || "{}");
        } catch (error) {
            throw new SyntaxError(`the arguments of ${this.name} are not JSON: ${(error as Error).message}`);
        }
        if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
            throw new SyntaxError(`the arguments of ${this.name} are not a JSON object`);
        }
        return parsed;
    }
}

/** A parsed answer of a provider. */
export interface ParsedAnswer {
    /** The messages to log, in the provider's own format. */
    messages: Json[];
    content: string;
    toolCalls: ToolCall[];
    usage: UsageIn | undefined;
    stopReason: string | undefined;
    /** The error that a provider sent instead of an answer, with status 200. */
    failure?: ErrorIn | undefined;
}

/** Assembles a streamed answer from its chunks. */
export interface Accumulator {
    /** Whether the model has begun to answer; before that, a call can be retried unnoticed. */
    readonly begun: boolean;
    /** Whether the stop reason was received. */
    readonly ended: boolean;
    /** The text received so far. */
    readonly text: string;
    feed(chunk: Json): void;
    /** Return the complete answer as it would be without streaming. */
    response(): Json;
}

/** One provider's format. */
export interface ProviderFormat {
    read(response: Json): ParsedAnswer;
    accumulator(): Accumulator;
    user(content: unknown): Json;
    toolNames(tool: Json): string[];
    /** Return the SDK's arguments of a rendered request. */
    arguments(request: Json): Json;
}

/** Return the figures that a provider reported; a missing one is omitted and not 0. */
export function usageOf(counts: Record<keyof UsageIn, number | null | undefined>): UsageIn | undefined {
    const reported = Object.entries(counts).filter(([, count]) => typeof count === "number");
    return reported.length ? (Object.fromEntries(reported) as UsageIn) : undefined;
}

const user = (content: unknown): Json => ({ role: "user", content });
const named = (tool: Json): string[] => (typeof tool["name"] === "string" ? [tool["name"]] : []);
const unchanged = (request: Json): Json => request;

/** The members of a delta that are complete, even if a provider repeats them in every chunk. */
const ONCE = new Set(["id", "type", "role", "name", "index"]);

const chat: ProviderFormat = {
    user,
    arguments: unchanged,
    toolNames: (tool) => named(tool["function"] ?? tool["custom"] ?? {}),
    read(response) {
        const choice = response["choices"]?.[0] ?? {};
        const message = { role: "assistant", ...choice.message };
        const said = message.content || message.refusal || "";
        const text = typeof said === "string" ? said : said.map((part: Json) => part["text"] ?? "").join("");
        const calls = (message.tool_calls ?? []).map((call: Json) =>
            call["custom"]
                ? new ToolCall(call["id"], call["custom"].name, call["custom"].input ?? "", true)
                : new ToolCall(call["id"], call["function"]?.name ?? "", call["function"]?.arguments ?? ""),
        );
        const used = response["usage"];
        const usage = usageOf({
            input_tokens: used?.prompt_tokens,
            cache_read_tokens: used?.prompt_tokens_details?.cached_tokens,
            cache_write_tokens: used?.prompt_tokens_details?.cache_write_tokens,
            output_tokens: used?.completion_tokens,
        });
        return {
            messages: [withoutUnset(message)],
            content: text,
            toolCalls: calls,
            usage,
            stopReason: choice.finish_reason ?? undefined,
        };
    },
    accumulator() {
        const message: Json = {};
        let rest: Json = {};
        let stop: string | null = null;
        return {
            get begun() {
                return Object.keys(rest).length > 0;
            },
            get ended() {
                return stop !== null;
            },
            get text() {
                return message["content"] ?? "";
            },
            feed(chunk) {
                const { choices, ...others } = chunk;
                rest = { ...rest, ...withoutUnset(others) };
                for (const choice of choices ?? []) {
                    if ((choice.index ?? 0) !== 0) continue;
                    merge(message, choice.delta ?? {});
                    stop = choice.finish_reason ?? stop;
                }
            },
            response() {
                const whole: Json = { role: "assistant", content: null, ...message };
                if (whole["tool_calls"])
                    whole["tool_calls"] = whole["tool_calls"].map(({ index, ...call }: Json) => call);
                const choice = { index: 0, message: whole, finish_reason: stop };
                return { ...rest, object: "chat.completion", choices: [choice] };
            },
        };
    },
};

/** Merge a delta of a streamed chat completion into `whole`. */
function merge(whole: Json, delta: Json): void {
    for (const [name, value] of Object.entries(delta)) {
        if (value === null || value === undefined) continue;
        if (Array.isArray(value)) {
            const items: Json[] = (whole[name] ??= []);
            value.forEach((item: Json, place: number) => {
                const index = item["index"] ?? place;
                let at = items.find((one) => one["index"] === index);
                if (at === undefined) items.push((at = { index }));
                merge(at, item);
            });
        } else if (typeof value === "object") {
            merge((whole[name] ??= {}), value);
        } else if (typeof value === "string" && typeof whole[name] === "string" && !ONCE.has(name)) {
            whole[name] += value;
        } else if (!ONCE.has(name) || value !== "") {
            whole[name] = value;
        }
    }
}

const PROLOGUE = new Set(["response.created", "response.queued", "response.in_progress"]);
const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

const responses: ProviderFormat = {
    user,
    arguments: unchanged,
    toolNames: named,
    read(response) {
        const output: Json[] = (response["output"] ?? []).map(withoutUnset);
        const parts = output.filter((item) => item["type"] === "message").flatMap((item) => item["content"] ?? []);
        const calls = output.flatMap((item) => {
            if (item["type"] === "function_call")
                return [new ToolCall(item["call_id"], item["name"], item["arguments"] ?? "")];
            if (item["type"] !== "custom_tool_call") return [];
            return [new ToolCall(item["call_id"], item["name"], item["input"] ?? "", true)];
        });
        const used = response["usage"];
        const failed = response["status"] === "failed" ? response["error"] : undefined;
        return {
            messages: output,
            content: parts.map((part: Json) => part["text"] || part["refusal"] || "").join(""),
            toolCalls: calls,
            usage: usageOf({
                input_tokens: used?.input_tokens,
                cache_read_tokens: used?.input_tokens_details?.cached_tokens,
                cache_write_tokens: used?.input_tokens_details?.cache_write_tokens,
                output_tokens: used?.output_tokens,
            }),
            stopReason: response["incomplete_details"]?.reason ?? response["status"] ?? undefined,
            failure: failed ? { message: String(failed.message ?? failed), ...code(failed.code) } : undefined,
        };
    },
    accumulator() {
        let response: Json = {};
        let text = "";
        let begun = false;
        return {
            get begun() {
                return begun;
            },
            get ended() {
                return Object.keys(response).length > 0;
            },
            get text() {
                return text;
            },
            feed(event) {
                const kind: string = event["type"] ?? "";
                if (ENDS.has(kind)) response = event["response"];
                else if (kind === "error") {
                    response = { status: "failed", error: { code: event["code"], message: event["message"] } };
                } else if (kind === "response.output_text.delta") text += event["delta"];
                begun ||= !PROLOGUE.has(kind) && response["status"] !== "failed";
            },
            response() {
                if (Object.keys(response).length || !text) return response;
                const part = { type: "output_text", text, annotations: [] };
                const message = { type: "message", role: "assistant", status: "incomplete", content: [part] };
                return { status: "incomplete", output: [message] };
            },
        };
    },
};

/** The member of a block to which a delta of each type is appended. */
const CONTINUED: Record<string, string> = {
    text_delta: "text",
    thinking_delta: "thinking",
    signature_delta: "signature",
    compaction_delta: "content",
};

const anthropic: ProviderFormat = {
    user,
    arguments: unchanged,
    toolNames: named,
    read(response) {
        const content: Json[] = (response["content"] ?? []).map(withoutUnset);
        const used = response["usage"];
        return {
            messages: content.length ? [{ role: "assistant", content }] : [],
            content: content.map((block) => (block["type"] === "text" ? block["text"] : "")).join(""),
            toolCalls: content
                .filter((block) => block["type"] === "tool_use")
                .map((block) => new ToolCall(block["id"], block["name"], written(block["input"]))),
            usage: usageOf({
                input_tokens: used?.input_tokens,
                cache_read_tokens: used?.cache_read_input_tokens,
                cache_write_tokens: used?.cache_creation_input_tokens,
                output_tokens: used?.output_tokens,
            }),
            stopReason: response["stop_reason"] ?? undefined,
        };
    },
    accumulator() {
        let message: Json = {};
        const blocks = new Map<number, Json>();
        const inputs = new Map<number, string>();
        const ordered = () => [...blocks].sort(([a], [b]) => a - b).map(([, block]) => block);
        return {
            get begun() {
                return Object.keys(message).length > 0;
            },
            get ended() {
                return (message["stop_reason"] ?? null) !== null;
            },
            get text() {
                return ordered()
                    .map((block) => (block["type"] === "text" ? block["text"] : ""))
                    .join("");
            },
            feed(event) {
                const index: number = event["index"];
                const block = blocks.get(index);
                if (event["type"] === "message_start") message = { ...event["message"] };
                else if (event["type"] === "content_block_start") blocks.set(index, { ...event["content_block"] });
                else if (event["type"] === "content_block_delta" && block) {
                    const delta = event["delta"];
                    const member = CONTINUED[delta.type];
                    if (member) block[member] = (block[member] ?? "") + (delta[member] ?? "");
                    else if (delta.type === "input_json_delta") {
                        inputs.set(index, (inputs.get(index) ?? "") + delta.partial_json);
                    } else if (delta.type === "citations_delta") {
                        block["citations"] = [...(block["citations"] ?? []), delta.citation];
                    }
                } else if (event["type"] === "content_block_stop" && block && inputs.get(index)) {
                    block["input"] = parsed(inputs.get(index)!);
                } else if (event["type"] === "message_delta") {
                    const usage = { ...message["usage"], ...withoutUnset(event["usage"] ?? {}) };
                    message = { ...message, ...event["delta"], usage };
                }
            },
            response: () => ({ ...message, content: ordered() }),
        };
    },
};

const gemini: ProviderFormat = {
    user: (content) => ({ role: "user", parts: typeof content === "string" ? [{ text: content }] : content }),
    arguments({ systemInstruction, tools, ...request }) {
        const config = { ...(systemInstruction && { systemInstruction }), ...(tools && { tools }) };
        return Object.keys(config).length ? { ...request, config } : request;
    },
    toolNames: (tool) => (tool["functionDeclarations"] ?? []).map((one: Json) => one["name"]),
    read(response) {
        const candidate = response["candidates"]?.[0] ?? {};
        const content = { role: "model", ...candidate.content };
        const parts: Json[] = content.parts ?? [];
        const counts = new Map<string, number>();
        const calls = parts
            .filter((part) => part["functionCall"])
            .map(({ functionCall: call }) => {
                const count = (counts.get(call.name) ?? 0) + (call.id ? 0 : 1); // as the server numbers calls without ids
                counts.set(call.name, count);
                return new ToolCall(call.id || `${call.name}#${count}`, call.name, JSON.stringify(call.args ?? {}));
            });
        const used = response["usageMetadata"];
        const outputs = [used?.candidatesTokenCount, used?.thoughtsTokenCount].filter((count) => count !== undefined);
        return {
            messages: parts.length ? [content] : [],
            content: parts.map((part) => (part["thought"] ? "" : (part["text"] ?? ""))).join(""),
            toolCalls: calls,
            usage: usageOf({
                input_tokens: used?.promptTokenCount,
                cache_read_tokens: used?.cachedContentTokenCount,
                cache_write_tokens: undefined,
                output_tokens: outputs.length ? outputs.reduce((sum, count) => sum + count, 0) : undefined,
            }),
            stopReason: candidate.finishReason ?? response["promptFeedback"]?.blockReason,
        };
    },
    accumulator() {
        let rest: Json = {};
        let candidate: Json = {};
        const parts: Json[] = [];
        const isText = (part: Json | undefined) =>
            part !== undefined &&
            "text" in part &&
            Object.keys(part).every((name) => name === "text" || name === "thought");
        const add = (part: Json) => {
            const before = parts.at(-1);
            if (before && isText(part) && isText(before) && !!part["thought"] === !!before["thought"]) {
                before["text"] += part["text"];
            } else if (Object.keys(part).length && !(isText(part) && part["text"] === "")) parts.push({ ...part });
        };
        return {
            get begun() {
                return parts.length > 0;
            },
            get ended() {
                return candidate["finishReason"] !== undefined;
            },
            get text() {
                return parts.map((part) => (part["thought"] ? "" : (part["text"] ?? ""))).join("");
            },
            feed(chunk) {
                const { candidates, ...others } = JSON.parse(JSON.stringify(chunk)); // the SDK's chunks have getters
                rest = { ...rest, ...others };
                const { content, ...about } = candidates?.[0] ?? {};
                candidate = { ...candidate, ...about };
                for (const part of content?.parts ?? []) add(part);
            },
            response: () => ({ ...rest, candidates: [{ ...candidate, content: { role: "model", parts } }] }),
        };
    },
};

export const FORMATS: Record<Format, ProviderFormat> = {
    openai: chat,
    "openai-responses": responses,
    anthropic,
    gemini,
};

/** Return a provider's error for a report. Google's SDK has the status as `code` or in the message. */
export function errorReport(error: unknown): ErrorIn {
    const { message, status, statusCode, code: named } = (error ?? {}) as Json;
    const report: ErrorIn = { message: String(message || error) };
    const numbers = [status, statusCode, named].filter((one) => Number.isInteger(one) && one >= 100 && one < 1000);
    if (numbers.length) report.status = numbers[0];
    return { ...report, ...code(typeof named === "string" ? named : status) };
}

const code = (value: unknown): { code?: string } => (typeof value === "string" ? { code: value } : {});

function withoutUnset(value: Json): Json {
    return Object.fromEntries(Object.entries(value).filter(([, member]) => member !== null && member !== undefined));
}

function written(input: unknown): string {
    return typeof input === "string" ? input : JSON.stringify(input ?? {});
}

function parsed(text: string): unknown {
    try {
        return JSON.parse(text);
    } catch {
        return text; // cut off by the limit of output tokens; the log accepts any text
    }
}
