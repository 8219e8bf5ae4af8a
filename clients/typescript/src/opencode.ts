/**
 * opencode (1.18): a plugin that keeps every model call within its budget.
 *
 * opencode keeps its own messages. Before each call the plugin replaces them by those that fit.
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
import type { MessagePlan, UsageIn } from "./types.js";

type Json = Record<string, any>;

/** A message of opencode with its parts; a part of the type `tool` has the call and its result. */
export interface OpencodeMessage {
    info: { id: string; sessionID: string; role: string };
    parts: { type: string }[];
}

/** The hooks of the plugin, as opencode calls them. */
export interface OpencodeHooks {
    "chat.params"(input: { sessionID: string; model: any }): Promise<void>;
    "experimental.chat.messages.transform"(input: object, output: { messages: any[] }): Promise<void>;
    event(input: { event: any }): Promise<void>;
    dispose(): Promise<void>;
}

/** A message, or the result of a call that it holds. */
interface Piece {
    /** The piece in the format of OpenAI's chat completions. */
    message: Json;
    /** opencode's message that it is or belongs to; undefined for one inserted by the server. */
    source: OpencodeMessage | undefined;
    parts: Json[];
    /** A shorter result. */
    text?: string;
}

/** The last call of a session. */
interface LastCall {
    fit: FittedContext;
    /** The id of the last message that was sent: the reply follows it. */
    last: string;
    /** Tokens sent besides the messages that were known when the context was made. */
    beside: number | undefined;
}

/** Tokens of an answer that opencode keeps free at most. */
const OUTPUT_MAX = 32_000;
const INTERRUPTED = "[Tool execution was interrupted]"; // opencode's own words for a call without a result

/** The calls of all sessions of an opencode process. */
class Calls {
    readonly #budget: Budget;
    readonly #lastCalls = new Recent<LastCall>();
    readonly #windows = new Recent<number>();
    /** Tokens of the last request besides the messages: system prompt and tools. */
    readonly #beside = new Recent<number>();

    constructor(settings: AdapterSettings = {}) {
        this.#budget = new Budget("openai", settings);
    }

    /** Remember the window of a session's model, less the answer: opencode compacts above that. */
    noteModel(session: string, { limit }: { limit?: { context?: number; input?: number; output?: number } }): void {
        const window = limit?.input ?? (limit?.context ?? 0) - Math.min(limit?.output ?? 0, OUTPUT_MAX);
        if (window > 0) this.#windows.set(session, window);
    }

    /** Report the last call, and return the messages that fit. */
    async fitted(messages: OpencodeMessage[]): Promise<OpencodeMessage[]> {
        const session = messages[0]?.info.sessionID;
        if (session === undefined) return messages;
        await this.report(session, messages, false);
        let pieces: Piece[] = [];
        const beside = this.#beside.get(session);
        const fit = await this.#budget.fit(session, () => {
            pieces = messages.flatMap(piecesOf);
            return {
                model: modelOf(messages),
                messages: pieces.map(({ message }) => message),
                max_tokens: this.#windows.get(session),
                outside_tokens: beside,
            };
        });
        if (fit === undefined) return messages;
        this.#lastCalls.set(session, { fit, beside, last: messages.at(-1)!.info.id });
        if (fit.isObserved) return messages;
        const like = messages.find(({ info }) => info.role === "user") ?? messages[0]!;
        return joined(fit.apply(pieces, replaced, (one) => insertedPiece(one, like)));
    }

    /** Report the usage or the error of a session's last call; with `log` also the messages since then. */
    async report(session: string, messages: OpencodeMessage[], log: boolean): Promise<void> {
        const call = this.#lastCalls.get(session);
        if (call === undefined) return;
        const at = messages.findIndex(({ info }) => info.id === call.last) + 1;
        const reply = (at ? messages[at]?.info : undefined) as Json | undefined;
        if (reply && !reply["time"]?.completed && !reply["error"]) return;
        this.#lastCalls.delete(session);
        const { fit, beside } = call;
        if (reply?.["error"]) {
            const { name, data } = reply["error"];
            await this.#budget.reportFailure(fit, { message: data?.message ?? name, status: data?.statusCode }, false);
            return;
        }
        const usage = usageIn(reply?.["tokens"]);
        const { tokens } = fit.context;
        if (usage?.input_tokens && !fit.isObserved) {
            this.#beside.set(session, Math.max(0, usage.input_tokens - tokens.estimate));
        }
        // Counts of a request whose other parts were unknown would distort the estimates of all later ones.
        const reported = beside === undefined && !fit.isObserved ? undefined : usage;
        const since = log && at ? messages.slice(at).flatMap(piecesOf) : [];
        await this.#budget.reportSuccess(
            fit,
            reported,
            since.map(({ message }) => message),
        );
    }
}

