/** All errors that this package throws, as a tree: by HTTP status, and below that by the kind of problem. */

import type { AppendedOut } from "./types.js";

/** The base of all errors of this package. */
export class PalimpsestError extends Error {
    constructor(message: string, options?: ErrorOptions) {
        super(message, options);
        this.name = new.target.name;
    }
}

/** The server could not be reached, or the connection broke before the response arrived. */
export class ConnectionFailed extends PalimpsestError {}

/** The server did not respond in time. */
export class ConnectionTimedOut extends ConnectionFailed {}

/** The response is a success but not from a Palimpsest server: a proxy's page, or JSON of another shape. */
export class UnreadableAnswer extends PalimpsestError {}

/** The model repeatedly did nothing but use the recall tool. All of its calls and their results are in the log. */
export class RecallLoop extends PalimpsestError {}

/** The model's answer could not be logged. It is in `reply`, and the error is `cause`. */
export class ReplyNotLogged<R = unknown> extends PalimpsestError {
    constructor(
        readonly reply: R,
        cause: PalimpsestError,
    ) {
        super(`the model's answer was not logged: ${cause.message}`, { cause });
    }
}

/** The members of a problem (RFC 9457), such as `head` of a `head-conflict`. */
export interface ProblemBody {
    type?: string;
    title?: string;
    detail?: string;
    [member: string]: unknown;
}

/** Return the kind of a problem, such as `head-conflict`; undefined if a proxy answered. */
function slugOf(problem: ProblemBody): string | undefined {
    return problem.type === undefined ? undefined : String(problem.type).split("/").at(-1);
}

/** The server responded with an error. */
export class StatusError extends PalimpsestError {
    readonly status: number;
    /** The kind of the problem, such as `head-conflict`; undefined if a proxy answered. */
    readonly slug: string | undefined;
    readonly detail: string;

    constructor(
        readonly problem: ProblemBody,
        readonly response: Response,
    ) {
        const slug = slugOf(problem);
        const title = problem.title ?? response.statusText;
        super(`${response.status} ${slug ?? title}: ${problem.detail ?? title}`);
        this.status = response.status;
        this.slug = slug;
        this.detail = problem.detail ?? "";
    }

    /** The field of the request at fault, if any. */
    get field(): string | undefined {
        return this.problem["field"] as string | undefined;
    }

    /** The part of a step in one request that failed: `outcome`, `append` or `context`. */
    get part(): string | undefined {
        return this.problem["part"] as string | undefined;
    }

    /** The result of the step's append, which stays made if only the context failed. */
    get appended(): AppendedOut | undefined {
        return this.problem["appended"] as AppendedOut | undefined;
    }
}

/** 400: the server did not receive a valid HTTP request. */
export class BadRequestError extends StatusError {}

/** 401: the request has no valid API key. */
export class AuthenticationError extends StatusError {}

/** 403: the key does not allow this. */
export class PermissionDeniedError extends StatusError {}

/** A server without keys answers only requests from its own machine. */
export class NotLocalError extends PermissionDeniedError {}

/** 404: the resource does not exist, or the key has no access to it. */
export class NotFoundError extends StatusError {}

/** 408: the request took too long to arrive. */
export class RequestTimeoutError extends StatusError {}

/** 409: the request conflicts with the current state. It is never retried. */
export class ConflictError extends StatusError {}

/** Events were appended in the meantime: the session's head is not `expected_head`. Nothing was appended. */
export class HeadConflictError extends ConflictError {
    /** The session's actual head. */
    get head(): number {
        return this.problem["head"] as number;
    }
}

/** The idempotency key or event id was used before with different content. */
export class IdempotencyConflictError extends ConflictError {}

/** The erasure would erase a different number of sessions than `expected`. Nothing was erased. */
export class ErasureCountConflictError extends ConflictError {
    /** The number of sessions that would be erased. */
    get sessions(): number {
        return this.problem["sessions"] as number;
    }
}

