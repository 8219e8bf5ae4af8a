/**
 * OpenClaw (2026.9): a plugin whose context engine keeps every prompt within its budget.
 *
 * OpenClaw keeps its own transcript. Before each turn the engine returns the messages that fit; within the turn they stay
 * the same, and OpenClaw appends what the turn adds.
 */

import {
    type AdapterSettings,
    Budget,
    type FittedContext,
    type InsertedMessage,
    type PartKind,
    Recent,
    changedParts,
    partChange,
} from "./adapt.js";
import { Palimpsest } from "./client.js";
import { usageOf } from "./formats.js";
import type { Message, MessagePlan, UsageIn } from "./types.js";
import { VERSION } from "./version.js";

type Json = Record<string, any>;

/** A message of OpenClaw's transcript; those of OpenClaw have more members. */
export interface AgentMessage {
    role: string;
    content?: any;
}

/** The arguments of all methods for a session; those of OpenClaw have more. */
interface SessionParams {
    sessionId: string;
    runtimeContext?: Json | undefined;
}

interface AssembleParams extends SessionParams {
    messages: AgentMessage[];
    tokenBudget?: number;
    model?: string;
}

interface AssembleResult {
    messages: any[];
    estimatedTokens: number;
    promptAuthority: "assembled";
    contextProjection?: { mode: "per_turn"; epoch: string; fingerprint: string };
}

interface CompactResult {
    ok: boolean;
    compacted: boolean;
    reason?: string;
    result?: { tokensBefore: number; tokensAfter: number };
}

/** OpenClaw's own compaction, which writes a summary with a model. */
type OwnCompaction = (params: any) => Promise<CompactResult>;

/** The current turn of a session. */
interface Turn {
    history: AgentMessage[];
    result: AssembleResult;
    fit: FittedContext | undefined;
    /** Tokens sent besides the history that were known when the context was made. */
    beside: number | undefined;
}

const INFO = {
    id: "palimpsest",
    name: "Palimpsest",
    version: VERSION,
    ownsCompaction: true,
    acceptedHostParams: ["runtimeContext"],
    transcriptSemantics: {
        currentTurnFence: "before-current-turn-entry-v1",
        turnAdvancementIdempotency: "atomic-idempotent-v1",
    },
} as const;
const CHARS_PER_TOKEN = 4;
/** Reasons that OpenClaw recognises by their words; any other one fails the turn. */
const [SMALL, SMALLEST] = ["below threshold", "already compacted"];

/** A context engine for all sessions of an agent. */
export class PalimpsestContextEngine {
    readonly info = INFO;
    readonly #budget: Budget;
    readonly #client: Palimpsest;
    readonly #ownCompaction: OwnCompaction | undefined;
    readonly #turns = new Recent<Turn>();
    /** Tokens of the last request besides the history: system prompt, tools, and the beginning of the turn. */
    readonly #beside = new Recent<number>();
    readonly #committed = new Recent<true>();

    /** `ownCompaction` is called for an overflow that the engine cannot end. */
    constructor(settings: AdapterSettings = {}, ownCompaction?: OwnCompaction) {
        this.#client = settings.client ?? new Palimpsest();
        this.#budget = new Budget("openai", { ...settings, client: this.#client });
        this.#ownCompaction = ownCompaction;
    }

    /** The number of turns whose history was sent unchanged, by session. */
    get passedThrough(): ReadonlyMap<string, number> {
        return this.#budget.passedThrough;
    }

    /** Do nothing: messages are logged with the context that is made of them. */
    async ingest(): Promise<{ ingested: boolean }> {
        return { ingested: false };
    }

