/** Streams of a session's events and changes, resumed after a broken connection. */

import { ConnectionFailed, PalimpsestError, UnavailableError } from "./errors.js";
import type { Transport } from "./transport.js";
import type { EventOut, Schemas } from "./types.js";

/** A message of a stream: an appended event, or a change. `id` is the position from which it can be resumed. */
export type StreamEvent =
    | { kind: "appended"; data: EventOut; id: string }
    | { kind: "epoch"; data: Schemas["EpochChange"]; id: string }
    | { kind: "compaction"; data: Schemas["CompactionChange"]; id: string };

export interface StreamOptions {
    /** Begin after this seq. Default: with the next event. */
    after?: number;
    /** Only messages of these kinds. */
    types?: StreamEvent["kind"][];
    /** Resume after the message with this id. */
    lastId?: string;
    /** Ends the stream. */
    signal?: AbortSignal;
}

const KINDS = new Set(["appended", "epoch", "compaction"]);
/** The maximum size of an event: twice the largest request that a server accepts by default. */
const EVENT_CHARS_MAX = 64 * 1024 * 1024;

/** Yield the events and changes after a position, then new ones as they happen, until the caller stops. */
export async function* watch(
    transport: Transport,
    path: string,
    { after, types, lastId, signal }: StreamOptions,
): AsyncGenerator<StreamEvent, never> {
    const decoder = new Decoder(lastId);
    const query = { after, types: types?.join(",") };
    const options = signal && { signal };
    for (let failures = 0; ;) {
        try {
            decoder.begin();
            const headers: Record<string, string> =
                decoder.lastId === undefined ? {} : { "Last-Event-ID": decoder.lastId };
            const { response, touch, close } = await transport.stream({ method: "GET", path, query, options }, headers);
            try {
                const text = new TextDecoder();
                for await (const piece of piecesOf(response)) {
                    touch();
                    failures = 0;
                    yield* decoder.read(text.decode(piece, { stream: true }));
                }
            } catch (error) {
                throw transport.failure(error, signal);
            } finally {
                close();
            }
        } catch (error) {
            const temporary = error instanceof ConnectionFailed || error instanceof UnavailableError;
            if (!temporary || ++failures > transport.maxRetries) throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, decoder.retryMs));
    }
}

async function* piecesOf(response: Response): AsyncGenerator<Uint8Array> {
    const reader = response.body!.getReader(); // the async iterator of a body is not in all browsers
    for (let step = await reader.read(); !step.done; step = await reader.read()) yield step.value;
}

/** Decodes server-sent events. */
class Decoder {
    retryMs = 1_000;
    #rest = "";
    #event = "";
    #data: string[] = [];
    #size = 0;

    constructor(public lastId: string | undefined) {}

    /** Forget what a broken connection has left. */
    begin(): void {
        this.#rest = "";
        this.#clear();
    }

    *read(text: string): Generator<StreamEvent> {
        this.#rest += text;
        const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
        this.#rest = lines.pop()!;
        for (const line of lines) {
            this.#size += line.length;
            const message = this.#feed(line);
            if (message) yield message;
        }
        if (this.#size + this.#rest.length > EVENT_CHARS_MAX) {
            throw new PalimpsestError(`the stream has an event of more than ${EVENT_CHARS_MAX} characters`);
        }
    }

    #feed(line: string): StreamEvent | undefined {
        if (line === "") return this.#end();
        const at = line.indexOf(":");
        const name = at < 0 ? line : line.slice(0, at);
        const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
        if (name === "event") this.#event = value;
        else if (name === "data") this.#data.push(value);
        else if (name === "id") this.lastId = value;
        else if (name === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
        return undefined;
    }

    #end(): StreamEvent | undefined {
        const [kind, data] = [this.#event, this.#data];
        this.#clear();
        if (!data.length || !KINDS.has(kind)) return undefined;
        return { kind, data: JSON.parse(data.join("\n")), id: this.lastId ?? "" } as StreamEvent;
    }

    #clear(): void {
        this.#event = "";
        this.#data = [];
        this.#size = 0;
    }
}