/** The tenant has reached its limit of sessions. */
export class TooManySessionsError extends ConflictError {}

/** The session has reached its limit of lines. */
export class TooManyLinesError extends ConflictError {}

/** 410: the requested data was erased. */
export class GoneError extends StatusError {}

/** The session was erased on request. To start again under its name, create it with its metadata. */
export class SessionErasedError extends GoneError {}

/** The key that the tenant's contents were encrypted with was dropped, so they can never be read again. */
export class ContentsErasedError extends GoneError {}

/** 413: the body is over a limit. */
export class TooLargeError extends StatusError {}

/** 422: the request was understood but cannot be executed. */
export class InvalidRequestError extends StatusError {}

/** An event is invalid. */
export class InvalidEventError extends InvalidRequestError {}

/** A message is not valid in the given format. */
export class InvalidMessageError extends InvalidRequestError {}

/** The policy is not valid. */
export class InvalidPolicyError extends InvalidRequestError {}

/** A tool result names no open tool call. */
export class UnknownCallError extends InvalidRequestError {}

/** A tool call has the same id as one that is still open. */
export class DuplicateCallError extends InvalidRequestError {}

/** The session has nothing to send to a model yet. */
export class NothingToSendError extends InvalidRequestError {}

/** Injected content exceeds its reserve. */
export class InjectionOverReserveError extends InvalidRequestError {}

/** No valid context fits the target. */
export class ContextInfeasibleError extends InvalidRequestError {
    /** The size of the smallest valid context, in the model's tokens. */
    get minimumTokens(): number {
        return this.problem["minimum_tokens"] as number;
    }

    /** Tokens by part of the smallest context. */
    get bySource(): Record<string, number> {
        return (this.problem["by_source"] ?? {}) as Record<string, number>;
    }
}

/** 429: a limit was exceeded, even after the retries. */
export class RateLimitError extends StatusError {}

/** 500 and above: the server failed, even after the retries. */
export class ServerError extends StatusError {}

/** A recorded call no longer renders to the same bytes. It is not retried, since that would not help. */
export class NotReproducibleError extends ServerError {}

/** 503: the server is too busy, or its database is unreachable, even after the retries. */
export class UnavailableError extends ServerError {}

const BY_SLUG: Record<string, typeof StatusError> = {
    "not-local": NotLocalError,
    "head-conflict": HeadConflictError,
    "idempotency-conflict": IdempotencyConflictError,
    "erasure-count-conflict": ErasureCountConflictError,
    "too-many-sessions": TooManySessionsError,
    "too-many-lines": TooManyLinesError,
    "session-erased": SessionErasedError,
    "contents-erased": ContentsErasedError,
    "invalid-event": InvalidEventError,
    "invalid-message": InvalidMessageError,
    "invalid-policy": InvalidPolicyError,
    "unknown-call": UnknownCallError,
    "duplicate-call": DuplicateCallError,
    "nothing-to-send": NothingToSendError,
    "injection-over-reserve": InjectionOverReserveError,
    "context-infeasible": ContextInfeasibleError,
    "not-reproducible": NotReproducibleError,
};

const BY_STATUS: Record<number, typeof StatusError> = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    408: RequestTimeoutError,
    409: ConflictError,
    410: GoneError,
    413: TooLargeError,
    422: InvalidRequestError,
    429: RateLimitError,
    503: UnavailableError,
};

/** Return the error for an unsuccessful response. */
export async function errorOf(response: Response): Promise<StatusError> {
    const text = await response.text().catch(() => "");
    let problem: ProblemBody = { detail: text.slice(0, 500) }; // a proxy's page
    try {
        const parsed: unknown = JSON.parse(text);
        if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) problem = parsed as ProblemBody;
    } catch {
        // not JSON
    }
    const fallback = response.status >= 500 ? ServerError : StatusError;
    const kind = BY_SLUG[slugOf(problem) ?? ""] ?? BY_STATUS[response.status] ?? fallback;
    return new kind(problem, response);
}
