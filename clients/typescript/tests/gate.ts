/** A proxy of the server on loopback that can fail, and the warnings that the package logs. */

import { type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after } from "node:test";
import { Palimpsest } from "palimpsest-context-client";

const TARGET = process.env["PALIMPSEST_URL"]!;
const PROBLEMS: Record<string, [number, object]> = {
    failing: [503, { type: "/problems/unavailable", detail: "shut" }],
    locked: [401, { type: "/problems/unauthorized", detail: "this key does not work" }],
    refusing: [422, { type: "/problems/invalid-message", detail: "unknown role", field: "role" }],
    hollow: [200, {}],
};

export interface Exchange {
    path: string;
    sent: any;
    received: any;
}

/** Forwards requests, unless its mode is a problem's. */
export class Gate {
    mode: "open" | "failing" | "locked" | "refusing" | "hollow" = "open";
    readonly seen: Exchange[] = [];
    readonly warnings: string[] = [];
    readonly client: Palimpsest;

    private constructor(url: string) {
        this.client = new Palimpsest({ baseURL: url });
    }

    static async open(): Promise<Gate> {
        const server = createServer(async (request, response) => {
            let sent = "";
            for await (const piece of request) sent += piece;
            const problem = PROBLEMS[gate.mode];
            if (problem) return answer(response, problem[0], JSON.stringify(problem[1]));
            const { "content-type": type } = request.headers;
            const there = await fetch(TARGET + request.url, {
                method: request.method!,
                headers: type ? { "content-type": type } : {},
                ...(sent && { body: sent }),
            });
            const received = await there.text();
            const path = new URL(request.url!, TARGET).pathname;
            gate.seen.push({ path, sent: parsed(sent), received: parsed(received) });
            answer(response, there.status, received);
        });
        await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
        const gate = new Gate(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
        const { warn } = console;
        console.warn = (message: string) => gate.warnings.push(message);
        after(() => {
            console.warn = warn;
            server.close().closeAllConnections();
        });
        return gate;
    }

    /** The exchanges whose path has this ending. */
    at(ending: string): Exchange[] {
        return this.seen.filter(({ path }) => path.endsWith(ending));
    }
}

function answer(response: ServerResponse, status: number, body: string): void {
    response.writeHead(status, { "content-type": "application/json" }).end(body);
}

function parsed(body: string): unknown {
    return body ? JSON.parse(body) : undefined;
}
