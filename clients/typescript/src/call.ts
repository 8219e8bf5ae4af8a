/// <reference lib="esnext.disposable" preserve="true" />
/** One model call: get a context that fits, send it to the provider, and log the answer. */

import { InvalidRequestError, PalimpsestError, RecallLoop, ReplyNotLogged, StatusError } from "./errors.js";
import { type Accumulator, FORMATS, type ProviderFormat, ToolCall, errorReport } from "./formats.js";
import type { SessionOperations } from "./operations.js";
import { type Reply, StreamedReply } from "./reply.js";
import { type Results, unanswered } from "./results.js";
import type { Context, ErrorIn, EventIn, EvictionOut, Format, Requests, TokensOut } from "./types.js";

type Json = Record<string, any>;

/** The reply for what the provider's method returns: a stream's chunks, or nothing but the answer. */
export type ReplyTo<R> = Awaited<R> extends AsyncIterable<infer Chunk> ? StreamedReply<Chunk> : Reply;

/** A provider's method, as `send` calls it. */
export type Send<F extends Format, E extends object, R> = (request: Requests[F] & E) => R;

/** An answer that is to be logged, with its outcome, by the request for the next context. */
interface UnloggedAnswer {
    reply: Reply;
    latency: number;
    /** Results of the recall tool. */
    results: EventIn[];
}

/** The name of the tool whose calls are answered from the log. */
export const RECALL = "recall";
/** The maximum number of consecutive answers that do nothing but recall. */
const RECALL_ROUNDS_MAX = 8;

/** A model call in progress. After a retry or a recall, its properties are those of the newest context. */
export class Call<F extends Format> {
    protected readonly session: SessionOperations;
    /** The complete context, as the server returned it. */
    context: Context<F>;
    /** Tool calls of the last reply that have no result yet. */
    open: ToolCall[] = [];
    readonly #asked: object;
    readonly #recalls: boolean;
    protected readonly inTurn: boolean = false;
    #unlogged: UnloggedAnswer | undefined;
    #began = Date.now();

    constructor(session: SessionOperations, context: Context<F>, asked: object, recalls: boolean) {
        this.session = session;
        this.context = context;
        this.#asked = asked;
        this.#recalls = recalls;
    }

    /** The id of the recorded call. */
    get id(): string {
        return this.context.call_id;
    }

    /** The token budget and its use. */
    get tokens(): TokensOut {
        return this.context.tokens;
    }

    /** The events that the model does not see verbatim, with the rule and the reason for each. */
    get leftOut(): EvictionOut[] {
        return this.context.evictions;
    }

    /** The request to pass to the provider's SDK, to call the provider yourself. */
    get request(): Requests[F] {
        const request = this.#format.arguments(this.context.request);
        return (this.context.model ? { model: this.context.model, ...request } : request) as Requests[F];
    }

