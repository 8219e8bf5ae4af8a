/**
 * The base of the adapters: send a framework's messages to the server, and apply the server's plan to them.
 *
 * An adapter requests a `FittedContext` before each model call and reports the outcome of the call. No failure of the
 * server fails the model call: if a request is not answered within `timeout`, or the messages are refused, `fit` returns
 * undefined, and the messages go to the model unchanged. Only settings that have never worked throw an error.
 */

import { RECALL } from "./call.js";
import { Palimpsest } from "./client.js";
import {
    AuthenticationError,
    ConflictError,
    ConnectionFailed,
    ContextInfeasibleError,
    InvalidPolicyError,
    InvalidRequestError,
    NotFoundError,
    PalimpsestError,
    PermissionDeniedError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StatusError,
    TooManyLinesError,
    TooManySessionsError,
    UnreadableAnswer,
} from "./errors.js";
import { errorReport } from "./formats.js";
import { type ContextParams, SessionOperations } from "./operations.js";
import { type Transport, path } from "./transport.js";
import type {
    Body,
    Content,
    Context,
    Format,
    Message,
    MessagePlan,
    PolicyDocument,
    Schemas,
    UsageIn,
} from "./types.js";

/** Settings of every adapter. */
export interface AdapterSettings {
    /** Client of the server; its timeout and retries are not used. Default: one configured by the environment. */
    client?: Palimpsest;
    /** Model that contexts are made for. Default: the one that the framework calls. */
    model?: string;
    /** Window that contexts are made for, request and answer together. Default: that of the policy or the model. */
    max_tokens?: number;
    /** Name of a policy, or a document, to set for the session. Default: the session's current policy. */
    policy?: string | PolicyDocument;
    /** Metadata of new sessions. */
    metadata?: Record<string, unknown>;
    /** Tokens sent in addition to messages, system prompt and tools, such as a schema of the answer. */
    outside_tokens?: number;
    /** Whether the model has the recall tool, which the adapter defines. Default: no. */
    recall?: boolean;
    /** Whether to send all messages unchanged and only record the contexts, to see what they would save. Default: no. */
    observe?: boolean;
    /** Share of the sessions, drawn by their names, that are only observed, to measure the saving. Default: none. */
    holdout?: number;
    /** Milliseconds to wait for each response; without a context by then, messages go unchanged. Default: 10,000. */
    timeout?: number;
}

export type InsertedMessage = Schemas["InsertedOut"];

/** A model call, as the framework makes it. */
export interface FrameworkCall {
    /** The complete messages, in the format of the budget; without them the context is made of the log alone. */
    messages?: readonly Message[];
    model?: string | undefined;
    /** The window, if the settings have none. */
    max_tokens?: number | undefined;
    /** Tokens sent in addition, if the settings do not say. */
    outside_tokens?: number | undefined;
    system?: Content | undefined;
    /** The tools, in the format of the budget. Default: the session's current ones. */
    tools?: readonly Message[] | undefined;
}

/** The request for a context: with the framework's messages, or without them for one of the log. */
type Asked = ContextParams & { format: Format; messages?: readonly Message[] };

const TIMEOUT_MS = 10_000;
/** The number of sessions whose settings, last call and warnings are remembered. */
const SESSIONS_KEPT = 1_000;
const SETTINGS = [
    "client",
    "model",
    "max_tokens",
    "policy",
    "metadata",
    "outside_tokens",
    "recall",
    "observe",
    "holdout",
    "timeout",
];
const ACTIONS: unknown[] = ["keep", "replace", "drop"];

/** The context of one model call, as a plan for the messages that were sent for it. */
export class FittedContext {
    constructor(
        readonly session: string,
        readonly context: Context,
        /** The request for the context, for a smaller one after an overflow. */
        readonly asked: Asked,
        readonly began: number,
    ) {}

    /** For each message, whether it is kept, replaced or dropped. */
    get plan(): readonly MessagePlan[] {
        return this.context.plan!;
    }

    /** Whether the context is only recorded, and the framework's own messages are sent. */
    get isObserved(): boolean {
        return this.context.view === "~observed";
    }

    /** Messages to insert, in order. */
    get inserted(): readonly InsertedMessage[] {
        return this.context.inserted!;
    }

