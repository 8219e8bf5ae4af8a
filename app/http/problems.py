"""The meaning of each problem, its remedy, its fields in addition to those of RFC 9457, and its schema.

Each problem has a schema of its own, so that generated clients have a type for each error.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.http.errors import ALL, MEDIA_TYPE, Problem

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProblemText:
    """The texts of a kind of problem. `fields` has the schemas of its additional fields; `optional` names those that
    may be absent."""

    meaning: str
    remedy: str
    fields: Mapping[str, Schema]
    optional: Collection[str]


def _problem(meaning: str, remedy: str, *, optional: Collection[str] = (), **fields: Schema) -> ProblemText:
    return ProblemText(meaning, remedy, fields, optional)


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "description": description}


_FIELD: Final = _text("Field of the body, parameter or header at fault, with dots between its parts; empty if none is.")
_INDEX: Final = _number("Position of the event or message in the request, counted from 0.")
_CALL: Final = _text("Id of the tool call.")
_LIMIT: Final = _number("Limit that was reached.")
_WAIT: Final = _number("Seconds after which to try again, as in the header `Retry-After`.")
_AGAIN: Final = "Try again after the number of seconds in `Retry-After`."
_CHECK_PROVIDER: Final = "Try again; if it persists, check that the server can reach the provider."
_FIX: Final = "Fix the request; sending it again unchanged cannot succeed."

TEXTS: Final[Mapping[str, ProblemText]] = {
    "invalid-request": _problem(
        "The request has an unknown field or parameter, lacks a required one, or has an invalid value.",
        _FIX,
        field=_FIELD,
    ),
    "invalid-json": _problem("The body is not JSON in UTF-8, or is nested too deeply.", _FIX, field=_FIELD),
    "invalid-event": _problem(
        "An event of the request is invalid. None of the request's events was appended.",
        _FIX,
        index=_INDEX,
        field=_FIELD,
    ),
    "invalid-message": _problem(
        "A message is not valid in the given format. None of the request's messages was appended.",
        "Check `format`, and send messages as the provider's API accepts or returns them.",
        index=_INDEX,
        field=_FIELD,
    ),
    "invalid-policy": _problem(
        "A knob of the policy is unknown or has an invalid value.",
        "Fix the knob; docs/policies.md lists all of them with their bounds.",
        knob=_text("Path of the knob at fault."),
    ),
    "unknown-call": _problem(
        "A tool result names a call that the session does not have, or that has a result already.",
        "Append the call before its result, in the same request or an earlier one, and each result only once.",
        call_id=_CALL,
        index=_INDEX,
    ),
    "duplicate-call": _problem(
        "A tool call has the same id as one that has no result yet.",
        "Append the result of the open call first, or give the new call a different id.",
        call_id=_CALL,
        index=_INDEX,
    ),
    "not-found": _problem(
        "Nothing has this name, or the key has no access to it.",
        "Check the path and the key. A session is created by its first append, a view by its first context.",
    ),
    "conflict": _problem(
        "The request conflicts with the current state.", "Read `detail`, get the current state, and decide again."
    ),
    "head-conflict": _problem(
        "Events were appended in the meantime: `expected_head` is not the last seq of the log. Nothing was appended.",
        "Read the events after the head you know, then append with the new head.",
        head=_number("Seq of the last event in the log."),
    ),
    "erasure-count-conflict": _problem(
        "The erasure would erase a different number of sessions than `expected`, or many and `expected` is missing. "
        "Nothing was erased.",
        "Get a preview with the same conditions, check the sessions it finds, and send its `sessions` as `expected`.",
        sessions=_number("Number of sessions that would be erased, as in the preview."),
    ),
    "idempotency-conflict": _problem(
        "The idempotency key, or the id of an event, was used before with different content.",
        "Repeat the request unchanged, or use a new key or id.",
    ),
    "context-infeasible": _problem(
        "The context does not fit its target even with everything left out that may be left out.",
        "Set a larger `max_tokens`, shorten the content that must be shown (tools, system prompt, pinned events, the "
        "running turn), or change the policy; `by_source` shows the size of each part.",
        minimum_tokens=_number("Size of the smallest context, in the model's tokens."),
        target=_number("Maximum size, in the same tokens."),
        by_source={
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "Size of each part of the context, in the same tokens.",
        },
    ),
    "nothing-to-send": _problem(
        "The session has no content yet that a provider would accept.", "Append a user message first."
    ),
    "injection-over-reserve": _problem(
        "Injected content is larger than its reserve, or than its own `max_tokens`.",
        "Inject less, or raise `injection_reserve_tokens` in the policy.",
        name=_text("Name of the injected content's source."),
        tokens=_number("Size of the content, in the model's tokens."),
        reserve=_number("Maximum size, in the same tokens."),
    ),
    "not-reproducible": _problem(
        "A recorded call can no longer be rendered to the bytes that were sent: its records were changed, they were"
        " written by a newer release, or the server has a bug. The server logs it.",
        "Read the call with the release that recorded it. If that fails too, report it with the call's id.",
        optional=("recorded_sha256", "rendered_sha256"),
        call_id=_text("Id of the call."),
        recorded_sha256=_text("SHA-256 of the request as it was sent, in hex."),
        rendered_sha256={
            "type": ["string", "null"],
            "description": "SHA-256 of the request as rendered now, in hex; null if it cannot be rendered.",
        },
    ),
    "too-many-sessions": _problem(
        "The tenant has reached its limit of sessions.", "Erase sessions, or have the limit raised.", limit=_LIMIT
    ),
    "too-many-lines": _problem(
        "The session has reached its limit of lines. Existing lines can still be used.",
        "Continue one of its lines or another session, or have the limit raised.",
        limit=_LIMIT,
    ),
    "too-many-requests": _problem(
        "The tenant has reached its limit of concurrent requests.", _AGAIN, limit=_LIMIT, retry_after_seconds=_WAIT
    ),
    "too-many-events": _problem(
        "The tenant appends more events per second than allowed. Nothing was appended.",
        _AGAIN,
        limit=_LIMIT,
        retry_after_seconds=_WAIT,
    ),
    "session-erased": _problem(
        "The session was erased on request. Nothing was appended or created.",
        "To start again under this name, create the session with `PUT /v1/sessions/{sid}` and its `metadata`; or use "
        "another name.",
        session=_text("Name of the session."),
    ),
    "contents-erased": _problem(
        "The key that this tenant's contents were encrypted with was dropped, so they can never be read again.",
        "None, this is final. Use another tenant with its own key.",
    ),
    "store-unavailable": _problem(
        "The database does not respond or accepts no writes now, too many requests wait for it or for this session, or "
        "this server cannot open the tenant's encrypted contents. `detail` says which.",
        _AGAIN,
    ),
    "too-many-streams": _problem("This process has reached its limit of streams.", _AGAIN, limit=_LIMIT),
    "overloaded": _problem("This process has reached its limit of concurrent requests.", _AGAIN, limit=_LIMIT),
    "upstream-failed": _problem("The gateway could not reach the provider.", _CHECK_PROVIDER),
    "upstream-late": _problem(
        "The provider sent nothing to the gateway for `PALIMPSEST_GATEWAY_SILENCE_SECONDS`.", _CHECK_PROVIDER
    ),
    "body-too-large": _problem(
        "The body has more bytes, or its JSON more values, than the server accepts.",
        "Send it in smaller parts.",
        optional=("limit_bytes", "limit_elements"),
        limit_bytes=_number("Maximum number of bytes."),
        limit_elements=_number("Maximum number of values in the JSON."),
    ),
    "unauthorized": _problem(
        "The request has no API key, or an invalid one.",
        "Send `Authorization: Bearer <key>` with a key that is neither revoked nor expired.",
    ),
    "forbidden": _problem(
        "The key is valid, but lacks the scope for this operation or has no access to the session.",
        "Use a key that allows it.",
    ),
    "not-local": _problem(
        "The server has no API keys yet, so it answers only requests from its own machine.",
        "Create a key with `palimpsest keys create`, or add the host to PALIMPSEST_OPEN_HOSTS.",
    ),
    "method-not-allowed": _problem(
        "The path does not support this method.", "Use one of the methods in the header `Allow`."
    ),
    "malformed-http": _problem(
        "The server received something that is not HTTP.", "Check the client and any proxy between it and the server."
    ),
    "too-slow": _problem("The request did not arrive in time.", "Send it again."),
    "head-too-large": _problem(
        "The request's line and header fields are too large.", "Send fewer or shorter header fields."
    ),
    "internal": _problem("The server failed. The failure was logged.", "Try again; report it if it persists."),
}

BY_SLUG: Final = {problem.slug: problem for problem in ALL}
_REFERENCE: Final = "#/components/schemas/{}"

_OF_STEPS: Final = frozenset(
    (
        *("invalid-request", "invalid-event", "invalid-message", "invalid-policy", "unknown-call", "duplicate-call"),
        *("not-found", "conflict", "head-conflict", "idempotency-conflict", "context-infeasible", "nothing-to-send"),
        *("injection-over-reserve", "too-many-sessions", "session-erased", "too-many-events"),
    )
)
"""The problems that a part of a step in one request may have."""
_STEP_FIELDS: Final[Mapping[str, Schema]] = {
    "part": {
        "type": "string",
        "enum": ["outcome", "append", "context"],
        "description": "Part that failed, of a context request that also reports or appends; absent in other requests. "
        "If it is `context`, the parts before it whose results the problem has are recorded; otherwise nothing is.",
    },
    "appended": {
        "allOf": [{"$ref": _REFERENCE.format("AppendedOut")}],
        "description": "Result of the append of that request; present if it is recorded.",
    },
    "outcome": {
        "allOf": [{"$ref": _REFERENCE.format("OutcomeOut")}],
        "description": "Verdict on the outcome that the request reported; present if it is recorded.",
    },
}


def schema_name(slug: str) -> str:
    """Return the name of a problem's schema, such as `HeadConflictProblem`."""
    return "".join(part.capitalize() for part in slug.split("-")) + "Problem"


