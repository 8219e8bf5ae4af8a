/** Sessions: logging what an agent does, and getting contexts for its model calls. */

import { Call, RECALL, Turn, settled } from "./call.js";
import { InvalidRequestError, NothingToSendError } from "./errors.js";
import { FORMATS } from "./formats.js";
import { type ContextParams, SessionOperations } from "./operations.js";
import { type Results, unanswered } from "./results.js";
import { type StreamEvent, type StreamOptions, watch } from "./stream.js";
import { type RequestOptions, Transport, path } from "./transport.js";
import type {
    Answer,
    AppendedOut,
    Body,
    Content,
    Context,
    EventIn,
    Format,
    Message,
    PolicyDocument,
    RewindOut,
} from "./types.js";

export interface SessionOptions<F extends Format = Format> {
    /** The provider's format of requests and messages. Default: `openai`, chat completions. */
    format?: F;
    /** The model to call. */
    model?: string;
    /** The window that contexts are made for, request and answer together. Default: that of the policy or the model. */
    max_tokens?: number;
    /** A policy's name, or a document. */
    policy?: string | PolicyDocument;
    /** The view: reads the log with its own window and policy. */
    view?: string;
    /** Whether the model gets the recall tool. Default: if `tools` are set. */
    recall?: boolean;
    metadata?: Record<string, unknown>;
}

/** Options of a call, as in `postContext`. Those that are not given are the session's. */
export type CallOptions = Omit<
    ContextParams,
    "format" | "messages" | "system" | "tools" | "append" | "outcome" | "at" | "retry_of" | "recall"
>;

const MAIN = "main";

/** A session. Nothing is sent before its first use, and one thing at a time must be done with it. */
export class Session<F extends Format = "openai"> extends SessionOperations {
    readonly format: F;
    readonly #options: SessionOptions<F>;
    #begun: boolean;
    #recalls = false;
    #last: Call<F> | undefined;

    constructor(transport: Transport, id: string, options: SessionOptions<F>, begun = false) {
        super(transport, id);
        this.format = options.format ?? ("openai" as F);
        if (!(this.format in FORMATS)) throw new TypeError(`format must be one of ${Object.keys(FORMATS).join(", ")}`);
        this.#options = options;
        this.#begun = begun;
    }

    /** Set the system prompt. Setting the current one appends nothing, so a program may do it at each start. */
    system(prompt: Content): Promise<AppendedOut> {
        return this.#setCurrent("system.prompt", "system", prompt);
    }

    /**
     * Set the agent's tools, defined as the provider's SDK accepts them. Setting the current ones appends nothing.
     *
     * The recall tool is added, unless the session has `recall: false`, and answered by `send`.
     */
    async tools(tools: readonly Message[]): Promise<AppendedOut> {
        const given = [...tools];
        if (this.#options.recall !== false) {
            if (given.flatMap((tool) => FORMATS[this.format].toolNames(tool)).includes(RECALL)) {
                throw new TypeError(
                    `a tool of yours is named ${RECALL} too: rename it, or open the session with recall: false`,
                );
            }
            given.push(
                await this.transport.json({
                    method: "GET",
                    path: path("tools", "recall"),
                    query: { format: this.format },
                }),
            );
            this.#recalls = true;
        }
        return this.#setCurrent("tools", "tools", given);
    }

    /** Append a message of the user: text, or parts as the provider's SDK accepts them. */
    user(content: Content): Promise<AppendedOut> {
        return this.log(FORMATS[this.format].user(content));
    }

    /** Append messages in the session's format. */
    async log(...messages: Message[]): Promise<AppendedOut> {
        await this.#begin();
        return this.appendMessages({ format: this.format, messages });
    }

