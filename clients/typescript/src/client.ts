/** The client: the connection to a server, and all operations that are not on one session. */

import { Pager } from "./pages.js";
import { Session, type SessionOptions } from "./session.js";
import { type ClientOptions, type Request, type RequestOptions, Transport, path } from "./transport.js";
import type { Answer, Body, Format, Item, OperationId, PolicyDocument, Query } from "./types.js";

/** A client of a Palimpsest server. Every operation of its API is a method, here or on a session. */
export class Palimpsest {
    readonly #transport: Transport;

    constructor(options: ClientOptions | Transport = {}) {
        this.#transport = options instanceof Transport ? options : new Transport(options);
    }

    /** Return the session with your own `id`. A new session is created at its first use. */
    session<F extends Format = "openai">(id: string, options: SessionOptions<F> = {}): Session<F> {
        return new Session(this.#transport, id, options);
    }

    /** Return a copy with other options; headers are added. */
    withOptions(options: ClientOptions): Palimpsest {
        return new Palimpsest(this.#transport.with(options));
    }

    /** The connection, for adapters. */
    get transport(): Transport {
        return this.#transport;
    }

    /** List the sessions that the key can access, newest first; all conditions must hold. */
    listSessions(
        query: Omit<Query<"list_sessions">, "metadata"> & { metadata?: Record<string, unknown> } = {},
    ): Pager<Item<"list_sessions">> {
        const metadata = query.metadata && JSON.stringify(query.metadata);
        return this.#list<"list_sessions">(path("sessions"), { ...query, metadata });
    }

    /** Search recorded calls across sessions, newest first; all conditions must hold. */
    auditCalls(query: Query<"audit_calls"> = {}): Pager<Item<"audit_calls">> {
        return this.#list<"audit_calls">(path("audit", "calls"), query);
    }

    /** Get the token usage and price of the calls of all sessions that the key can access, by model. */
    getAuditLedger(query: Query<"get_audit_ledger">): Promise<Answer<"get_audit_ledger">> {
        return this.#send({ method: "GET", path: path("audit", "ledger"), query });
    }

    /** Store a document as the newest version of a policy. Versions never change. */
    putPolicy(name: string, policy: PolicyDocument): Promise<Answer<"put_policy">> {
        return this.#send({ method: "PUT", path: path("policies", name), body: policy });
    }

    /** Get one version of a policy, by default the newest. */
    getPolicy(name: string, query: Query<"get_policy"> = {}): Promise<Answer<"get_policy">> {
        return this.#send({ method: "GET", path: path("policies", name), query });
    }

    /** List the policies in their newest versions: presets first, then the tenant's own by name. */
    listPolicies(query: Query<"list_policies"> = {}): Pager<Item<"list_policies">> {
        return this.#list<"list_policies">(path("policies"), query);
    }

    /** Get the definition of the recall tool in one format, or in all formats by name. */
    recallTool(query: Query<"recall_tool"> = {}): Promise<Answer<"recall_tool">> {
        return this.#send({ method: "GET", path: path("tools", "recall"), query });
    }

    /** Get the definition of the compaction tool in one format, or in all formats by name. */
    compactTool(query: Query<"compact_tool"> = {}): Promise<Answer<"compact_tool">> {
        return this.#send({ method: "GET", path: path("tools", "compact"), query });
    }

    /** List the calibrations: how each model counts tokens, as learned from reported usage. */
    listCalibrations(query: Query<"list_calibrations"> = {}): Pager<Item<"list_calibrations">> {
        return this.#list<"list_calibrations">(path("calibrations"), query);
    }

    /** Forget how models count tokens, for all models or for those selected. */
    deleteCalibrations(query: Query<"delete_calibrations"> = {}): Promise<Answer<"delete_calibrations">> {
        return this.#send({ method: "DELETE", path: path("calibrations"), query });
    }

    /** Create an API key. It cannot access more sessions, or live longer, than the key that creates it. */
    createKey(body: Body<"create_key">): Promise<Answer<"create_key">> {
        return this.#send({ method: "POST", path: path("keys"), body, repeatable: false });
    }

    /** List the tenant's API keys, newest first. */
    listKeys(query: Query<"list_keys"> = {}): Pager<Item<"list_keys">> {
        return this.#list<"list_keys">(path("keys"), query);
    }

    /** Revoke an API key: it stops working everywhere within two seconds, and stays in the list. */
    revokeKey(keyId: string): Promise<void> {
        return this.#send({ method: "DELETE", path: path("keys", keyId) });
    }

    /** Create or change a webhook: a URL that is notified of events in all sessions of the tenant. */
    putWebhook(name: string, body: Body<"put_webhook">): Promise<Answer<"put_webhook">> {
        return this.#send({ method: "PUT", path: path("webhooks", name), body, repeatable: false });
    }

    /** Get a webhook, without its secret. */
    getWebhook(name: string): Promise<Answer<"get_webhook">> {
        return this.#send({ method: "GET", path: path("webhooks", name) });
    }

    /** Delete a webhook and its deliveries; pending ones are not attempted. */
    deleteWebhook(name: string): Promise<void> {
        return this.#send({ method: "DELETE", path: path("webhooks", name) });
    }

    /** List the tenant's webhooks by name. */
    listWebhooks(query: Query<"list_webhooks"> = {}): Pager<Item<"list_webhooks">> {
        return this.#list<"list_webhooks">(path("webhooks"), query);
    }

    /** List the deliveries of a webhook, newest first. */
    listDeliveries(name: string, query: Query<"list_deliveries"> = {}): Pager<Item<"list_deliveries">> {
        return this.#list<"list_deliveries">(path("webhooks", name, "deliveries"), query);
    }

    /** Attempt a failed or pending delivery now, and reset its number of attempts. */
    retryDelivery(name: string, deliveryId: string): Promise<Answer<"retry_delivery">> {
        return this.#send({ method: "POST", path: `${path("webhooks", name, "deliveries", deliveryId)}:retry` });
    }

    /** Set how many days the tenant's data is kept. The rules replace all previous ones. */
    putRetention(body: Body<"put_retention">): Promise<Answer<"put_retention">> {
        return this.#send({ method: "PUT", path: path("retention"), body });
    }

    /** Get how many days the tenant's data is kept. */
    getRetention(): Promise<Answer<"get_retention">> {
        return this.#send({ method: "GET", path: path("retention") });
    }

    /** Preview the data that the rules would erase now. Nothing is erased. */
    previewRetention(query: Query<"preview_retention"> = {}): Promise<Answer<"preview_retention">> {
        return this.#send({ method: "GET", path: path("retention:preview"), query });
    }

    /**
     * Erase the sessions that meet the conditions, in a worker. This cannot be undone.
     *
     * To erase more than 100 sessions, `expected` must be the preview's `sessions`.
     */
    createErasure(body: Body<"create_erasure">, options?: RequestOptions): Promise<Answer<"create_erasure">> {
        return this.#send({ method: "POST", path: path("erasures"), body, options });
    }

    /** Preview the sessions that an erasure with these conditions would erase now. Nothing is erased. */
    previewErasure(
        body: Body<"preview_erasure">,
        query: Query<"preview_erasure"> = {},
    ): Promise<Answer<"preview_erasure">> {
        return this.#send({ method: "POST", path: path("erasures:preview"), query, body });
    }

    /** Get an erasure: its progress or, once it is done, its receipt. */
    getErasure(erasureId: string): Promise<Answer<"get_erasure">> {
        return this.#send({ method: "GET", path: path("erasures", erasureId) });
    }

    /** List the tenant's erasures, newest first. */
    listErasures(query: Query<"list_erasures"> = {}): Pager<Item<"list_erasures">> {
        return this.#list<"list_erasures">(path("erasures"), query);
    }

    /** List the sessions that an erasure has erased so far, by UUIDs derived from their names. */
    listErasedSessions(
        erasureId: string,
        query: Query<"list_erased_sessions"> = {},
    ): Pager<Item<"list_erased_sessions">> {
        return this.#list<"list_erased_sessions">(path("erasures", erasureId, "sessions"), query);
    }

    /** Get the addresses that the gateway forwards to, and the newest requests through it. */
    getGateway(query: Query<"get_gateway"> = {}): Promise<Answer<"get_gateway">> {
        return this.#send({ method: "GET", path: path("gateway"), query });
    }

    /** Check that the process is running, without using the database. */
    healthz(): Promise<Answer<"healthz">> {
        return this.#send({ method: "GET", path: "/healthz" });
    }

    /** Check that requests can be served. */
    readyz(): Promise<Answer<"readyz">> {
        return this.#send({ method: "GET", path: "/readyz" });
    }

    /** Get metrics in Prometheus' text format. */
    metrics(): Promise<string> {
        return this.#transport.text({ method: "GET", path: "/metrics" });
    }

    #send<T>(request: Request): Promise<T> {
        return this.#transport.json<T>(request);
    }

    #list<Id extends OperationId>(at: string, query: object): Pager<Item<Id>> {
        return new Pager((cursor) =>
            this.#transport.json({
                method: "GET",
                path: at,
                query: cursor === undefined ? query : { ...query, cursor },
            }),
        );
    }
}