def _schema(problem: Problem) -> dict[str, Any]:
    text = TEXTS[problem.slug]
    path = "Stable identifier of the kind of problem, and the path of a page about it."
    common: dict[str, Any] = {
        "type": {"const": f"/problems/{problem.slug}", **_text(path)},
        "title": _text(f"Short description of the kind of problem: {problem.title}."),
        "status": {"const": problem.status, **_number("HTTP status code of the response.")},
        "detail": _text("Human-readable description of this occurrence."),
    }
    fields = {**text.fields, **(_STEP_FIELDS if problem.slug in _OF_STEPS else {})}
    return {
        "title": schema_name(problem.slug),
        "description": f"{text.meaning} {text.remedy}",
        "type": "object",
        "properties": {**common, **{name: dict(field) for name, field in fields.items()}},
        "required": [*common, *(name for name in text.fields if name not in text.optional)],
    }


def with_problem_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the schemas of all problems, each referenced by the responses that may have it."""
    in_order = sorted(BY_SLUG.values(), key=lambda problem: problem.slug)
    document["components"]["schemas"] |= {schema_name(problem.slug): _schema(problem) for problem in in_order}
    for operations in document["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                content = response.get("content", {}).get(MEDIA_TYPE)
                if content is not None:
                    content["schema"] = _one_of(content["examples"])
    return document


def _one_of(slugs: Iterable[str]) -> dict[str, Any]:
    names = {f"/problems/{slug}": _REFERENCE.format(schema_name(slug)) for slug in slugs}
    if len(names) == 1:
        return {"$ref": next(iter(names.values()))}
    return {
        "oneOf": [{"$ref": reference} for reference in names.values()],
        "discriminator": {"propertyName": "type", "mapping": names},
    }


def example(slug: str) -> dict[str, Any]:
    """Return an example of a problem, with all its fields."""
    body = BY_SLUG[slug].body("description of this occurrence")
    return body | {name: _EXAMPLES[_kind(field)] for name, field in TEXTS[slug].fields.items()}


_EXAMPLES: Final[dict[str, Any]] = {"string": "…", "integer": 1, "object": {"tools": 1}}


def _kind(field: Any) -> str:
    kind = field["type"]
    return str(kind if isinstance(kind, str) else kind[0])
