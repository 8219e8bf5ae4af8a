/** A program whose marked lines are mistakes. It is compiled and never run. */

import OpenAI from "openai";
import { Palimpsest, type Problem } from "palimpsest-context-client";

export async function wrong(): Promise<void> {
    const openai = new OpenAI();
    const memory = new Palimpsest().session("s", { format: "anthropic" });
    const turn = await memory.turn("Hello.");
    // @ts-expect-error a request in Anthropic's format is not one of OpenAI's Responses
    await turn.send((request) => openai.responses.create(request));
    // @ts-expect-error a request has no member of this name
    await turn.send((request) => request.contents);
    // @ts-expect-error a whole reply has no chunks
    for await (const _ of await turn.send(async (request) => ({ ...request, content: [] })));
    // @ts-expect-error a format that there is not
    new Palimpsest().session("s", { format: "cohere" });
    // @ts-expect-error a field that a body does not have
    await memory.appendEvents({ events: [], expectd_head: 1 });
    // @ts-expect-error an operation's query has no such member
    await memory.listCalls({ veiw: "main" });
    // @ts-expect-error a context's field that there is not
    void turn.context.tokens.budgte;
}

export function remedy(problem: Problem): number | undefined {
    // @ts-expect-error only some problems have a head
    void problem.head;
    return problem.type === "/problems/head-conflict" ? problem.head : undefined;
}
