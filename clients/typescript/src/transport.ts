/** Requests over `fetch`, with retries. */

import {
    ConnectionFailed,
    ConnectionTimedOut,
    NotReproducibleError,
    StatusError,
    UnreadableAnswer,
    errorOf,
} from "./errors.js";
import { VERSION } from "./version.js";

export interface ClientOptions {
    /** The server's address. Default: the environment's PALIMPSEST_URL, else http://127.0.0.1:8700. */
    baseURL?: string | undefined;
    /** The API key. Default: the environment's PALIMPSEST_API_KEY, else none. */
    apiKey?: string | undefined;
    /** Milliseconds to wait for each attempt of a request. Default: 60,000. */
    timeout?: number | undefined;
    /** How often a request that failed temporarily is sent again. Default: 2. */
    maxRetries?: number | undefined;
    /** Headers that are sent with every request. */
    headers?: Record<string, string> | undefined;
    /** The function that sends requests. Default: the platform's own `fetch`. */
    fetch?: typeof fetch | undefined;
}

export interface RequestOptions {
    /** A request repeated with the same key gets the first response. Default: a random key for all attempts. */
    idempotencyKey?: string;
    /** Cancels the request. */
    signal?: AbortSignal;
}

/** A request to the server. Members of `query` and `body` that are null or undefined are not sent. */
export interface Request {
    method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
    path: string;
    query?: object | undefined;
    body?: object | undefined;
    options?: RequestOptions | undefined;
    /** Whether a repeated request gets the same answer. Default: true. */
    repeatable?: boolean;
}

const DEFAULT_URL = "http://127.0.0.1:8700";
const TIMEOUT_MS = 60_000;
const MAX_RETRIES = 2;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8_000;
/** The longest `Retry-After` that is honored; for a longer one the error is thrown immediately. */
const RETRY_AFTER_MAX_MS = 60_000;
const RETRIED_STATUSES = new Set([408, 429, 500, 502, 503, 504]);
/** The read timeout of a stream; the server sends comments more often. */
const STREAM_SILENCE_MS = 90_000;

/** Join parts to a path under /v1, each of them escaped. */
export function path(...parts: (string | number)[]): string {
    const escaped = parts.map((part) => encodeURIComponent(part).replace(/%3A/g, ":").replace(/%40/g, "@"));
    return `/v1/${escaped.join("/")}`;
}

/** Sends requests, and retries those that failed temporarily. */
export class Transport {
    readonly baseURL: string;
    readonly timeout: number;
    readonly maxRetries: number;
    readonly #options: ClientOptions;
    readonly #fetch: typeof fetch;

    constructor(options: ClientOptions) {
        this.#options = options;
        this.baseURL = (options.baseURL || environment("PALIMPSEST_URL") || DEFAULT_URL).replace(/\/+$/, "");
        this.timeout = options.timeout ?? TIMEOUT_MS;
        this.maxRetries = options.maxRetries ?? MAX_RETRIES;
        this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    }