    get #format(): ProviderFormat {
        return FORMATS[this.context.format];
    }

    /**
     * Call the provider's SDK with the context, log the answer, and report the usage.
     *
     * `create` gets the request, with the members of `extra` if there are any: pass `{ stream: true }` there, so that
     * the usage of a streamed chat completion is requested too. If the context was too long, the call is retried once
     * with a smaller one. Calls of the recall tool are answered here, and the model is called again. Errors of the
     * provider are reported and thrown unchanged.
     */
    async send<R, const E extends object = object>(create: Send<F, E, R>, extra?: E): Promise<ReplyTo<R>> {
        for (const name of Object.keys(this.context.request)) {
            if (extra && name in extra) {
                throw new TypeError(`${name} comes from the session; set it with system(), tools(), user() or log()`);
            }
        }
        const chunks = this.#answer(create as (request: Json) => unknown, (extra ?? {}) as Json);
        const first = await chunks.next();
        return (first.done && first.value ? first.value : new StreamedReply(chunks, first)) as ReplyTo<R>;
    }

    /** Log an answer that was obtained without `send`, and report its usage. */
    async log(response: object): Promise<Reply> {
        const reply = await this.#read(response);
        if (!this.#awaitsResults(this.open)) await this.logAnswer();
        return reply;
    }

    /** Report the provider's error. If the context was too long, get a smaller one and return true: call again. */
    async failed(error: unknown): Promise<boolean> {
        const again = await this.#report(errorReport(error));
        if (again) this.context = await again();
        return again !== undefined;
    }

    /** Log the answer that is not logged yet, if there is one, and report its usage. */
    async logAnswer(): Promise<void> {
        const unlogged = this.#unlogged;
        this.#unlogged = undefined;
        if (unlogged === undefined) return;
        const { reply, latency, results } = unlogged;
        try {
            if (reply.messages.length) {
                const events = results.length ? { events: results } : {};
                await this.session.appendMessages({ format: this.context.format, messages: reply.messages, ...events });
            }
        } catch (error) {
            throw error instanceof PalimpsestError ? new ReplyNotLogged(reply, error) : error;
        }
        const usage = reply.usage ? { usage: reply.usage } : {};
        await quietly(
            this.session.reportOutcome(reply.callId, { ...usage, latency_ms: latency }),
            "usage not reported",
        );
    }

    /** Log the answer and its results, report its outcome, and get the next context, in one request. */
    protected async next(results: EventIn[]): Promise<void> {
        const unlogged = this.#unlogged;
        this.#unlogged = undefined;
        if (unlogged === undefined) {
            this.context = await this.session.postContext({ ...this.#asked, append: { events: results } });
            return;
        }
        const { reply, latency } = unlogged;
        const format = this.context.format;
        const append = { format, messages: reply.messages, events: [...unlogged.results, ...results] };
        const usage = reply.usage ? { usage: reply.usage } : {};
        const outcome = { call_id: reply.callId, latency_ms: latency, ...usage };
        try {
            this.context = await this.session.postContext({ ...this.#asked, append, outcome });
            return;
        } catch (error) {
            if (!(error instanceof PalimpsestError)) throw error;
            if (error instanceof StatusError && error.part === "context") throw error; // the answer is logged
            if (!(error instanceof StatusError && error.status < 500)) throw new ReplyNotLogged(reply, error);
        }
        this.#unlogged = unlogged; // one by one, so that only the refused part fails
        await this.logAnswer();
        await this.session.appendEvents({ events: results });
        this.context = await this.session.postContext(this.#asked);
    }

    /** Call the provider until an answer does more than recall; log every answer, and yield the chunks of streams. */
    async *#answer(create: (request: Json) => unknown, extra: Json): AsyncGenerator<unknown, Reply | undefined> {
        for (let round = 0; round < RECALL_ROUNDS_MAX; round++) {
            let read = false;
            try {
                const response = yield* this.#respond(create, extra);
                read = true;
                const reply = await this.#finish(response);
                if (reply) return reply;
            } finally {
                // An answer that was complete when its chunks were left is the stream's result, as if read to its end.
                const left = read ? undefined : await this.#abandoned();
                if (left) return left;
            }
        }
        throw new RecallLoop(`${RECALL_ROUNDS_MAX} answers in a row did nothing but recall`);
    }

    /**
     * Log an answer and the results of its recalls. Returns undefined if it did nothing but recall, and the model is to
     * be called again, which it is not for an answer whose chunks were left (`abandoned`).
     */
    async #finish(response: Json, abandoned = false): Promise<Reply | undefined> {
        const reply = await this.#read(response);
        const recalls = this.open.filter((call) => this.#recalls && call.name === RECALL);
        const others = this.open.filter((call) => !recalls.includes(call));
        const onlyRecalls = recalls.length > 0 && others.length === 0 && !abandoned;
        if (!onlyRecalls && (abandoned || !this.#awaitsResults(others))) await this.logAnswer();
        const results = await this.#answerRecalls(recalls);
        this.open = others;
        if (onlyRecalls) {
            await this.next(results);
            return undefined;
        }
        if (this.#unlogged) this.#unlogged.results = results;
        else if (results.length) await this.session.appendEvents({ events: results });
        return { ...reply, toolCalls: [...others] };
    }

    /** Return the provider's complete answer. If the context was too long, retry once with a smaller one. */
    async *#respond(create: (request: Json) => unknown, extra: Json): AsyncGenerator<unknown, Json> {
        for (;;) {
            const refusal = yield* this.#once(create, extra);
            if (!("refused" in refusal)) return refusal.response;
            if (refusal.again) this.context = await refusal.again();
            else if (refusal.response !== undefined) return refusal.response;
            else throw refusal.refused;
        }
    }

    async *#once(
        create: (request: Json) => unknown,
        extra: Json,
    ): AsyncGenerator<unknown, { response: Json } | Refusal<F>> {
        const request: Json = { ...this.request, ...extra };
        const swallow = this.context.format === "openai" && request["stream"] && !("stream_options" in request);
        if (swallow) request["stream_options"] = { include_usage: true };
        this.#began = Date.now();
        let response: Json;
        try {
            response = (await create(request)) as Json;
        } catch (refused) {
            return { refused, again: await this.#report(errorReport(refused)) };
        }
        if (response && Symbol.asyncIterator in response) {
            return yield* this.#stream(response as AsyncIterable<Json>, swallow);
        }
        if (typeof response !== "object" || response === null) {
            throw new TypeError(
                `the model's answer is a ${typeof response}; return the SDK's own answer from \`send\``,
            );
        }
        const { failure } = this.#format.read(response);
        return failure ? { refused: failure, response, again: await this.#report(failure) } : { response };
    }

    /** Return a stream's complete answer, yielding its chunks, but none before the model has begun to answer. */
    async *#stream(
        stream: AsyncIterable<Json>,
        swallow: boolean,
    ): AsyncGenerator<unknown, { response: Json } | Refusal<F>> {
        const whole = (this.#reading = this.#format.accumulator());
        const chunks = (this.#chunks = stream[Symbol.asyncIterator]());
        const held: Json[] = [];
        try {
            for (let step = await chunks.next(); !step.done; step = await chunks.next()) {
                const chunk = step.value;
                whole.feed(chunk);
                if (!(swallow && chunk["usage"] && !chunk["choices"]?.length)) held.push(chunk);
                while (whole.begun && held.length) yield held.shift();
            }
        } catch (refused) {
            this.#reading = this.#chunks = undefined;
            const again = await this.#report(errorReport(refused));
            if (!whole.begun) return { refused, again };
            await this.#logPartial(whole.text);
            return { refused };
        }
        this.#reading = this.#chunks = undefined;
        const response = whole.response();
        const { failure } = this.#format.read(response);
        if (failure) {
            const again = await this.#report(failure);
            if (!whole.begun && again) return { refused: failure, again };
            yield* held;
            return { refused: failure, response };
        }
        yield* held;
        return { response };
    }

    #reading: Accumulator | undefined;
    #chunks: AsyncIterator<Json> | undefined;

    /** Close a stream whose chunks are no longer read. Log the answer and return it if complete, else log its text. */
    async #abandoned(): Promise<Reply | undefined> {
        const [whole, chunks] = [this.#reading, this.#chunks];
        this.#reading = this.#chunks = undefined;
        if (whole === undefined || chunks === undefined) return undefined;
        if (whole.ended) {
            try {
                for (let step = await chunks.next(); !step.done; step = await chunks.next()) whole.feed(step.value);
            } catch {
                // only usage figures are missing
            }
            return this.#finish(whole.response(), true);
        }
        await chunks.return?.().catch(() => undefined);
        await this.#report({ message: "the stream was not read to its end" });
        await this.#logPartial(whole.text);
        return undefined;
    }

    /** Log the text received before a stream broke, as partial. Incomplete tool calls are not logged. */
    async #logPartial(text: string): Promise<void> {
        if (!text) return;
        const event: EventIn = { type: "assistant.message", content: text, metadata: { partial: true } };
        await quietly(this.session.appendEvents({ events: [event] }), "a partial answer was not logged");
    }

    #awaitsResults(calls: ToolCall[]): boolean {
        return this.inTurn && calls.length > 0;
    }

    /** Parse an answer that is to be logged, after the one before it. */
    async #read(response: Json): Promise<Reply> {
        await this.logAnswer();
        const { failure, ...answer } = this.#format.read(response);
        const reply: Reply = { ...answer, raw: response, callId: this.context.call_id };
        this.open = [...answer.toolCalls];
        if (!failure) this.#unlogged = { reply, latency: Date.now() - this.#began, results: [] }; // or it was reported
        return reply;
    }

    /** Report an error. If the context was too long, return the function that requests a smaller one. */
    async #report(error: ErrorIn): Promise<(() => Promise<Context<F>>) | undefined> {
        const report = this.session.reportOutcome(this.id, { error, latency_ms: Date.now() - this.#began });
        const outcome = await quietly(report, "a provider's error was not reported");
        if (outcome?.action !== "retry" || !outcome.next) return undefined;
        const body: object = outcome.next.body;
        return () => this.session.postContext(body) as Promise<Context<F>>;
    }

    /** Return the results of recalls. If the server fails, the answer is logged without them. */
    async #answerRecalls(calls: ToolCall[]): Promise<EventIn[]> {
        const results: EventIn[] = [];
        for (const call of calls) {
            const event: EventIn = { type: "tool.result", call_id: call.id };
            try {
                const found = await this.session.recall({ ...call.arguments, call_id: this.context.call_id });
                event.content = JSON.stringify(found);
            } catch (error) {
                if (!(error instanceof InvalidRequestError || error instanceof SyntaxError)) {
                    await this.logAnswer();
                    throw error;
                }
                Object.assign(event, { content: error.message, is_error: true }); // for the model to correct
            }
            results.push(event);
        }
        return results;
    }
}

/** The provider refused, by an error or in its response. `again` requests the context for a retry, if any. */
interface Refusal<F extends Format> {
    refused: unknown;
    response?: Json;
    again?: (() => Promise<Context<F>>) | undefined;
}

/**
 * A turn: model calls, each with the results of the tools that the one before called.
 *
 * An answer with tool calls is logged by `results`, by `end`, or before anything else is appended by the session's
 * `user`, `log` or `results`. Every other answer is logged when `send` returns.
 */
export class Turn<F extends Format> extends Call<F> implements AsyncDisposable {
    protected override readonly inTurn = true;

    /** Log the answer and the results of its tool calls, and get the next context: one request. Then `send` again. */
    async results(results: Results): Promise<void> {
        const { events, open } = unanswered(await settled(results), this.open);
        await this.next(events);
        this.open = open;
    }

    /** Log the last answer, if its tool calls were not answered. `await using` does it at the end of the block. */
    async end(): Promise<void> {
        await this.logAnswer();
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.end();
    }
}

/** Wait for the promises among results; one that is rejected becomes its error. */
export async function settled(results: Results): Promise<Results> {
    if (typeof results === "string") return results;
    if (Symbol.iterator in results) return Promise.all(Array.from(results, outcome));
    const named = Object.entries(results).map(async ([id, value]) => [id, await outcome(value)] as const);
    return Object.fromEntries(await Promise.all(named));
}

const outcome = (value: unknown): Promise<unknown> => Promise.resolve(value).catch(asError);
const asError = (reason: unknown): Error => (reason instanceof Error ? reason : new Error(String(reason)));

/** Return the result of a report; on an error of the server, warn and return undefined. */
async function quietly<T>(report: Promise<T>, what: string): Promise<T | undefined> {
    try {
        return await report;
    } catch (error) {
        if (!(error instanceof PalimpsestError)) throw error;
        console.warn(`palimpsest: ${what}: ${error.message}`);
        return undefined;
    }
}
