/**
 * The AI SDK (package `ai`, versions 5, 6 and 7): keep every call of a model within its budget.
 *
 *     wrapLanguageModel({ model, middleware: palimpsest({ session: "support-42" }) })
 *
 * Your message list keeps all messages; the model gets those that fit. Messages sent verbatim are the same objects.
 */

import { type AdapterSettings, Budget, type FittedContext } from "./adapt.js";
import { ChatPrompt, type Prompt, StreamedAnswer, lastReply, toolsOf, usageIn } from "./prompts.js";

type Json = Record<string, any>;

/** The parameters of a model call that the middleware reads; those of each version of the AI SDK have more. */
interface CallParams {
    prompt: Prompt;
    tools?: readonly { type: string }[] | undefined;
    providerOptions?: Record<string, Json> | undefined;
}

/** The model that the middleware wraps. */
interface Model {
    modelId: string;
    provider: string;
    doGenerate(params: any): PromiseLike<any>;
    doStream(params: any): PromiseLike<any>;
}

export interface AiSdkSettings extends AdapterSettings {
    /** The session's id, for calls without `providerOptions: { palimpsest: { session } }`. */
    session?: string;
}

/** A call in progress. */
interface Fitted {
    fit: FittedContext;
    prompt: ChatPrompt;
    /** The parameters as the framework gave them. */
    params: CallParams;
}

/** A middleware for `wrapLanguageModel`. Create one for each agent, and use it for all of its calls. */
export class PalimpsestMiddleware {
    /** The AI SDK 6 demands this value; 5 and 7 accept any. */
    readonly specificationVersion = "v3";
    readonly #budget: Budget;
    readonly #session: string | undefined;
    readonly #calls = new WeakMap<object, Fitted>();

    constructor(settings: AiSdkSettings = {}) {
        const { session, ...others } = settings;
        this.#session = session;
        this.#budget = new Budget("openai", others);
    }

    /** The number of model calls whose messages were sent unchanged, by session. */
    get passedThrough(): ReadonlyMap<string, number> {
        return this.#budget.passedThrough;
    }

    /**
     * Return the recall tool of a session, by default the middleware's, to define it with the AI SDK's `tool`.
     *
     *     const { parameters, ...recall } = await middleware.recall();
     *     tool({ ...recall, inputSchema: jsonSchema(parameters) })
     */
    async recall(session?: string): Promise<{
        description: string;
        parameters: Record<string, unknown>;
        execute: (input: unknown) => Promise<string>;
    }> {
        const id = session ?? this.#session;
        if (id === undefined) throw new TypeError("no session is given: name the one that the tool is to search");
        const { description, parameters } = await this.#budget.recallTool();
        return { description, parameters, execute: (input) => this.#budget.recall(id, input) };
    }

    /** Replace the prompt's messages by those that fit. */
    readonly transformParams = async <P extends CallParams>({
        params,
        model,
    }: {
        params: P;
        model: Model;
    }): Promise<P> => {
        const session: unknown = params.providerOptions?.["palimpsest"]?.["session"] ?? this.#session;
        if (typeof session !== "string") {
            throw new TypeError(
                "no session is given: pass providerOptions: { palimpsest: { session } }, or give the middleware one",
            );
        }
        let prompt: ChatPrompt | undefined;
        const fit = await this.#budget.fit(session, () => {
            prompt = new ChatPrompt(params.prompt);
            const { messages, system } = prompt;
            return { model: model.modelId, messages, system, tools: toolsOf(params.tools ?? []) };
        });
        return fit && prompt ? (this.#apply({ fit, prompt, params }) as P) : params;
    };

