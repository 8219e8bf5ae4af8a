// A program over the types that openapi-typescript makes of the API's document. It is compiled and never run.

import type { components, paths } from "./api";

type Append = paths["/v1/sessions/{sid}/events"]["post"];
type Answers = Append["responses"];
type Problem = {
    [Status in keyof Answers]: Answers[Status] extends { content: { "application/problem+json": infer Body } }
        ? Body
        : never;
}[keyof Answers];

/** Every problem that an append can be answered with, and no other. */
export function remedy(problem: Problem): string | number {
    switch (problem.type) {
        case "/problems/head-conflict":
            return problem.head;
        case "/problems/conflict":
        case "/problems/idempotency-conflict":
        case "/problems/too-many-sessions":
            return problem.status satisfies 409;
        case "/problems/duplicate-call":
        case "/problems/invalid-event":
        case "/problems/invalid-json":
        case "/problems/invalid-request":
        case "/problems/unknown-call":
            return problem.status satisfies 422;
        case "/problems/too-many-events":
        case "/problems/too-many-requests":
            return problem.status satisfies 429;
        case "/problems/overloaded":
        case "/problems/store-unavailable":
            return problem.status satisfies 503;
        case "/problems/contents-erased":
            return problem.status satisfies 410;
        case "/problems/body-too-large":
        case "/problems/forbidden":
        case "/problems/head-too-large":
        case "/problems/internal":
        case "/problems/malformed-http":
        case "/problems/not-found":
        case "/problems/not-local":
        case "/problems/too-slow":
        case "/problems/unauthorized":
            return problem.detail;
        default:
            return problem satisfies never;
    }
}

export function forgets(problem: Answers[409]["content"]["application/problem+json"]): number {
    switch (problem.type) {
        case "/problems/head-conflict":
            return problem.head;
        case "/problems/conflict":
        case "/problems/idempotency-conflict":
            return problem.status;
        default:
            // @ts-expect-error `too-many-sessions` has no case
            return problem satisfies never;
    }
}

export function unknown(problem: components["schemas"]["HeadConflictProblem"], all: Problem): void {
    // @ts-expect-error a field that no problem has
    void problem.haed;
    // @ts-expect-error a field that only some of these have
    void all.head;
    // @ts-expect-error a problem that an append is never answered with
    void (all.type === "/problems/context-infeasible");
}

export const right: components["schemas"]["EventsIn"] = { events: [{ type: "user.message", content: "Hello." }] };
export const brief: components["schemas"]["ContextIn"] = { format: "gemini", messages: [{ role: "user", parts: [] }] };
// @ts-expect-error a field that a body does not have
export const wrong: components["schemas"]["EventsIn"] = { events: [], expectd_head: 1 };

export function outcome(manifest: components["schemas"]["Manifest"]): number | null | undefined {
    return manifest.outcome?.error?.overflow?.window;
}
