/** All operations of the API on one session. */

import { Pager } from "./pages.js";
import { type RequestOptions, Transport, path } from "./transport.js";
import type { Answer, Body, Context, Content, EventIn, Format, Item, Message, OperationId, Query } from "./types.js";

/** Parameters of a context, as in the API, with messages and tools in the format's own types. */
export type ContextParams = Omit<Body<"post_context">, "messages" | "tools" | "system" | "append"> & {
    messages?: readonly Message[];
    tools?: readonly Message[];
    system?: Content;
    append?: { format?: Format; messages?: readonly Message[]; events?: readonly EventIn[]; expected_head?: number };
};

/** Messages to append, in a provider's own format. */
export type MessagesParams = Omit<Body<"append_messages">, "messages" | "format"> & {
    format: Format;
    messages: readonly Message[];
};

/** Every operation of the API on the session `id`, named as in the API's document. */
export class SessionOperations {
    protected readonly transport: Transport;
    readonly id: string;

    constructor(transport: Transport, id: string) {
        this.transport = transport;
        this.id = id;
    }

    /** Create the session, or change its settings if it exists. Omitted settings keep their value. */
    putSession(body: Body<"put_session">): Promise<Answer<"put_session">> {
        return this.transport.json({ method: "PUT", path: this.#at(), body });
    }

    /** Get the session: its settings, the end of its log and its size. */
    getSession(): Promise<Answer<"get_session">> {
        return this.#get([]);
    }

    /** Erase the session with everything derived from it. This cannot be undone. */
    deleteSession(query: Query<"delete_session"> = {}): Promise<void> {
        return this.transport.json({ method: "DELETE", path: this.#at(), query });
    }

    /** List the epochs of a view in order, each with its cause: the times at which its contexts were rewritten. */
    listEpochs(query: Query<"list_epochs"> = {}): Pager<Item<"list_epochs">> {
        return this.#list<"list_epochs">(["epochs"], query);
    }

    /** List the turns of the session in order, each with its range of seqs and its state. */
    listTurns(query: Query<"list_turns"> = {}): Pager<Item<"list_turns">> {
        return this.#list<"list_turns">(["turns"], query);
    }

    /** List the lines (branches) of the session, oldest first. The session's id means the current one. */
    listLines(query: Query<"list_lines"> = {}): Pager<Item<"list_lines">> {
        return this.#list<"list_lines">(["lines"], query);
    }

    /**
     * Append 1 to 1,000 events, all or none. A session that does not exist is created.
     *
     * With `expected_head`, throws HeadConflictError and appends nothing unless that is the log's last seq.
     */
    appendEvents(body: Body<"append_events">, options?: RequestOptions): Promise<Answer<"append_events">> {
        return this.#post(["events"], body, options);
    }

    /** Append 1 to 1,000 messages in a provider's own format, all or none; `events` follow the messages. */
    appendMessages(body: MessagesParams, options?: RequestOptions): Promise<Answer<"append_messages">> {
        return this.#post(["messages"], body, options);
    }

    /** List the events of the session in order, as they were appended: after a seq, of one type, or by one author. */
    listEvents(query: Query<"list_events"> = {}): Pager<Item<"list_events">> {
        return this.#list<"list_events">(["events"], query);
    }

    /** Get an event as it was appended. */
    getEvent(seq: number): Promise<Answer<"get_event">> {
        return this.#get(["events", seq]);
    }

    /** Permanently erase the content of an event. Its place in the log stays; summaries of it are rewritten. */
    redactEvent(seq: number): Promise<void> {
        return this.transport.json({ method: "DELETE", path: this.#at("events", seq) });
    }

    /** Hide, show, pin and unpin events for all future contexts. Each item is accepted or refused separately. */
    patchVisibility(body: Body<"patch_visibility">): Promise<Answer<"patch_visibility">> {
        return this.transport.json({ method: "PATCH", path: this.#at("visibility"), body });
    }

    /** Recall the originals of events from the whole log by seq, path or search, but not those that a call shows. */
    recall(body: Body<"recall">): Promise<Answer<"recall">> {
        return this.#post(["recall"], body);
    }

    /** Get the layers that the next context shows. */
    getLayers(): Promise<Answer<"get_layers">> {
        return this.#get(["layers"]);
    }

    /** Set the content of a layer (`sources` or `announce`), replacing the previous content. */
    putLayer(kind: "sources" | "announce", body: { content: Content }): Promise<Answer<"put_layer">> {
        return this.transport.json({ method: "PUT", path: this.#at("layers", kind), body });
    }

    /** Remove a layer. Nothing happens if there is none. */
    deleteLayer(kind: "sources" | "announce"): Promise<void> {
        return this.transport.json({ method: "DELETE", path: this.#at("layers", kind) });
    }

    /** End the running turn: append its announcement, clear its layers, and allow compaction to begin. */
    endTurn(body: Body<"end_turn"> = {}, options?: RequestOptions): Promise<Answer<"end_turn">> {
        return this.#post(["turns", "end"], body, options);
    }

    /** Get the context of the next model call: a request within the budget that the provider accepts unchanged. */
    getContext<F extends Format = "openai">(query: Query<"get_context"> & { format?: F } = {}): Promise<Context<F>> {
        return this.transport.json({ method: "GET", path: this.#at("context"), query });
    }

    /**
     * Get the context of the next model call, with options that need a body.
     *
     * With `messages`, the client's complete list in `format`, the log is updated first; the context then has a plan
     * for each message: keep, replace or drop. `outcome`, of an earlier call, and `append`, the events or messages
     * since then, make this a step in one request. If a part fails, the error's `part` names it.
     */
    postContext<F extends Format = "openai">(
        body: ContextParams & { format?: F },
        options?: RequestOptions,
    ): Promise<Context<F>> {
        return this.#post(["context"], body, options);
    }

    /** Preview the context of the next call with any policy, model, budget or head. Nothing is recorded or changed. */
    previewContext(
        body: ContextParams & { format?: Format | "blocks" },
        query: Query<"preview_context"> = {},
    ): Promise<Answer<"preview_context">> {
        return this.transport.json({ method: "POST", path: `${this.#at("context")}:preview`, query, body });
    }

    /** Report the outcome of a call: its token usage, its duration, or its error. The response says what to do next. */
    reportOutcome(
        callId: string,
        body: Body<"report_outcome">,
        options?: RequestOptions,
    ): Promise<Answer<"report_outcome">> {
        return this.#post(["calls", callId, "outcome"], body, options);
    }

    /** Get the request that keeps the provider's cache of a view's last call; report its usage as a warming. */
    warmContext(body: Body<"warm_context"> = {}): Promise<Answer<"warm_context">> {
        return this.transport.json({ method: "POST", path: `${this.#at("context")}:warm`, body });
    }

    /** Report a request that kept the provider's cache of a call; without `usage` it failed. */
    reportWarming(
        callId: string,
        body: Body<"report_warming">,
        options?: RequestOptions,
    ): Promise<Answer<"report_warming">> {
        return this.#post(["calls", callId, "warmings"], body, options);
    }

    /** List the recorded calls of the session, newest first. Every context that was returned is recorded. */
    listCalls(query: Query<"list_calls"> = {}): Pager<Item<"list_calls">> {
        return this.#list<"list_calls">(["calls"], query);
    }

    /** Get the record of a call: everything its context was made from, and how it showed every event. */
    getCall(callId: string, query: Query<"get_call"> = {}): Promise<Answer<"get_call">> {
        return this.#get(["calls", callId], query);
    }

    /** Render a recorded call again, to the same bytes as when it was made. */
    getCallContext(callId: string): Promise<Answer<"get_call_context">> {
        return this.#get(["calls", callId, "context"]);
    }

    /** List the blocks of a call's request as the model saw them, in order: at most `text` characters of each. */
    listCallBlocks(callId: string, query: Query<"list_call_blocks"> = {}): Pager<Item<"list_call_blocks">> {
        return this.#list<"list_call_blocks">(["calls", callId, "blocks"], query);
    }

    /** Get a block of a call's request, complete. */
    getCallBlock(callId: string, index: number): Promise<Answer<"get_call_block">> {
        return this.#get(["calls", callId, "blocks", index]);
    }

    /** Compare two calls: the events that the second shows differently, the reasons, and the tokens. */
    diffCalls(callId: string, otherId: string): Promise<Answer<"diff_calls">> {
        return this.#get(["calls", callId, "diff", otherId]);
    }

    /** Get the next events that a view would leave out, and the reasons why it does not leave them out yet. */
    getNextEvictions(query: Query<"get_next_evictions"> = {}): Promise<Answer<"get_next_evictions">> {
        return this.#get(["next-evictions"], query);
    }

    /** List how each call since an event was logged has shown it to the model, oldest first, and why. */
    getEventHistory(seq: number, query: Query<"get_event_history"> = {}): Pager<Item<"get_event_history">> {
        return this.#list<"get_event_history">(["events", seq, "history"], query);
    }

    /** Get the ledger of a view: the cost of each call, newest first, cost and gain of each epoch, and the totals. */
    getLedger(query: Query<"get_ledger"> = {}): Promise<Answer<"get_ledger">> {
        return this.#get(["ledger"], query);
    }

    /** Prove that a view accounts for every event of the log exactly once, and say how each is shown. */
    getCoverage(query: Query<"get_coverage"> = {}): Promise<Answer<"get_coverage">> {
        return this.#get(["coverage"], query);
    }

    /** List the summaries of the session, oldest first. */
    listSummaries(query: Query<"list_summaries"> = {}): Pager<Item<"list_summaries">> {
        return this.#list<"list_summaries">(["summaries"], query);
    }

    /** Get a summary with its text, its digest and its lineage. */
    getSummary(summaryId: string): Promise<Answer<"get_summary">> {
        return this.#get(["summaries", summaryId]);
    }

    /** Request a compaction: the older part of the log is summarized now, however small it is. */
    compact(body: Body<"compact"> = {}): Promise<Answer<"compact">> {
        return this.#post(["compactions"], body);
    }

    /** List the compaction runs of the session, newest first, failed ones with their error. */
    listCompactions(query: Query<"list_compactions"> = {}): Pager<Item<"list_compactions">> {
        return this.#list<"list_compactions">(["compactions"], query);
    }

    /** Get a compaction run. */
    getCompaction(compactionId: string): Promise<Answer<"get_compaction">> {
        return this.#get(["compactions", compactionId]);
    }

    /** Schedule a failed or skipped compaction run again. */
    retryCompaction(compactionId: string): Promise<Answer<"retry_compaction">> {
        return this.transport.json({ method: "POST", path: `${this.#at("compactions", compactionId)}:retry` });
    }

    #at(...parts: (string | number)[]): string {
        return path("sessions", this.id, ...parts);
    }

    #get<T>(parts: (string | number)[], query: object = {}): Promise<T> {
        return this.transport.json({ method: "GET", path: this.#at(...parts), query });
    }

    #post<T>(parts: (string | number)[], body: object, options?: RequestOptions): Promise<T> {
        return this.transport.json({ method: "POST", path: this.#at(...parts), body, options });
    }

    #list<Id extends OperationId>(parts: (string | number)[], query: object): Pager<Item<Id>> {
        return new Pager((cursor) => this.#get(parts, cursor === undefined ? query : { ...query, cursor }));
    }
}