    /** Return a copy with other options; headers are added. */
    with(options: ClientOptions): Transport {
        const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
        return new Transport({ ...this.#options, ...given, headers: { ...this.#options.headers, ...options.headers } });
    }

    /** Return the response's JSON; undefined if it has no content. Throws ConnectionFailed or StatusError. */
    async json<T>(request: Request): Promise<T> {
        return (await this.answered<T>(request)).data;
    }

    /** Return the response's JSON with its status. */
    async answered<T>(request: Request): Promise<{ status: number; data: T }> {
        const { response, text } = await this.#send(request);
        if (response.status === 204) return { status: 204, data: undefined as T };
        try {
            const data: unknown = JSON.parse(text);
            if (typeof data === "object" && data !== null) return { status: response.status, data: data as T };
        } catch {
            // not JSON
        }
        throw new UnreadableAnswer(`${response.url} returned a response that is not a JSON object`);
    }

    /** Return the response's text. */
    async text(request: Request): Promise<string> {
        return (await this.#send(request)).text;
    }

    /** Open a streamed response, without retries. Without a `touch` for too long, or by `close`, it is aborted. */
    async stream(
        request: Request,
        headers: Record<string, string>,
    ): Promise<{ response: Response; touch: () => void; close: () => void }> {
        const abort = new AbortController();
        const silent = () => abort.abort(new DOMException("the stream was silent for too long", "TimeoutError"));
        let timer = setTimeout(silent, this.timeout);
        const touch = () => {
            clearTimeout(timer);
            timer = setTimeout(silent, STREAM_SILENCE_MS);
        };
        const close = () => {
            clearTimeout(timer);
            abort.abort();
        };
        const init = this.#init(request);
        for (const [name, value] of Object.entries(headers)) init.headers.set(name, value);
        const outer = request.options?.signal;
        const signal = AbortSignal.any([abort.signal, ...(outer ? [outer] : [])]);
        try {
            const response = await this.#fetch(this.#url(request), { ...init, signal });
            if (!response.ok) throw await errorOf(response);
            touch();
            return { response, touch, close };
        } catch (error) {
            clearTimeout(timer);
            throw this.failure(error, outer);
        }
    }

    async #send(request: Request): Promise<{ response: Response; text: string }> {
        const init = this.#init(request);
        for (let attempt = 0; ; attempt++) {
            try {
                return await this.#attempt(request, init);
            } catch (error) {
                const pause = this.#pause(request, error, attempt);
                if (pause === undefined) throw error;
                await new Promise((resolve) => setTimeout(resolve, pause));
            }
        }
    }

    async #attempt(request: Request, init: { headers: Headers }): Promise<{ response: Response; text: string }> {
        const outer = request.options?.signal;
        const { wait_ms: waits = 0 } = { ...request.query, ...request.body } as { wait_ms?: number };
        const signals = [AbortSignal.timeout(this.timeout + waits), ...(outer ? [outer] : [])];
        try {
            const response = await this.#fetch(this.#url(request), { ...init, signal: AbortSignal.any(signals) });
            if (!response.ok) throw await errorOf(response);
            return { response, text: await response.text() };
        } catch (error) {
            throw this.failure(error, outer);
        }
    }

    /** Return the error of a request as one of this package's. A caller's own abort is thrown as it is. */
    failure(error: unknown, signal?: AbortSignal): unknown {
        if (error instanceof StatusError || signal?.aborted) return error;
        const cause = error instanceof Error ? error : new Error(String(error));
        const why = (cause.cause instanceof Error && cause.cause.message) || cause.message;
        if (cause.name === "TimeoutError")
            return new ConnectionTimedOut(`${this.baseURL} did not respond in time`, { cause });
        return new ConnectionFailed(
            `${this.baseURL} cannot be reached: ${why.replace(/\.$/, "")}. Is the server running, and is PALIMPSEST_URL correct?`,
            { cause },
        );
    }

    #init(request: Request): { method: string; headers: Headers; body?: string } {
        const headers = new Headers({
            "User-Agent": `palimpsest-context-client-ts/${VERSION}`,
            ...this.#options.headers,
        });
        const key = this.#options.apiKey || environment("PALIMPSEST_API_KEY");
        if (key) headers.set("Authorization", `Bearer ${key}`);
        if (request.method === "POST") {
            headers.set("Idempotency-Key", request.options?.idempotencyKey ?? crypto.randomUUID());
        }
        if (request.body === undefined) return { method: request.method, headers };
        headers.set("Content-Type", "application/json");
        const body = JSON.stringify(
            Object.fromEntries(Object.entries(request.body).filter(([, value]) => value != null)),
        );
        return { method: request.method, headers, body };
    }

    #url(request: Request): string {
        const query = new URLSearchParams();
        for (const [name, value] of Object.entries(request.query ?? {})) {
            for (const one of Array.isArray(value) ? value : [value]) if (one != null) query.append(name, String(one));
        }
        const asked = query.size ? `?${query}` : "";
        return `${this.baseURL}${request.path}${asked}`;
    }

    /** Return the milliseconds until the next attempt; undefined if there is none. A 409 is never retried. */
    #pause(request: Request, error: unknown, attempt: number): number | undefined {
        if (attempt >= this.maxRetries) return undefined;
        if (error instanceof StatusError) {
            if (!RETRIED_STATUSES.has(error.status) || error instanceof NotReproducibleError) return undefined;
            const named = retryAfter(error.response.headers.get("retry-after"));
            if (named !== undefined) return named <= RETRY_AFTER_MAX_MS ? named : undefined;
        } else if (!(error instanceof ConnectionFailed) || request.repeatable === false) {
            return undefined;
        }
        return Math.min(FIRST_PAUSE_MS * 2 ** attempt, LONGEST_PAUSE_MS) * (1 - Math.random() / 4);
    }
}

/** Return the milliseconds of a `Retry-After` header, given as a number of seconds or a date. */
function retryAfter(header: string | null): number | undefined {
    if (header === null || header.trim() === "") return undefined;
    const milliseconds = Number(header) * 1000;
    if (Number.isFinite(milliseconds)) return Math.max(0, milliseconds);
    const until = Date.parse(header);
    return Number.isNaN(until) ? undefined : Math.max(0, until - Date.now());
}

/** Return a variable of the environment, where the platform has one. */
function environment(name: string): string | undefined {
    const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
    return process?.env?.[name] || undefined;
}