    /** Append the results of the last reply's tool calls. */
    async results(results: Results): Promise<AppendedOut> {
        const { events, open } = unanswered(await settled(results), this.#last?.open ?? []);
        await this.#last?.logAnswer();
        const appended = await this.appendEvents({ events });
        if (this.#last) this.#last.open = open;
        return appended;
    }

    /** Get the context of the next model call. */
    async call(options: CallOptions = {}): Promise<Call<F>> {
        return (this.#last = new Call(this, ...(await this.#context(options))));
    }

    /**
     * Start a turn: append a message of the user, and get the context of the first model call, in one request.
     *
     * Each further call takes one request too: the one that gets its context also logs what happened since the call
     * before. Options are those of `call`, for all calls of the turn.
     */
    async turn(user?: Content, options: CallOptions = {}): Promise<Turn<F>> {
        return (this.#last = new Turn(this, ...(await this.#context(options, user))));
    }

    /** Create a session that shares the log up to `at` (default: all of it). Nothing is copied. */
    async fork(id: string, body: Omit<Body<"fork_session">, "id"> = {}, options?: RequestOptions): Promise<Session<F>> {
        await this.#begin();
        const fork = path("sessions", this.id, "fork");
        await this.transport.json<Answer<"fork_session">>({
            method: "POST",
            path: fork,
            body: { ...body, id },
            options,
        });
        const { metadata, ...settings } = this.#options;
        const made = new Session<F>(this.transport, id, settings, true);
        made.#recalls = this.#recalls;
        return made;
    }

    /** Rewind: from now on the session's id means a new line that ends at `to`. Nothing is destroyed. */
    async rewind(to: number, options?: RequestOptions): Promise<RewindOut> {
        await this.#last?.logAnswer();
        const rewind = path("sessions", this.id, "rewind");
        const rewound = await this.transport.json<RewindOut>({ method: "POST", path: rewind, body: { to }, options });
        this.#last = undefined;
        return rewound;
    }

    /** Iterate endlessly over the session's events and changes. After a broken connection, the stream is resumed. */
    stream(options: StreamOptions = {}): AsyncGenerator<StreamEvent, never> {
        return watch(this.transport, path("sessions", this.id, "stream"), options);
    }

    /** Create the session or set its settings before its first use; log the answer that a turn has not logged yet. */
    async #begin(): Promise<void> {
        await this.#last?.logAnswer();
        if (this.#begun) return;
        const { view = MAIN, metadata, model, policy } = this.#options;
        const settings = view === MAIN ? { metadata, model, policy } : { metadata };
        const given = Object.entries(settings).filter(([, value]) => value !== undefined);
        if (given.length) await this.putSession(Object.fromEntries(given));
        this.#begun = true;
    }

    async #context(options: CallOptions, user?: Content): Promise<[Context<F>, object, boolean]> {
        await this.#begin();
        if (this.#options.recall && !this.#recalls) await this.tools([]);
        const { view, policy } = this.#options;
        const own = view !== undefined && view !== MAIN && policy !== undefined ? { policy } : {};
        const asked = { format: this.format, ...(view && { view }), ...this.#window, ...own, ...options };
        const append =
            user === undefined ? {} : { append: { format: this.format, messages: [FORMATS[this.format].user(user)] } };
        return [await this.postContext({ ...asked, ...append }), asked, this.#recalls];
    }

    get #window(): { model?: string; max_tokens?: number } {
        const { model, max_tokens } = this.#options;
        return { ...(model !== undefined && { model }), ...(max_tokens !== undefined && { max_tokens }) };
    }

    /**
     * Append a system prompt or tools unless they are current: new ones invalidate the provider's cache.
     *
     * The event's id is a hash of its content, so that appending it again changes nothing. If the content was appended
     * before but is no longer current, it is appended again without an id.
     */
    async #setCurrent(type: "system.prompt" | "tools", block: string, content: Content): Promise<AppendedOut> {
        await this.#begin();
        const event = { type, content } as EventIn;
        const bytes = new TextEncoder().encode(canonical(content));
        const digest = Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), hex)
            .join("")
            .slice(0, 24);
        const { status, data } = await this.transport.answered<AppendedOut>({
            method: "POST",
            path: path("sessions", this.id, "events"),
            body: { events: [{ ...event, id: `${type}:${digest}` }] },
        });
        if (status === 201 || (await this.#isCurrent(block, data.events[0]!.seq, content))) return data;
        return this.appendEvents({ events: [event] });
    }

    async #isCurrent(block: string, seq: number, content: Content): Promise<boolean> {
        try {
            const { request } = await this.previewContext({ format: "blocks", ...this.#window });
            const blocks = request["blocks"] as { kind: string; seq: number }[];
            const shown = blocks.filter((one) => one.kind === block).at(-1);
            if (shown === undefined || shown.seq === seq) return shown !== undefined;
            const event = await this.getEvent(shown.seq); // an earlier start may have appended it again
            return canonical(event.content) === canonical(content);
        } catch (error) {
            if (error instanceof NothingToSendError) return true; // the log has nothing that could have replaced it
            if (error instanceof InvalidRequestError) return false; // no context fits; appending again is correct anyway
            throw error;
        }
    }
}

const hex = (byte: number): string => byte.toString(16).padStart(2, "0");

/** Return JSON with sorted members, equal for equal values. */
function canonical(value: unknown): string {
    return JSON.stringify(value, (_, member: unknown) =>
        typeof member === "object" && member !== null && !Array.isArray(member)
            ? Object.fromEntries(Object.entries(member).sort(([a], [b]) => (a < b ? -1 : 1)))
            : member,
    );
}
