/** Results of tool calls as events of the log. */

import { ToolCall } from "./formats.js";
import type { EventIn } from "./types.js";

/**
 * Results of tool calls: one for each, in their order, or an object of them by the calls' ids.
 *
 * A result is text, a list of parts, an Error (logged as a failure), anything that can be encoded as JSON, a promise of
 * one of these, or the provider's message with the result.
 */
export type Results = Iterable<unknown> | Record<string, unknown>;

const NAMES = [
    ["tool_call_id", "content"],
    ["tool_use_id", "content"],
    ["call_id", "output"],
] as const;

/** Return the events of results, and the tool calls that are still open. Throws TypeError if there are none. */
export function unanswered(given: Results, calls: ToolCall[]): { events: EventIn[]; open: ToolCall[] } {
    const pairs = withCallIds(given, calls);
    if (!pairs.length) throw new TypeError("there are no results to append");
    const answered = new Set(pairs.map(([id]) => id));
    return {
        events: pairs.map(([id, value]) => result(id, value)),
        open: calls.filter((call) => !answered.has(call.id)),
    };
}

function withCallIds(given: Results, calls: ToolCall[]): [string, unknown][] {
    const known = new Set(calls.map((call) => call.id));
    if (typeof given !== "string" && !(Symbol.iterator in given)) {
        const pairs = Object.entries(given);
        if (known.size && !pairs.some(([id]) => known.has(id))) {
            throw new TypeError(`the keys of an object of results are call ids: ${[...known].join(", ")}`);
        }
        return pairs;
    }
    const named: [string, unknown][] = [];
    const inOrder: unknown[] = [];
    for (const one of typeof given === "string" ? [given] : (given as Iterable<unknown>)) {
        const pair = withCallId(one, known);
        if (pair) named.push(pair);
        else inOrder.push(one);
    }
    if (inOrder.length && inOrder.length !== calls.length) {
        throw new TypeError(
            `there are ${inOrder.length} results for ${calls.length} open tool calls; give one for each in order, or ` +
                "an object of results by call id",
        );
    }
    return [...named, ...inOrder.map((value, place): [string, unknown] => [calls[place]!.id, value])];
}

/** Return the call's id and the result, if it is a provider's message that names its call. */
function withCallId(one: unknown, known: Set<string>): [string, unknown] | undefined {
    if (typeof one !== "object" || one === null) return undefined;
    const members = one as Record<string, unknown>;
    for (const [name, content] of NAMES) {
        const id = members[name];
        if (typeof id === "string" && known.has(id) && content in members) return [id, members[content]];
    }
    return undefined;
}

function result(callId: string, value: unknown): EventIn {
    const event: EventIn = { type: "tool.result", call_id: callId };
    if (value instanceof Error) return { ...event, content: `${value.name}: ${value.message}`, is_error: true };
    if (typeof value === "string") return { ...event, content: value };
    if (isParts(value)) return { ...event, content: value };
    return { ...event, content: JSON.stringify(value) ?? String(value) };
}

function isParts(value: unknown): value is { type: string; [member: string]: unknown }[] {
    const isPart = (part: unknown) => typeof part === "object" && part !== null && "type" in part;
    return Array.isArray(value) && value.length > 0 && value.every(isPart);
}