    /** Return the part of the history that fits; the same one for all model calls of a turn. */
    async assemble({ sessionId, messages, tokenBudget, model }: AssembleParams): Promise<AssembleResult> {
        const session = sessionOf(sessionId);
        const turn = this.#turns.get(session);
        // Within the turn OpenClaw passes on what it got before.
        if (turn && [turn.history, turn.result.messages].some((known) => isSame(known, messages))) return turn.result;
        let fit: FittedContext | undefined;
        const beside = this.#beside.get(session);
        if (messages.length) {
            // A history without its beginning would be another conversation than the one that the log has.
            const fromLog = isCut(messages) && (await this.#budget.hasLog(session));
            fit = await this.#budget.fit(session, () => ({
                model,
                ...(!fromLog && { messages: messages.map(chatMessage) }),
                max_tokens: tokenBudget === undefined ? undefined : tokenBudget + (beside ?? 0),
                outside_tokens: beside,
            }));
        }
        const result = resultOf(messages, fit);
        this.#turns.set(session, { history: messages, result, fit, beside });
        return result;
    }

    /** Log an accepted turn, and report the usage of its first model call. Nothing happens for the same key again. */
    async commitTurn({
        sessionId,
        advancementKey,
        messages,
    }: SessionParams & { advancementKey: string; messages: AgentMessage[] }): Promise<{
        status: "committed" | "duplicate";
    }> {
        const session = sessionOf(sessionId);
        if (this.#committed.get(`${session} ${advancementKey}`)) return { status: "duplicate" };
        this.#committed.set(`${session} ${advancementKey}`, true);
        const turn = this.#turns.get(session);
        this.#turns.delete(session);
        const first = messages.find(({ role }) => role === "assistant") as { usage?: Json } | undefined;
        const usage = usageIn(first?.usage);
        if (usage?.input_tokens && turn && !turn.fit?.isObserved) {
            this.#beside.set(session, Math.max(0, usage.input_tokens - turn.result.estimatedTokens));
        }
        // Counts of a request whose other parts were unknown would distort the estimates of all later ones.
        const reported = turn?.beside === undefined && !turn?.fit?.isObserved ? undefined : usage;
        if (turn?.fit) await this.#budget.reportSuccess(turn.fit, reported, messages.map(chatMessage));
        return { status: "committed" };
    }

    /**
     * After an overflow make the context smaller; without a context, or a second time, leave it to OpenClaw's compaction.
     *
     * Otherwise there is nothing to do, and the reason is one that OpenClaw takes for no failure.
     */
    async compact(params: SessionParams): Promise<CompactResult> {
        if (params.runtimeContext?.["trigger"] !== "overflow") {
            return { ok: true, compacted: false, reason: SMALL };
        }
        const turn = this.#turns.get(sessionOf(params.sessionId));
        const { fit } = turn ?? {};
        const smaller = fit && (await this.#budget.reportFailure(fit, OVERFLOW, fit.asked.retry_of === undefined));
        if (turn === undefined || smaller === undefined) {
            return this.#ownCompaction?.(params) ?? { ok: true, compacted: false, reason: SMALLEST };
        }
        const tokensBefore = turn.result.estimatedTokens;
        turn.fit = smaller;
        turn.result = resultOf(turn.history, smaller);
        return { ok: true, compacted: true, result: { tokensBefore, tokensAfter: turn.result.estimatedTokens } };
    }

    /** Let a subagent that continues the conversation begin with its parent's log. */
    async prepareSubagentSpawn({
        contextMode,
        parentSessionId,
        childSessionId,
    }: {
        contextMode?: "isolated" | "fork";
        parentSessionId?: string;
        childSessionId?: string;
    }): Promise<undefined> {
        if (contextMode !== "fork" || !parentSessionId || !childSessionId) return undefined;
        // Without it the child's first call logs the whole history again.
        await this.#budget.fork(sessionOf(parentSessionId), sessionOf(childSessionId));
        return undefined;
    }
}

const OVERFLOW = { status: 400, message: "the context was too long", code: "context_length_exceeded" };

/** The plugin: select it with `plugins.slots.contextEngine: "palimpsest"`. */
export default {
    id: INFO.id,
    name: INFO.name,
    description: "Keeps every prompt within its budget; the conversation stays whole in an append-only log",
    register(api: {
        pluginConfig?: Json;
        registerContextEngine(id: string, factory: () => Promise<PalimpsestContextEngine>): void;
    }): void {
        const { url, api_key, ...settings } = api.pluginConfig ?? {};
        let engine: Promise<PalimpsestContextEngine> | undefined;
        // One engine for all operations: what it learns of a session is needed in the next turn.
        api.registerContextEngine(INFO.id, () => (engine ??= opened({ url, api_key }, settings)));
    },
};

async function opened(server: { url?: string; api_key?: string }, settings: Json): Promise<PalimpsestContextEngine> {
    const client = new Palimpsest({
        ...(server.url && { baseURL: server.url }),
        ...(server.api_key && { apiKey: server.api_key }),
    });
    const sdk = "openclaw/plugin-sdk/core"; // the host's own module; there is none where only types are checked
    const host = (await import(sdk).catch(() => ({}))) as { delegateCompactionToRuntime?: OwnCompaction };
    return new PalimpsestContextEngine({ ...settings, client }, host.delegateCompactionToRuntime);
}

const sessionOf = (id: string): string => id.replace(/[^A-Za-z0-9._:@-]/g, "-").slice(0, 128);

/** Return whether two lists have as many messages, and the same last one. */
function isSame(some: AgentMessage[], others: AgentMessage[]): boolean {
    return some.length === others.length && JSON.stringify(some.at(-1)) === JSON.stringify(others.at(-1));
}

/** Return whether OpenClaw has left out the beginning of a history: it then begins with a message of its own. */
function isCut([first]: AgentMessage[]): boolean {
    return first?.role === "user" && first.content === "(session bootstrap)";
}

function resultOf(history: AgentMessage[], fit: FittedContext | undefined): AssembleResult {
    if (fit === undefined) {
        const estimatedTokens = Math.ceil(JSON.stringify(history).length / CHARS_PER_TOKEN);
        return { messages: history, estimatedTokens, promptAuthority: "assembled" };
    }
    const { epoch, sha256, tokens, request } = fit.context;
    const timeAt = (index: number): number => (history[Math.min(index, history.length - 1)] as Json)["timestamp"] ?? 0;
    const own = (one: InsertedMessage) => inserted(one, timeAt(one.before));
    return {
        messages: fit.asked.messages
            ? fit.apply(history, replaced, own)
            : agentMessages((request as Json)["messages"], history),
        estimatedTokens: tokens.estimate,
        promptAuthority: "assembled",
        contextProjection: { mode: "per_turn", epoch: String(epoch), fingerprint: sha256 },
    };
}

/** Return messages of OpenAI's chat completions as OpenClaw's; the models' are like the newest one of the history. */
function agentMessages(messages: readonly Json[], history: AgentMessage[]): AgentMessage[] {
    const { timestamp } = history[0] as Json;
    const like = [...history].reverse().find(({ role }) => role === "assistant");
    const names = new Map<string, string>();
    return messages.map(({ role, content, tool_calls: calls = [], tool_call_id: id }): AgentMessage => {
        const text = typeof content === "string" ? content : partsOf(content).map(ownPart);
        const parts = typeof text === "string" ? [{ type: "text", text }] : text;
        if (role === "tool") {
            const result = { role: "toolResult", toolCallId: id, toolName: names.get(id) ?? "unknown", isError: false };
            return { ...result, content: parts, timestamp } as AgentMessage;
        }
        if (role !== "assistant") return { role: "user", content: text, timestamp } as AgentMessage;
        const made = calls.map(({ id, function: { name, arguments: given } }: Json) => {
            names.set(id, name);
            return { type: "toolCall", id, name, arguments: JSON.parse(given || "{}") };
        });
        const stopReason = made.length ? "toolUse" : "stop";
        return { ...like, role, content: [...(content ? parts : []), ...made], stopReason, timestamp } as AgentMessage;
    });
}

function ownPart(part: Json): Json {
    const data = /^data:([^;]+);base64,(.*)$/s.exec(part["image_url"]?.url ?? "");
    return data ? { type: "image", mimeType: data[1], data: data[2] } : { type: "text", text: part["text"] ?? "" };
}

/** Return the counts of a reply; `input_tokens` are all of them, also those that the cache served. */
function usageIn(usage: Json | undefined): UsageIn | undefined {
    if (!usage?.["input"] && !usage?.["cacheRead"]) return undefined;
    const { input = 0, cacheRead = 0, cacheWrite = 0, output } = usage;
    return usageOf({
        input_tokens: input + cacheRead + cacheWrite,
        cache_read_tokens: cacheRead,
        cache_write_tokens: cacheWrite,
        output_tokens: output,
    });
}

/** Return a call's id with letters and digits only: OpenClaw removes all others between a turn and the next. */
const idOf = (id: unknown): string => String(id).replace(/[^A-Za-z0-9]/g, "");
const isText = (part: Json): boolean => part["type"] === "text";
const isCall = (part: Json): boolean => part["type"] === "toolCall";
const partsOf = (content: unknown): Json[] =>
    typeof content === "string" ? [{ type: "text", text: content }] : Array.isArray(content) ? content : [];
const textOf = (content: unknown): string =>
    partsOf(content)
        .map((part) => part["text"] ?? (isCall(part) || part["type"] === "thinking" ? "" : `[${part["type"]}]`))
        .filter(Boolean)
        .join("\n");

/** Return a message in the format of OpenAI's chat completions; a kind that is none of the model's is the user's. */
function chatMessage(message: AgentMessage): Message {
    const own = message as Json;
    if (own["role"] === "toolResult") {
        return { role: "tool", tool_call_id: idOf(own["toolCallId"]), content: textOf(own["content"]) };
    }
    if (own["role"] !== "assistant") return { role: "user", content: userContent(own) };
    const calls = partsOf(own["content"])
        .filter(isCall)
        .map(({ id, name, arguments: given }) => ({
            id: idOf(id),
            type: "function",
            function: { name, arguments: typeof given === "string" ? given : JSON.stringify(given ?? {}) },
        }));
    const text = textOf(own["content"]);
    return { role: "assistant", content: text || null, ...(calls.length && { tool_calls: calls }) };
}

function userContent(own: Json): string | Json[] {
    if (own["role"] === "bashExecution") return `${own["command"]}\n${own["output"]}`;
    if (own["summary"] !== undefined) return String(own["summary"]);
    const parts = partsOf(own["content"]);
    if (!parts.some(({ type }) => type === "image")) return textOf(parts);
    return parts.map((part) =>
        part["type"] === "image"
            ? { type: "image_url", image_url: { url: `data:${part["mimeType"]};base64,${part["data"]}` } }
            : { type: "text", text: part["text"] ?? `[${part["type"]}]` },
    );
}

/** Return a copy of a message with other text or arguments, or without some of its calls; undefined if it is empty. */
function replaced(message: AgentMessage, step: MessagePlan): AgentMessage | undefined {
    const text = partChange(step).text ?? "";
    if (message.role !== "assistant") return { ...message, content: [{ type: "text", text }] };
    const content = changedParts(partsOf(message.content), step, ASSISTANT_PARTS);
    return content.length ? { ...message, content } : undefined;
}

const ASSISTANT_PARTS: PartKind<Json> = {
    isText,
    callId: (part) => (isCall(part) ? idOf(part["id"]) : undefined),
    withText: (part, text) => ({ ...part, text }),
    withArguments: (part, given) => ({ ...part, arguments: given }),
};

/** Return a message of the server's: the result of a call that has none, or a text. */
function inserted({ role, text, call_id }: InsertedMessage, timestamp: number): AgentMessage {
    if (role !== "tool") return { role: "user", content: text, timestamp } as AgentMessage;
    const content = [{ type: "text", text }];
    const result = { role: "toolResult", toolCallId: call_id, toolName: "unknown", isError: false };
    return { ...result, content, timestamp } as AgentMessage;
}