    /**
     * Apply the plan to the framework's objects, one for each message that was sent.
     *
     * Kept messages are the same objects; all are kept if the context is only recorded. `replaced` returns a changed
     * copy of a message, or undefined if nothing of it is left; `inserted` makes a message that the framework does not
     * have.
     */
    apply<T>(
        own: readonly T[],
        replaced: (message: T, step: MessagePlan) => T | undefined,
        inserted: (one: InsertedMessage) => T,
    ): T[] {
        if (this.isObserved) return [...own];
        const waiting = [...this.inserted];
        const before = (index: number) => {
            const rest = waiting.findIndex((one) => one.before > index);
            return waiting.splice(0, rest === -1 ? waiting.length : rest).map(inserted);
        };
        const result = own.flatMap((message, index) => {
            const step = this.plan[index]!;
            const changed = step.action === "keep" ? message : step.action === "replace" && replaced(message, step);
            return [...before(index), ...(changed ? [changed] : [])];
        });
        return [...result, ...before(Infinity)];
    }
}

/**
 * Return the action, and the new text if any, for the part of a message with a tool call's id, or for its text.
 *
 * The new text of a tool call is its arguments as JSON. A part without an event of its own is kept.
 */
export function partChange(step: MessagePlan, callId?: string): { action: MessagePlan["action"]; text?: string } {
    const part = step.parts?.length
        ? (step.parts.find((one) => (one.call_id ?? undefined) === callId) ?? { action: "keep" as const })
        : step;
    return { action: part.action, ...("text" in part && typeof part.text === "string" && { text: part.text }) };
}

/** A framework's parts of an assistant message. */
export interface PartKind<P> {
    isText(part: P): boolean;
    /** The id of the call that a part is; undefined if it is none. */
    callId(part: P): string | undefined;
    withText(part: P, text: string): P;
    withArguments(part: P, given: Record<string, unknown>): P;
}

/** Return the parts of an assistant message with the plan's texts and arguments; none if no text and no call is left. */
export function changedParts<P>(parts: readonly P[], step: MessagePlan, kind: PartKind<P>): P[] {
    const hasCalls = parts.some((part) => kind.callId(part) !== undefined);
    const whole = hasCalls && !step.parts?.length ? { action: "keep" as const } : partChange(step);
    let text = "text" in whole ? whole.text : undefined;
    const changed = parts.flatMap((part) => {
        const id = kind.callId(part);
        if (id !== undefined) {
            const change = partChange(step, id);
            if (change.action === "drop") return [];
            return [change.action === "keep" ? part : kind.withArguments(part, JSON.parse(change.text || "{}"))];
        }
        if (!kind.isText(part) || whole.action === "keep") return [part];
        if (whole.action === "drop" || text === undefined) return [];
        const said = kind.withText(part, text);
        text = undefined; // the first part has the new text of all
        return [said];
    });
    return changed.some((part) => kind.isText(part) || kind.callId(part) !== undefined) ? changed : [];
}

/** A map that forgets the oldest entries above `SESSIONS_KEPT`. */
export class Recent<V> extends Map<string, V> {
    override set(key: string, value: V): this {
        this.delete(key);
        super.set(key, value);
        if (this.size > SESSIONS_KEPT) this.delete(this.keys().next().value!);
        return this;
    }
}

/** Contexts for a framework's model calls, and reports of their outcomes. */
export class Budget {
    readonly format: Format;
    /** The number of model calls whose messages were sent unchanged, by session. */
    readonly passedThrough: Map<string, number> = new Recent<number>();
    readonly #settings: AdapterSettings;
    readonly #transport: Transport;
    readonly #lastCalls = new Recent<string>();
    readonly #warned = new Recent<true>();
    #served = false; // whether the settings have worked before
    #unreachable = false;

    constructor(format: Format, settings: AdapterSettings) {
        const client = settings.client ?? new Palimpsest();
        this.format = format;
        this.#settings = settings;
        this.#transport = client.transport.with({ timeout: settings.timeout ?? TIMEOUT_MS, maxRetries: 0 });
    }

    /**
     * Request the context for a call with these messages; undefined if they are to be sent unchanged.
     *
     * That is the case if the server is unreachable or refuses them, or if `call`, which converts the framework's
     * objects, throws. Throws StatusError for settings that have never worked, such as a wrong key.
     */
    async fit(session: string, call: () => FrameworkCall): Promise<FittedContext | undefined> {
        const fit = await this.#fit(session, call);
        if (fit === undefined) this.countUnchanged(session);
        return fit;
    }

    /** Count a model call whose messages are sent unchanged. */
    countUnchanged(session: string): void {
        this.passedThrough.set(session, (this.passedThrough.get(session) ?? 0) + 1);
    }