    /** Call the model; report the usage or the error. If the prompt was too long, call once more with a smaller one. */
    readonly wrapGenerate = async <R extends object>({
        doGenerate,
        params,
        model,
    }: {
        doGenerate: () => PromiseLike<R>;
        params: CallParams;
        model: Model;
    }): Promise<R> => {
        const call = this.#calls.get(params);
        if (call === undefined) return doGenerate();
        let result: Json;
        let fit = call.fit;
        try {
            result = await doGenerate();
        } catch (error) {
            const smaller = await this.#budget.reportFailure(fit, error);
            if (smaller === undefined) throw error;
            fit = smaller;
            try {
                result = await model.doGenerate(this.#apply({ ...call, fit }));
            } catch (again) {
                await this.#budget.reportFailure(fit, again, false);
                throw again;
            }
        }
        const { usage, providerMetadata, content } = result;
        await this.#budget.reportSuccess(fit, usageIn(usage, providerMetadata), lastReply(content));
        return result as R;
    };

    /** Open a stream; report its outcome when it ends. If it was refused before an answer began, open a smaller one. */
    readonly wrapStream = async <R extends { stream: ReadableStream<any> }>({
        doStream,
        params,
        model,
    }: {
        doStream: () => PromiseLike<R>;
        params: CallParams;
        model: Model;
    }): Promise<R> => {
        const call = this.#calls.get(params);
        if (call === undefined) return doStream();
        const opened = await begin(doStream);
        if (!opened.refused) return this.#watched(opened.result(), call.fit);
        const smaller = await this.#budget.reportFailure(call.fit, opened.refused.error);
        if (smaller === undefined) return opened.result();
        const again = await begin<R>(() => model.doStream(this.#apply({ ...call, fit: smaller })));
        if (!again.refused) return this.#watched(again.result(), smaller);
        await this.#budget.reportFailure(smaller, again.refused.error, false);
        return again.result();
    };

    /** Return parameters with the context's messages, and remember the call by them. */
    #apply(call: Fitted): CallParams {
        const params = { ...call.params, prompt: call.prompt.fitted(call.fit) } as CallParams;
        this.#calls.set(params, call);
        return params;
    }

    /** Return a result whose stream reports its outcome when it ends. */
    #watched<R extends { stream: ReadableStream<any> }>(result: R, fit: FittedContext): R {
        const answer = new StreamedAnswer();
        const failed = (error: unknown) => this.#budget.reportFailure(fit, error, false);
        const end = async () => {
            if (answer.failure) await failed(answer.failure.error);
            else await this.#budget.reportSuccess(fit, answer.usage, answer.reply());
        };
        const reader = result.stream.getReader();
        const stream = new ReadableStream(
            {
                pull: async (controller) => {
                    const step = await reader.read().catch(async (error: unknown) => {
                        await failed(error);
                        throw error;
                    });
                    if (!step.done) {
                        answer.feed(step.value);
                        controller.enqueue(step.value);
                        return;
                    }
                    await end();
                    controller.close();
                },
                cancel: async (why) => {
                    await reader.cancel(why);
                    await (answer.ended ? end() : failed(new Error("the stream was not read to its end")));
                },
            },
            { highWaterMark: 0 },
        );
        return { ...result, stream };
    }
}

/** Return a middleware for `wrapLanguageModel`. */
export function palimpsest(settings: AiSdkSettings = {}): PalimpsestMiddleware {
    return new PalimpsestMiddleware(settings);
}

/** A stream whose model has begun to answer, or refused to. */
interface Opened<R> {
    refused?: { error: unknown };
    /** Return the result with its whole stream; throws the error that was thrown. */
    result(): R;
}

const PROLOGUE = new Set(["stream-start", "response-metadata", "raw"]);

/** Open a stream and read it until the model begins to answer. */
async function begin<R extends { stream: ReadableStream<any> }>(doStream: () => PromiseLike<R>): Promise<Opened<R>> {
    const held: Json[] = [];
    try {
        const result = await doStream();
        const reader = result.stream.getReader();
        const read = async () => (held.length ? { done: false, value: held.shift() } : reader.read());
        const again = new ReadableStream(
            {
                async pull(controller) {
                    const { done, value } = await read();
                    if (done) controller.close();
                    else controller.enqueue(value);
                },
                cancel: (why) => reader.cancel(why),
            },
            { highWaterMark: 0 },
        );
        const opened = { result: () => ({ ...result, stream: again }) };
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return opened;
            held.push(value);
            if (value.type === "error") return { ...opened, refused: { error: value.error } };
            if (!PROLOGUE.has(value.type)) return opened;
        }
    } catch (error) {
        const result = (): R => {
            throw error;
        };
        return { result, refused: { error } };
    }
}