/**
 * The plugin: name the package in opencode's setting `plugin`, with its options.
 *
 * The module has no other export, because opencode calls each one as a plugin.
 */
export default async function palimpsest(
    { client: host }: { client: { session: { messages(options: any): Promise<{ data?: any }> } } },
    options: Json = {},
): Promise<OpencodeHooks> {
    const { url, api_key, ...settings } = options;
    const client = new Palimpsest({ ...(url && { baseURL: url }), ...(api_key && { apiKey: api_key }) });
    const plugin = new Calls({ ...settings, client });
    const reports = new Set<Promise<void>>();
    const report = async (sessionID: string) => {
        const { data } = await host.session.messages({ path: { id: sessionID } });
        await plugin.report(sessionID, data ?? [], true);
    };
    return {
        "chat.params": async ({ sessionID, model }) => plugin.noteModel(sessionID, model),
        "experimental.chat.messages.transform": async (_, output) => {
            output.messages.splice(0, Infinity, ...(await plugin.fitted([...output.messages])));
        },
        event: async ({ event }) => {
            if (event.type !== "session.idle") return;
            const work = report(event.properties.sessionID).finally(() => reports.delete(work));
            reports.add(work);
            await work;
        },
        // `opencode run` ends as soon as its session is idle, but waits for this.
        dispose: async () => void (await Promise.allSettled(reports)),
    };
}

function modelOf(messages: OpencodeMessage[]): string | undefined {
    return ([...messages].reverse().find(({ info }) => info.role === "user")?.info as Json | undefined)?.["model"]
        ?.modelID;
}

/** Return the counts of a reply; `input_tokens` are all of them, also those that the cache served. */
function usageIn(tokens: Json | undefined): UsageIn | undefined {
    if (!tokens?.["input"] && !tokens?.["cache"]?.read) return undefined;
    const { input, output, reasoning = 0, cache } = tokens;
    return usageOf({
        input_tokens: input + cache.read + cache.write,
        cache_read_tokens: cache.read,
        cache_write_tokens: cache.write,
        output_tokens: output + reasoning,
    });
}

const isTool = (part: Json): boolean => part["type"] === "tool";
const isText = (part: Json): boolean => part["type"] === "text" && !part["ignored"];
const textOf = (parts: Json[]): string =>
    parts
        .filter(isText)
        .map((part) => part["text"])
        .join("\n");

/** Return a message, followed by the results of its calls, in the format of OpenAI's chat completions. */
function piecesOf(source: OpencodeMessage): Piece[] {
    const parts: Json[] = source.parts;
    if (source.info.role !== "assistant") {
        const content = parts.some(({ type }) => type === "file") ? parts.flatMap(userPart) : textOf(parts);
        return [{ message: { role: "user", content }, source, parts }];
    }
    const calls = parts.filter(isTool);
    const made = calls.map(({ callID, tool, state }) => ({
        id: callID,
        type: "function",
        function: { name: tool, arguments: JSON.stringify(state.input ?? {}) },
    }));
    const text = textOf(parts);
    if (!text && !made.length) return [{ message: { role: "assistant", content: "" }, source, parts }];
    const message = { role: "assistant", content: text || null, ...(made.length && { tool_calls: made }) };
    const results = calls.map((part) => {
        const { status, output, error } = part["state"];
        const content = status === "completed" ? output : status === "error" ? error : INTERRUPTED;
        return { message: { role: "tool", tool_call_id: part["callID"], content }, source, parts: [part] };
    });
    return [{ message, source, parts }, ...results];
}

