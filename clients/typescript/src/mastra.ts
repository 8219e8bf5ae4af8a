/**
 * Mastra (package `@mastra/core`): keep every model call of an agent within its budget.
 *
 *     const memory = new PalimpsestProcessor({ max_tokens: 32_000 });
 *     new Agent({ …, inputProcessors: [memory], errorProcessors: [memory] })
 *
 * The agent's own memory keeps all messages; the model gets those that fit.
 */

import { type AdapterSettings, Budget, type FittedContext } from "./adapt.js";
import { ChatPrompt, type Prompt, StreamedAnswer, toolsOf } from "./prompts.js";

type Json = Record<string, any>;

/** The arguments of all methods; those of Mastra have more. */
interface Step {
    /** The state of this processor, kept during a run. */
    state: Record<string, unknown>;
    requestContext?: { get(key: any): unknown } | undefined;
}

export interface MastraSettings extends AdapterSettings {
    /** The session's id. Default: the id of the agent's memory thread. */
    session?: string;
}

const STATE = "call";

/** What is known of a run's current call. */
interface CallState {
    tools?: Json[];
    fit?: FittedContext | undefined;
    /** A smaller context after an overflow, for the next attempt. */
    retry?: FittedContext | undefined;
    begun?: boolean;
}

/** A processor for agents: list it in `inputProcessors` and in `errorProcessors`. */
export class PalimpsestProcessor {
    readonly id = "palimpsest";
    readonly #budget: Budget;
    readonly #session: string | undefined;

    constructor(settings: MastraSettings = {}) {
        const { session, ...others } = settings;
        this.#session = session;
        this.#budget = new Budget("openai", others);
    }

    /** The number of model calls whose messages were sent unchanged, by session. */
    get passedThrough(): ReadonlyMap<string, number> {
        return this.#budget.passedThrough;
    }

    /** Return the parts of the recall tool of a session, by default the processor's, for `createTool`. */
    async recall(session = this.#session): Promise<{
        id: string;
        description: string;
        parameters: Record<string, unknown>;
        execute: (input: unknown) => Promise<string>;
    }> {
        if (session === undefined) throw new TypeError("no session is given: name the one that the tool is to search");
        const { name, ...tool } = await this.#budget.recallTool();
        return { id: name, ...tool, execute: (input) => this.#budget.recall(session, input) };
    }

    /** Remember the tools of the step, which count towards the budget. */
    processInputStep({ state, tools }: Step & { tools?: Record<string, unknown> }): undefined {
        const defined = Object.entries(tools ?? {}).map(([name, tool]) => {
            const { description, parameters } = tool as Json;
            return { type: "function", name, description, inputSchema: parameters?.jsonSchema ?? {} };
        });
        callOf(state).tools = defined;
        return undefined;
    }

    /** Replace the prompt's messages by those that fit. */
    async processLLMRequest<P extends Prompt>({
        prompt,
        model,
        state,
        requestContext,
    }: Step & { prompt: P; model: { modelId: string } }): Promise<{ prompt: P } | undefined> {
        const call = callOf(state);
        let own: ChatPrompt | undefined;
        const { retry } = call;
        call.retry = undefined;
        call.begun = false;
        if (retry) {
            own = new ChatPrompt(prompt);
            call.fit = own.pieces.length === retry.plan.length ? retry : undefined;
        } else call.fit = undefined;
        call.fit ??= await this.#budget.fit(this.#sessionOf(requestContext), () => {
            own = new ChatPrompt(prompt);
            const { messages, system } = own;
            return { model: model.modelId, messages, system, ...(call.tools && { tools: toolsOf(call.tools) }) };
        });
        return call.fit && own ? { prompt: own.fitted(call.fit) as P } : undefined;
    }

    /** Report the usage, and log the last answer of a run. */
    async processLLMResponse({
        chunks,
        state,
        fromCache,
    }: Step & { chunks: { type: string; payload: unknown }[]; fromCache: boolean }): Promise<undefined> {
        const call = callOf(state);
        if (call.fit === undefined || fromCache) return undefined;
        const answer = new StreamedAnswer();
        for (const { type, payload } of chunks) answer.feed(partOf(type, payload as Json));
        call.begun = answer.begun;
        if (answer.failure) return undefined; // reported by processAPIError
        await this.#budget.reportSuccess(call.fit, answer.usage, answer.reply());
        call.fit = undefined;
        return undefined;
    }

    /** Report the error; if the prompt was too long, retry the step with a smaller one. */
    async processAPIError({ error, state }: Step & { error: unknown }): Promise<{ retry: boolean }> {
        const call = callOf(state);
        const { fit } = call;
        call.fit = undefined;
        // One retry for each overflow: the smaller context of a retry is not made smaller again.
        const once = fit !== undefined && fit.asked.retry_of === undefined && !call.begun;
        call.retry = fit && (await this.#budget.reportFailure(fit, error, once));
        return { retry: call.retry !== undefined };
    }

    #sessionOf(context: Step["requestContext"]): string {
        const memory = context?.get("MastraMemory") as { thread?: { id?: string } } | undefined;
        const session = this.#session ?? memory?.thread?.id;
        if (session !== undefined) return session;
        throw new TypeError("no session is given: give the agent a memory and a thread, or the processor a session");
    }
}

function callOf(state: Record<string, unknown>): CallState {
    return (state[STATE] ??= {}) as CallState;
}

/** Return a chunk of Mastra's as the part of the AI SDK that it was. */
function partOf(type: string, payload: Json): Json {
    if (type === "text-delta") return { type, id: payload["id"], delta: payload["text"] };
    if (type === "error") return { type, error: payload["error"] };
    if (type !== "finish") return { type, ...payload };
    const usage = payload["output"]?.usage;
    const raw = typeof usage?.raw?.inputTokens === "object" ? usage.raw : usage;
    return { type, usage: raw, providerMetadata: payload["metadata"]?.providerMetadata };
}
