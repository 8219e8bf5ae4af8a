/** Prompts and answers of the AI SDK's models, in the format of OpenAI's chat completions and back. */

import { type FittedContext, type InsertedMessage, type PartKind, changedParts, partChange } from "./adapt.js";
import { RECALL } from "./call.js";
import { usageOf } from "./formats.js";
import type { Message, MessagePlan, UsageIn } from "./types.js";

type Json = Record<string, any>;

/** A prompt, as each version of the AI SDK passes it to a model. */
export type Prompt = readonly { role: string; content: any }[];

/** A message of the prompt, or one of the results that a tool message holds. */
interface Piece {
    /** The piece in the format of OpenAI's chat completions. */
    message: Message;
    /** The prompt's message that it is or belongs to; undefined for one inserted by the server. */
    source: Prompt[number] | undefined;
    role: string;
    content: string | Json[];
}

/** The pieces of a prompt, and the messages before them. */
export class ChatPrompt {
    readonly pieces: readonly Piece[];
    readonly #leading: Prompt;

    /** Throws for content of an unknown shape. */
    constructor(prompt: Prompt) {
        const first = prompt.findIndex((message) => message.role !== "system");
        this.#leading = first === -1 ? prompt : prompt.slice(0, first);
        this.pieces = piecesOf(prompt.slice(this.#leading.length));
    }

    /** The messages in the format of OpenAI's chat completions, without the system prompt. */
    get messages(): Message[] {
        return this.pieces.map((piece) => piece.message);
    }

    get system(): string {
        return this.#leading.map((message) => String(message.content)).join("\n\n");
    }

    /** Return the prompt that a context shows of this one. */
    fitted(fit: FittedContext): Prompt {
        return [...this.#leading, ...messagesOf(fit.apply(this.pieces, replaced, insertedPiece))];
    }
}

/** Return an answer as a message to log, if it is the last one of its run: one without calls of the client's tools. */
export function lastReply(content: Json[]): Message[] {
    const message = assistantMessage(content);
    return message["tool_calls"] || !message["content"] ? [] : [message];
}

/** Return the function tools of a call; a provider's own tools are left out. */
export function toolsOf(tools: readonly Json[]): Message[] {
    return tools
        .filter((tool) => tool["type"] === "function")
        .map(({ name, description, inputSchema }) => ({
            type: "function",
            function: { name, description: description ?? "", parameters: inputSchema },
        }));
}

/** Return the pieces of messages; each result of a tool is one of its own. */
function piecesOf(messages: Prompt): Piece[] {
    return messages.flatMap((source): Piece[] => {
        const { role, content }: { role: string; content: string | Json[] } = source;
        if (role !== "tool" || typeof content === "string") {
            return [{ message: messageOf(role, content), source, role, content }];
        }
        const pieces: Piece[] = [];
        let silent: Json[] = []; // parts that are no message, such as approvals, belong to the result before them
        for (const part of content) {
            if (part["type"] === "tool-result") {
                const message = { role: "tool", tool_call_id: part["toolCallId"], content: outputText(part["output"]) };
                pieces.push({ message, source, role, content: [...silent, part] });
                silent = [];
            } else if (pieces.length) (pieces.at(-1)!.content as Json[]).push(part);
            else silent.push(part);
        }
        if (!pieces.length) pieces.push({ message: messageOf("user", content), source, role, content });
        return pieces;
    });
}

/** Return the prompt's messages for pieces in order; complete messages are the same objects as before. */
function messagesOf(pieces: readonly Piece[]): Prompt {
    const messages: Prompt[number][] = [];
    let parts: Json[] = [];
    pieces.forEach((piece, index) => {
        const { source, content } = piece;
        if (source === undefined) messages.push({ role: piece.role, content });
        else if (typeof content === "string")
            messages.push(content === source.content ? source : { ...source, content });
        else {
            parts.push(...content);
            if (pieces[index + 1]?.source === source) return;
            const own: Json[] = source.content;
            const whole = parts.length === own.length && parts.every((part, at) => part === own[at]);
            messages.push(whole ? source : { ...source, content: parts });
            parts = [];
        }
    });
    return messages;
}

function messageOf(role: string, content: string | Json[]): Message {
    if (role === "assistant" && typeof content !== "string") return assistantMessage(content);
    return { role, content: typeof content === "string" ? content : content.map(userPart) };
}

function userPart(part: Json): Json {
    if (part["type"] === "text") return { type: "text", text: part["text"] };
    const mediaType: string = part["mediaType"] ?? "";
    const url = mediaType.startsWith("image/") ? imageUrl(part["data"], mediaType) : undefined;
    if (url) return { type: "image_url", image_url: { url } };
    return { type: "text", text: `[${[part["type"], mediaType, part["filename"]].filter(Boolean).join(" ")}]` };
}

/** Return the URL of an image: a URL, Base64, bytes, or since version 7 an object that holds one of them. */
function imageUrl(data: unknown, mediaType: string): string | undefined {
    if (data instanceof URL) return data.href;
    if (typeof data === "string") return /^(https?|data):/.test(data) ? data : `data:${mediaType};base64,${data}`;
    if (data instanceof Uint8Array) {
        const text = Array.from(data, (byte) => String.fromCharCode(byte)).join("");
        return `data:${mediaType};base64,${btoa(text)}`;
    }
    const { type, data: bytes, url } = (data ?? {}) as Json;
    return type === "data" || type === "url" ? imageUrl(bytes ?? url, mediaType) : undefined;
}

const isOwnCall = (part: Json): boolean => part["type"] === "tool-call" && !part["providerExecuted"];

/** Return an answer as a message, without reasoning, files, and the calls that the provider executed itself. */
function assistantMessage(content: readonly Json[]): Json {
    const texts = content.filter((part) => part["type"] === "text").map(({ text }) => ({ type: "text", text }));
    const calls = content.filter(isOwnCall).map(({ toolCallId, toolName, input }) => ({
        id: toolCallId,
        type: "function",
        function: { name: toolName, arguments: typeof input === "string" ? input : JSON.stringify(input ?? {}) },
    }));
    const said = texts.length > 1 ? texts : (texts[0]?.text ?? null);
    return { role: "assistant", content: said, ...(calls.length && { tool_calls: calls }) };
}

/** Return a result's text. */
function outputText(output: Json): string {
    if (output["type"] === "content") {
        return output["value"].map((part: Json) => part["text"] ?? `[${part["type"]}]`).join("\n");
    }
    if (output["type"] === "execution-denied") return output["reason"] ?? "the tool was not allowed to run";
    return typeof output["value"] === "string" ? output["value"] : JSON.stringify(output["value"] ?? null);
}

function insertedPiece(one: InsertedMessage): Piece {
    const text = [{ type: "text", text: one.text }];
    const output = { type: "text", value: one.text };
    const result = [{ type: "tool-result", toolCallId: one.call_id, toolName: RECALL, output }];
    const content = one.role === "system" ? one.text : one.role === "tool" ? result : text;
    return { message: {}, source: undefined, role: one.role, content };
}

/** Return a piece with other text or arguments, or without some of its calls; undefined if nothing is left. */
function replaced(piece: Piece, step: MessagePlan): Piece | undefined {
    if (piece.role === "assistant" && typeof piece.content !== "string") {
        const content = changedParts(piece.content, step, ASSISTANT_PARTS);
        return content.length ? { ...piece, content } : undefined;
    }
    const text = partChange(step).text ?? "";
    if (typeof piece.content === "string") return { ...piece, content: text };
    if (piece.role === "user") return { ...piece, content: [{ type: "text", text }] };
    const content = piece.content.map((part) => {
        if (part["type"] !== "tool-result") return part;
        const failed = String(part["output"].type).startsWith("error");
        return { ...part, output: { type: failed ? "error-text" : "text", value: text } };
    });
    return { ...piece, content };
}

const ASSISTANT_PARTS: PartKind<Json> = {
    isText: (part) => part["type"] === "text",
    callId: (part) => (isOwnCall(part) ? part["toolCallId"] : undefined),
    withText: (part, text) => ({ ...part, text }),
    withArguments: (part, input) => ({ ...part, input }),
};

/** A streamed answer, as far as it is needed for its report. */
export class StreamedAnswer {
    usage: UsageIn | undefined;
    ended = false;
    failure: { error: unknown } | undefined;
    readonly #texts = new Map<string, Json>();
    readonly #content: Json[] = [];

    feed(part: Json): void {
        if (part["type"] === "text-delta") {
            let text = this.#texts.get(part["id"]);
            if (text === undefined) {
                this.#texts.set(part["id"], (text = { type: "text", text: "" }));
                this.#content.push(text);
            }
            text["text"] += part["delta"];
        } else if (part["type"] === "tool-call") this.#content.push(part);
        else if (part["type"] === "error") this.failure = { error: part["error"] };
        else if (part["type"] === "finish") {
            this.ended = true;
            this.usage = usageIn(part["usage"], part["providerMetadata"]);
        }
    }

    /** Whether a part of the answer has arrived. */
    get begun(): boolean {
        return this.#content.length > 0;
    }

    /** Return the answer as a message to log, if it is the last one of its run. */
    reply(): Message[] {
        return lastReply(this.#content);
    }
}

/** Return a call's usage, as the AI SDK 5 (numbers) or 6 and 7 (objects) report it; `input_tokens` are all of them. */
export function usageIn(usage: Json | undefined, metadata: Json | undefined): UsageIn | undefined {
    const input = usage?.["inputTokens"];
    if (typeof input === "object" && input !== null) {
        return usageOf({
            input_tokens: input.total,
            cache_read_tokens: input.cacheRead,
            cache_write_tokens: input.cacheWrite,
            output_tokens: usage!["outputTokens"]?.total,
        });
    }
    const [read, write] = [usage?.["cachedInputTokens"], metadata?.["anthropic"]?.cacheCreationInputTokens];
    // Version 5 passes on Anthropic's figure, which does not include what the cache served or stored.
    const beside = metadata?.["anthropic"] && typeof input === "number" ? (read ?? 0) + (write ?? 0) : 0;
    return usageOf({
        input_tokens: typeof input === "number" ? input + beside : undefined,
        cache_read_tokens: read,
        cache_write_tokens: write,
        output_tokens: usage?.["outputTokens"],
    });
}
