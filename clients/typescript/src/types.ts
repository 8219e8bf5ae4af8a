/** Types of the API, made of its OpenAPI document, and of the requests that a context renders. */

import type { components, operations } from "./api.js";

export type Schemas = components["schemas"];
type Json = "application/json";

/** Every operation of the API, by its `operationId`. */
export type OperationId = keyof operations;

/** The JSON body that an operation takes. */
export type Body<Id extends OperationId> = operations[Id] extends {
    requestBody?: { content: { [type in Json]: infer Sent } };
}
    ? Sent
    : never;

/** The query parameters that an operation takes. */
export type Query<Id extends OperationId> = NonNullable<operations[Id]["parameters"]["query"]>;

/** The JSON that an operation answers with. */
export type Answer<Id extends OperationId> = {
    [Status in keyof operations[Id]["responses"] & (200 | 201 | 202)]: operations[Id]["responses"][Status] extends {
        content: { [type in Json]: infer Received };
    }
        ? Received
        : never;
}[keyof operations[Id]["responses"] & (200 | 201 | 202)];

/** The items that an operation lists in pages. */
export type Item<Id extends OperationId> = Answer<Id> extends { items: (infer One)[] } ? One : never;

export type EventIn = Schemas["EventIn"];
export type EventOut = Schemas["EventOut"];
export type AppendedOut = Schemas["AppendedOut"];
export type OutcomeOut = Schemas["OutcomeOut"];
export type RecallOut = Schemas["RecallOut"];
export type RewindOut = Schemas["RewindOut"];
export type EvictionOut = Schemas["EvictionOut"];
export type TokensOut = Schemas["TokensOut"];
export type UsageIn = Schemas["UsageIn"];
export type ErrorIn = Schemas["ErrorIn"];
export type MessagePlan = Schemas["MessagePlanOut"];
export type PolicyDocument = Schemas["PolicyDocument"];
/** A problem that the server can answer an operation with, discriminated by `type`. */
export type Problem = Extract<Schemas[keyof Schemas & `${string}Problem`], { type: string }>;

/** A message, a part or a tool in a provider's own format: its SDK's objects, or plain ones. */
export type Message = object;
/** Text, or a list of parts: objects with a `type`. */
export type Content = string | Message[];

/** OpenAI's chat completions, its Responses, Anthropic's messages, or Gemini's contents. */
export type Format = "openai" | "openai-responses" | "anthropic" | "gemini";

interface TextPart {
    type: "text";
    text: string;
}

interface ChatToolCall {
    id: string;
    type: "function";
    function: { name: string; arguments: string };
}

/** A message of a chat completion. */
export type ChatMessage =
    | { role: "system"; content: string | TextPart[] }
    | {
          role: "user";
          content: string | (TextPart | { type: "image_url"; image_url: { url: string } })[];
      }
    | { role: "assistant"; content?: string | TextPart[] | null; tool_calls?: ChatToolCall[] }
    | { role: "tool"; tool_call_id: string; content: string | TextPart[] };

/** The request of a chat completion. */
export interface ChatRequest {
    model: string;
    messages: ChatMessage[];
    tools?: {
        type: "function";
        function: { name: string; description?: string; parameters?: Record<string, unknown> };
    }[];
}

/** An item of OpenAI's Responses. */
export type ResponseItem =
    | { type?: "message"; role: "user" | "assistant" | "system" | "developer"; content: string }
    | { type: "function_call"; call_id: string; name: string; arguments: string }
    | { type: "function_call_output"; call_id: string; output: string };

/** The request of OpenAI's Responses. */
export interface ResponsesRequest {
    model: string;
    input: ResponseItem[];
    instructions?: string;
    tools?: {
        type: "function";
        name: string;
        description?: string;
        parameters: Record<string, unknown>;
        strict: boolean;
    }[];
}

type AnthropicImage =
    | { type: "base64"; media_type: "image/jpeg" | "image/png" | "image/gif" | "image/webp"; data: string }
    | { type: "url"; url: string };

interface AnthropicCache {
    cache_control?: { type: "ephemeral"; ttl?: "5m" | "1h" } | null;
}

type AnthropicShown = (TextPart | { type: "image"; source: AnthropicImage }) & AnthropicCache;

/** A block of a message in Anthropic's format. */
export type AnthropicBlock =
    | AnthropicShown
    | ({ type: "tool_use"; id: string; name: string; input: Record<string, unknown> } & AnthropicCache)
    | ({
          type: "tool_result";
          tool_use_id: string;
          content?: string | AnthropicShown[];
          is_error?: boolean;
      } & AnthropicCache)
    | { type: "thinking"; thinking: string; signature: string }
    | { type: "redacted_thinking"; data: string };

/** The request of Anthropic's messages, without its `max_tokens`, which limits the answer. */
export interface AnthropicRequest {
    model: string;
    messages: { role: "user" | "assistant"; content: string | AnthropicBlock[] }[];
    system?: string | (TextPart & AnthropicCache)[];
    tools?: ({
        name: string;
        description?: string;
        input_schema: { type: "object"; [keyword: string]: unknown };
    } & AnthropicCache)[];
}

/** The request of Gemini's `generateContent`. */
export interface GeminiRequest {
    model: string;
    contents: { role?: string; parts?: { text?: string; [member: string]: unknown }[] }[];
    config?: { systemInstruction?: { parts?: { text?: string }[] }; tools?: Record<string, unknown>[] };
}

/** The request to a provider, by format. Parts that it does not name, such as documents, are passed on as logged. */
export interface Requests {
    openai: ChatRequest;
    "openai-responses": ResponsesRequest;
    anthropic: AnthropicRequest;
    gemini: GeminiRequest;
}

/** The context of a model call, with its request in the format `F`. */
export type Context<F extends Format = Format> = Omit<Schemas["ContextOut"], "request" | "format"> & {
    format: F;
    request: Partial<Requests[F]>;
};
