/** Call every method with placeholders; print the method and path of each request. */

import { Palimpsest, SessionOperations } from "palimpsest-context-client";

const requests: string[] = [];
const palimpsest = new Palimpsest({
    baseURL: "http://server",
    async fetch(input, init) {
        requests.push(`${init?.method} ${new URL(String(input)).pathname}`);
        const { body } = new Response("event: appended\nid: 1\ndata: {}\n\n");
        return String(input).endsWith("/stream")
            ? new Response(body)
            : Response.json({ items: [], events: [{ seq: 1 }] });
    },
});
const session = palimpsest.session("sid");

type Method = (...given: unknown[]) => PromiseLike<unknown> | AsyncIterable<unknown>;
const found: Record<string, string[]> = {};
for (const [owner, kind] of [
    [palimpsest, Palimpsest.prototype],
    [session, SessionOperations.prototype],
    [session, Object.getPrototypeOf(session)],
] as const) {
    for (const name of Object.getOwnPropertyNames(kind)) {
        const { value } = Object.getOwnPropertyDescriptor(kind, name)!;
        if (name === "constructor" || typeof value !== "function" || ["session", "withOptions"].includes(name))
            continue;
        requests.length = 0;
        const called = (value as Method).call(owner, "first", "second");
        if (name === "stream") for await (const _ of called as AsyncIterable<unknown>) break;
        else await Promise.resolve(called).catch(() => undefined);
        found[name] = [...requests];
    }
}
console.log(JSON.stringify(found));