    async #fit(session: string, call: () => FrameworkCall): Promise<FittedContext | undefined> {
        const { model, max_tokens, outside_tokens, recall, observe, holdout, policy, metadata } = this.#settings;
        let asked: Asked;
        try {
            const { messages, system, tools, ...called } = call();
            asked = given({
                format: this.format,
                model: model ?? called.model,
                max_tokens: max_tokens ?? called.max_tokens,
                outside_tokens: outside_tokens ?? called.outside_tokens,
                recall: recall || undefined,
                observe: observe || undefined,
                holdout: holdout || undefined,
                messages,
                system: messages && (system ?? ""),
                tools,
            });
        } catch (error) {
            this.#warnRefused(session, "unreadable", String(error));
            return undefined;
        }
        const settings = given({ policy, metadata });
        if (!this.#lastCalls.has(session) && Object.keys(settings).length) {
            const body: Body<"put_session"> = given({ ...settings, model: asked.model ?? undefined });
            if (!(await this.#answer(this.#of(session).putSession(body), session))) return undefined;
        }
        return this.#request(session, asked);
    }

    async #request(session: string, asked: Asked): Promise<FittedContext | undefined> {
        const began = Date.now();
        const context = await this.#answer(this.#planned(session, asked), session);
        if (context === undefined) return undefined;
        this.#lastCalls.set(session, context.call_id);
        return new FittedContext(session, context, asked, began);
    }

    async #planned(session: string, asked: Asked): Promise<Context> {
        const context = await this.#of(session).postContext(asked);
        if (asked.messages && !isPlan(context, asked.messages.length)) {
            throw new UnreadableAnswer("the context has no plan for these messages");
        }
        return context;
    }

    /**
     * Report a successful call, and log the reply.
     *
     * Pass a `reply` only if the framework may not send it again, as for the last one of a run; any other is among the
     * messages of the next call. Errors are logged, never thrown.
     */
    async reportSuccess(fit: FittedContext, usage?: UsageIn, reply: readonly Message[] = []): Promise<void> {
        await this.#outcome(fit, usage ? { usage } : {});
        if (!reply.length) return;
        // Only directly after the call's own messages; otherwise the next call sends it.
        const messages = { format: this.format, messages: reply, expected_head: fit.context.head };
        await this.#quietly(this.#of(fit.context.line).appendMessages(messages));
    }

    /**
     * Report the provider's error. If the context was too long, return a smaller one for a retry.
     *
     * No context is made without `retry`, as for a call whose answer has begun, or for one that is only observed.
     */
    async reportFailure(fit: FittedContext, error: unknown, retry = true): Promise<FittedContext | undefined> {
        const outcome = await this.#outcome(fit, { error: errorReport(error) });
        if (!retry || fit.isObserved || outcome?.action !== "retry" || !outcome.next) return undefined;
        const { wait_ms } = outcome.next.body as { wait_ms?: number };
        // The wait for summaries must end before our own timeout.
        const wait = wait_ms === undefined ? {} : { wait_ms: Math.min(wait_ms, this.#transport.timeout / 2) };
        return this.#request(fit.session, { ...fit.asked, retry_of: fit.context.call_id, ...wait });
    }

    #outcome(fit: FittedContext, outcome: Body<"report_outcome">): Promise<Schemas["OutcomeOut"] | undefined> {
        const report = { ...outcome, latency_ms: Date.now() - fit.began };
        return this.#quietly(this.#of(fit.session).reportOutcome(fit.context.call_id, report));
    }

    /** Return whether a session has a log; true as well if the server cannot say. */
    async hasLog(session: string): Promise<boolean> {
        try {
            await this.#of(session).getSession();
            return true;
        } catch (error) {
            if (!(error instanceof PalimpsestError)) throw error;
            return !(error instanceof NotFoundError);
        }
    }

    /** Create a session that begins with the log of another. Errors are logged, never thrown. */
    async fork(session: string, id: string): Promise<void> {
        await this.#quietly(
            this.#transport.json({ method: "POST", path: path("sessions", session, "fork"), body: { id } }),
        );
    }

    /** Return the result of a call of the recall tool: JSON, or an error message for the model. */
    async recall(session: string, args: unknown): Promise<string> {
        if (typeof args !== "object" || args === null || Array.isArray(args)) {
            return "the arguments are not a JSON object";
        }
        try {
            const known = { call_id: this.#lastCalls.get(session) };
            return JSON.stringify(await this.#of(session).recall(given({ ...known, ...args })));
        } catch (error) {
            if (!(error instanceof PalimpsestError)) throw error;
            if (!(error instanceof StatusError)) this.#noteOutage(error);
            return error.message;
        }
    }

    /** Return the definition of the recall tool, without a provider's wrapping. */
    async recallTool(): Promise<{ name: string; description: string; parameters: Record<string, unknown> }> {
        const tool = await this.#transport.json<{ function: { description: string; parameters: object } }>({
            method: "GET",
            path: path("tools", "recall"),
            query: { format: "openai" },
        });
        return { name: RECALL, ...tool.function } as Awaited<ReturnType<Budget["recallTool"]>>;
    }

    /** Return the operations on a session, with the adapter's timeout and without retries. */
    #of(session: string): SessionOperations {
        return new SessionOperations(this.#transport, session);
    }

    /** Return the response to a request; undefined if the server is unreachable or refuses it. */
    async #answer<T>(request: Promise<T>, session: string): Promise<T | undefined> {
        let answer: T;
        try {
            answer = await request;
        } catch (error) {
            if (!(error instanceof PalimpsestError)) throw error;
            if (!this.#served && isAboutSettings(error)) throw error;
            if (isOutage(error)) this.#noteOutage(error);
            else this.#warnRefused(session, (error as StatusError).slug ?? error.name, reason(error));
            return undefined;
        }
        this.#served = true;
        if (this.#unreachable) {
            this.#unreachable = false;
            warn(`the server is back at ${this.#transport.baseURL}; contexts are within their budget again`);
        }
        return answer;
    }

    /** Return the response to a request; on an error of the server, log it and return undefined. */
    async #quietly<T>(request: Promise<T>): Promise<T | undefined> {
        try {
            return await request;
        } catch (error) {
            if (!(error instanceof PalimpsestError)) throw error;
            if (error instanceof ConflictError) return undefined; // reported before, or the conversation has continued
            if (isOutage(error)) this.#noteOutage(error);
            else warn(`a request failed: ${error.message}`);
            return undefined;
        }
    }

    /** Log an outage, once until the server is back. */
    #noteOutage(error: Error): void {
        if (this.#unreachable) return;
        this.#unreachable = true;
        warn(`the server is unreachable, so messages go to the model unchanged until it is back: ${error.message}`);
    }

    /** Log that the server refuses a session's messages, once for each session and kind of refusal. */
    #warnRefused(session: string, kind: string, why: string): void {
        if (this.#warned.has(`${session} ${kind}`)) return;
        this.#warned.set(`${session} ${kind}`, true);
        warn(`session ${session}: no context was made, so its messages go to the model unchanged: ${why}`);
    }
}

