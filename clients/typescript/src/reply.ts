/** Replies of a model, with the same interface in every format. */

import { PalimpsestError } from "./errors.js";
import type { ToolCall } from "./formats.js";
import type { UsageIn } from "./types.js";

/** A logged answer of a model. */
export interface Reply {
    /** The text of the answer, without reasoning. */
    readonly content: string;
    /** The tool calls to run. Calls of the recall tool were answered by `send`. */
    readonly toolCalls: ToolCall[];
    /** The answer as the SDK returned it; for a stream, the assembled answer. */
    readonly raw: unknown;
    /** The tokens used, as the provider counted them. */
    readonly usage: UsageIn | undefined;
    /** The reason why the model stopped, in the provider's words. */
    readonly stopReason: string | undefined;
    /** The id of the recorded call that it answers. */
    readonly callId: string;
    /** The answer in its provider's format, as it was logged. */
    readonly messages: object[];
}

/**
 * A streamed reply. Iterate over it for the SDK's chunks; after the last one it is logged, and has `content`,
 * `toolCalls` and the other properties. Leaving the loop earlier logs the text received so far as partial.
 */
export class StreamedReply<Chunk> implements Reply, AsyncIterableIterator<Chunk> {
    readonly #chunks: AsyncGenerator<unknown, Reply | undefined>;
    #first: IteratorResult<unknown, Reply | undefined> | undefined;
    #reply: Reply | undefined;

    constructor(chunks: AsyncGenerator<unknown, Reply | undefined>, first: IteratorResult<unknown, Reply | undefined>) {
        this.#chunks = chunks;
        this.#first = first;
    }

    [Symbol.asyncIterator](): this {
        return this;
    }

    async next(): Promise<IteratorResult<Chunk, undefined>> {
        const step = this.#first ?? (await this.#chunks.next());
        this.#first = undefined;
        if (!step.done) return step as IteratorYieldResult<Chunk>;
        this.#reply ??= step.value;
        return { done: true, value: undefined };
    }

    /** Stop the stream. If it is incomplete, the text received so far is logged as partial. */
    async return(): Promise<IteratorResult<Chunk, undefined>> {
        this.#first = undefined;
        const ended = await this.#chunks.return(undefined);
        if (ended.done) this.#reply ??= ended.value;
        return { done: true, value: undefined };
    }

    /** Read the stream to its end, and return the complete reply. */
    async done(): Promise<Reply> {
        for await (const _ of this); // its chunks are not needed
        return this.#complete;
    }

    get #complete(): Reply {
        if (this.#reply) return this.#reply;
        throw new PalimpsestError("read the reply to its end first: `for await (const chunk of reply) …`");
    }

    get content(): string {
        return this.#complete.content;
    }

    get toolCalls(): ToolCall[] {
        return this.#complete.toolCalls;
    }

    get raw(): unknown {
        return this.#complete.raw;
    }

    get usage(): UsageIn | undefined {
        return this.#complete.usage;
    }

    get stopReason(): string | undefined {
        return this.#complete.stopReason;
    }

    get callId(): string {
        return this.#complete.callId;
    }

    get messages(): object[] {
        return this.#complete.messages;
    }
}
