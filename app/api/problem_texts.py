"""What each problem means, what to do about it, and which fields it has beside those of RFC 9457."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProblemText:
    """The words about a kind of problem. `fields` are its further fields, with a schema each; `sometimes` are those of
    them that it may lack."""

    meaning: str
    remedy: str
    fields: Mapping[str, Schema] = field(default_factory=dict)
    sometimes: frozenset[str] = frozenset()


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "description": description}


_FIELD: Final = {
    "field": _text("Field of the body, parameter or header at fault, with dots between its parts; empty if it is none.")
}
_INDEX: Final = {"index": _number("Position of the event or message in the request, counted from 0.")}
_CALL: Final = {"call_id": _text("Id of the tool call."), **_INDEX}
_LIMIT: Final = {"limit": _number("Limit that was reached.")}
_WAIT: Final = {"retry_after_seconds": _number("Seconds after which to try again, as in the header `Retry-After`.")}
_AGAIN: Final = "Try again after the seconds that `Retry-After` names."
_FIX: Final = "Mend the request; sending it again as it is cannot succeed."

TEXTS: Final[Mapping[str, ProblemText]] = {
    "invalid-request": ProblemText(
        "The request has an unknown field or parameter, lacks one, or has a value that cannot be.", _FIX, _FIELD
    ),
    "invalid-json": ProblemText("The body is not JSON in UTF-8, or is nested too deep.", _FIX, _FIELD),
    "invalid-event": ProblemText(
        "An event of the request is invalid. None of the request's events was appended.", _FIX, {**_INDEX, **_FIELD}
    ),
    "invalid-message": ProblemText(
        "A message is not one of the named format. None of the request's messages was appended.",
        "Check `format`, and send messages as the provider's API takes them or gives them.",
        {**_INDEX, **_FIELD},
    ),
    "invalid-policy": ProblemText(
        "A knob of the policy is unknown or has a value that cannot be.",
        "Mend the knob; docs/policies.md lists all of them with their bounds.",
        {"knob": _text("Path of the knob at fault.")},
    ),
    "unknown-call": ProblemText(
        "A tool result names a call that the session does not have, or that has a result already.",
        "Append the call before its result, in the same request or an earlier one; append a result once.",
        _CALL,
    ),
    "duplicate-call": ProblemText(
        "A tool call has the id of one that still waits for its result.",
        "Append the result of the open call first, or give the new call an id of its own.",
        _CALL,
    ),
    "not-found": ProblemText(
        "There is nothing by this name, or the key does not reach it.",
        "Check the path and the key. A session comes into being by its first append, a view by its first context.",
    ),
    "conflict": ProblemText(
        "The request conflicts with what is there now.", "Read `detail`, get the current state, and decide anew."
    ),
    "head-conflict": ProblemText(
        "Something was appended since: `expected_head` is not the last seq of the log. Nothing was appended now.",
        "Read the events after the head you know, then append with the new one.",
        {"head": _number("Seq of the last event in the log.")},
    ),
    "erasure-count-conflict": ProblemText(
        "The erasure would erase another number of sessions than `expected` says, or many and `expected` is missing. "
        "Nothing was erased.",
        "Get a preview of the same conditions, look at what it finds, and repeat its `sessions` as `expected`.",
        {"sessions": _number("Number of sessions that would be erased, as in the preview.")},
    ),
    "idempotency-conflict": ProblemText(
        "The idempotency key, or the id of an event, was used before with other content.",
        "Repeat a request exactly as it was, or use a new key or id.",
    ),
    "context-infeasible": ProblemText(
        "Even with everything left out that may be, the context does not fit its target.",
        "Name a larger `max_tokens`, shorten what must be shown (tools, system prompt, pinned events, the running "
        "turn), or change the policy; `by_source` says what takes the room.",
        {
            "minimum_tokens": _number("Size of the smallest context, in the model's tokens."),
            "target": _number("Maximum size, in the same tokens."),
            "by_source": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "What takes the room, in the same tokens.",
            },
        },
    ),
    "nothing-to-send": ProblemText(
        "The session holds nothing yet that a provider would accept.", "Append a user message first."
    ),
    "injection-over-reserve": ProblemText(
        "Injected content is larger than its reserve, or than its own `max_tokens`.",
        "Inject less, or raise `injection_reserve_tokens` in the policy.",
        {
            "name": _text("Name of the injected content's source."),
            "tokens": _number("Its size, in the model's tokens."),
            "reserve": _number("Tokens that it may take."),
        },
    ),
    "not-reproducible": ProblemText(
        "A recorded call no longer gives the bytes that were sent. This should not happen: the server logs it.",
        "Report it with the call's id.",
        {
            "call_id": _text("Id of the call."),
            "recorded_sha256": _text("SHA-256 of the request as it was sent, in hex."),
            "rendered_sha256": {
                "type": ["string", "null"],
                "description": "SHA-256 of the request as rendered now, in hex; null if it cannot be rendered.",
            },
        },
        frozenset({"recorded_sha256", "rendered_sha256"}),
    ),
    "too-many-sessions": ProblemText(
        "The tenant has as many sessions as it may have.", "Erase sessions, or have the limit raised.", _LIMIT
    ),
    "too-many-lines": ProblemText(
        "The session has as many lines as one may have. Lines that are there go on.",
        "Go on with one of its lines or in another session, or have the limit raised.",
        _LIMIT,
    ),
    "too-many-requests": ProblemText(
        "The tenant has as many requests under way as it may have.", _AGAIN, {**_LIMIT, **_WAIT}
    ),
    "too-many-events": ProblemText(
        "The tenant appends more events per second than it may. Nothing was appended.", _AGAIN, {**_LIMIT, **_WAIT}
    ),
    "session-erased": ProblemText(
        "The session was erased on request. Nothing was appended or created.",
        "To begin again under this name, create the session with `PUT /v1/sessions/{sid}` and its `metadata`; or use "
        "another name.",
        {"session": _text("Name of the session.")},
    ),
    "contents-erased": ProblemText(
        "The key that this tenant's contents were sealed with has been dropped: nothing of them can be read again.",
        "None: that is final. Go on as another tenant, with a key of its own.",
    ),
    "store-unavailable": ProblemText("The database does not answer, or takes no writes now.", _AGAIN),
    "too-many-streams": ProblemText("This process serves as many streams as it may.", _AGAIN, _LIMIT),
    "overloaded": ProblemText("This process answers as many requests as it can.", _AGAIN, _LIMIT),
    "upstream-failed": ProblemText("The provider behind the gateway could not be reached.", _AGAIN),
    "upstream-late": ProblemText(
        "The provider behind the gateway sent nothing for `PALIMPSEST_GATEWAY_SILENCE_SECONDS`.", _AGAIN
    ),
    "body-too-large": ProblemText(
        "The body has more bytes, or its JSON more values, than the server takes.",
        "Send it in smaller parts.",
        {"limit_bytes": _number("Maximum of bytes."), "limit_elements": _number("Maximum of values in the JSON.")},
        frozenset({"limit_bytes", "limit_elements"}),
    ),
    "unauthorized": ProblemText(
        "The request has no API key, or one that does not work.",
        "Send `Authorization: Bearer <key>` with a key that is neither revoked nor expired.",
    ),
    "forbidden": ProblemText(
        "The key works, but lacks the scope for this, or is bound to other sessions.", "Use a key that has it."
    ),
    "not-local": ProblemText(
        "The server has no API keys yet, so it answers only programs on its own machine.",
        "Make a key with `palimpsest keys create`, or name the host in PALIMPSEST_OPEN_HOSTS.",
    ),
    "method-not-allowed": ProblemText("The path has no such method.", "Use one of those in the header `Allow`."),
    "malformed-http": ProblemText("What came is not HTTP.", "Check the client and what stands between."),
    "too-slow": ProblemText("The request did not arrive in time.", "Send it again."),
    "head-too-large": ProblemText("The request's line and header fields are too large.", "Send fewer of them."),
    "internal": ProblemText("The server failed. The failure has been logged.", "Try again; report it if it persists."),
}