const warn = (message: string): void => console.warn(`palimpsest: ${message}`);

/** Return an object without its undefined members. */
function given<T extends object>(members: T): { [K in keyof T]: Exclude<T[K], undefined> } {
    const entries = Object.entries(members).filter(([, value]) => value !== undefined && value !== null);
    return Object.fromEntries(entries) as { [K in keyof T]: Exclude<T[K], undefined> };
}

const OUTAGES = [ConnectionFailed, ServerError, RateLimitError, RequestTimeoutError, ConflictError, UnreadableAnswer];
const LIMITS = [TooManySessionsError, TooManyLinesError];
const MISCONFIGURED = [AuthenticationError, PermissionDeniedError, NotFoundError, InvalidPolicyError];
const isOneOf = (error: Error, kinds: readonly (abstract new (...args: never[]) => Error)[]): boolean =>
    kinds.some((kind) => error instanceof kind);

/** Return whether the server apparently did not process the request. */
function isOutage(error: PalimpsestError): boolean {
    if (error instanceof StatusError && error.slug === undefined) return true; // a proxy's response
    return isOneOf(error, OUTAGES) && !isOneOf(error, LIMITS);
}

/** Return whether the server, not a proxy, reports that a setting, the key or the address is wrong. */
function isAboutSettings(error: PalimpsestError): boolean {
    if (!(error instanceof StatusError) || error.slug === undefined) return false;
    const fields = String(error.field).split(".");
    const wrong = error instanceof InvalidRequestError && fields.some((one) => SETTINGS.includes(one));
    return wrong || isOneOf(error, MISCONFIGURED);
}

/** Return the error's message; if no context fits, with the size of each part. */
function reason(error: PalimpsestError): string {
    if (!(error instanceof ContextInfeasibleError)) return error.message;
    const taken = Object.entries(error.bySource).map(([part, tokens]) => `${part} ${tokens}`);
    return `${error.detail} (tokens: ${taken.join(", ")})`;
}

/** Return whether a context has the fields that `FittedContext` and the adapters use. */
function isPlan(context: { [name: string]: any }, count: number): boolean {
    const { plan, inserted } = context;
    return (
        Array.isArray(plan) &&
        Array.isArray(inserted) &&
        plan.length === count &&
        [context["call_id"], context["line"]].every((one) => typeof one === "string") &&
        plan.every((step) => ACTIONS.includes(step?.action)) &&
        inserted.every((one) => one && ["before", "role", "text"].every((name) => name in one))
    );
}