function userPart(part: Json): Json[] {
    if (part["type"] === "text") return isText(part) ? [{ type: "text", text: part["text"] }] : [];
    if (part["type"] !== "file") return [];
    const { mime, url, filename } = part;
    if (mime?.startsWith("image/")) return [{ type: "image_url", image_url: { url } }];
    return [{ type: "text", text: `[file ${filename ?? ""} ${mime}]` }];
}

/** Return a piece with other text or arguments, or without some of its calls; undefined if nothing is left. */
function replaced(piece: Piece, step: MessagePlan): Piece | undefined {
    const role = piece.message["role"];
    const text = partChange(step).text ?? "";
    if (role === "tool") return { ...piece, text };
    if (role === "user") return { ...piece, parts: [{ ...piece.parts.find(isText), type: "text", text }] };
    const parts = changedParts(piece.parts, step, ASSISTANT_PARTS);
    return parts.length ? { ...piece, parts } : undefined;
}

const ASSISTANT_PARTS: PartKind<Json> = {
    isText,
    callId: (part) => (isTool(part) ? part["callID"] : undefined),
    withText: (part, text) => ({ ...part, text }),
    withArguments: (part, input) => ({ ...part, state: { ...part["state"], input } }),
};

/** Return opencode's messages for pieces in order; complete messages are the same objects as before. */
function joined(pieces: readonly Piece[]): OpencodeMessage[] {
    const messages: OpencodeMessage[] = [];
    let results = new Map<string, Piece>();
    [...pieces].reverse().forEach((piece) => {
        const { source, parts, message } = piece;
        if (message["role"] === "tool") {
            results.set(message["tool_call_id"] as string, piece);
            return;
        }
        const changed = parts.flatMap((part) => (isTool(part) ? withResult(part, results) : [part]));
        const own: Json[] = source!.parts;
        const whole = changed.length === own.length && changed.every((part, index) => part === own[index]);
        messages.push(whole ? source! : { info: source!.info, parts: changed as OpencodeMessage["parts"] });
        results = new Map();
    });
    return messages.reverse();
}

/** Return a call's part with the result that is left of it; none if the result is dropped. */
function withResult(part: Json, results: ReadonlyMap<string, Piece>): Json[] {
    const result = results.get(part["callID"]);
    if (result === undefined) return [];
    const { state } = part;
    const { time, attachments, ...rest } = state;
    if (result.text !== undefined) {
        const field = state.status === "error" ? "error" : "output";
        return [{ ...part, state: { ...rest, time: { ...time, compacted: undefined }, [field]: result.text } }];
    }
    // A result that opencode has cleared is shown all the same: it fits.
    return [time?.compacted ? { ...part, state: { ...state, time: { ...time, compacted: undefined } } } : part];
}

/** Return a text of the server's as a message of the user. */
function insertedPiece(one: InsertedMessage, like: OpencodeMessage): Piece {
    const { sessionID } = like.info;
    const id = `msg_palimpsest_${one.kind}_${one.before}`;
    const part = {
        id: `prt_palimpsest_${one.kind}_${one.before}`,
        sessionID,
        messageID: id,
        type: "text",
        text: one.text,
    };
    const source = { info: { ...like.info, id, role: "user" }, parts: [part] };
    return { message: { role: "user" }, source, parts: source.parts };
}
