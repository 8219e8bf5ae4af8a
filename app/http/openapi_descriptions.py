"""The parts of the OpenAPI document for all operations: servers, keys, tags, and descriptions of responses."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from app.http import past_reads
from app.http.openapi import KEY_SCHEME

TAGS: Final = {
    "context": "The context of the next model call, within the token budget. An agent requests one before each of its "
    "model calls.",
    "events": "The log of a session: append events or a provider's messages, and read them back.",
    "feedback": "Outcomes of calls: token usage and errors, from which the server learns how models count tokens.",
    "sessions": "Sessions: each is the log of one agent, with its settings, epochs, lines and forks.",
    "stream": "Changes of a session, streamed as they happen.",
    "layers": "Content shown after the conversation while an agent works, and never logged.",
    "turns": "The turns of a session: a user's message and everything up to the next one.",
    "recall": "Originals of events that contexts left out, and the definition of the tool that recalls them.",
    "visibility": "Decisions on which events contexts hide, show and pin. The log keeps everything.",
    "summaries": "Summaries, the compactions that write them, and the proof that every event is accounted for.",
    "policies": "Policies: rules for what contexts may leave out, when and in which order.",
    "audit": "Recorded calls: what the model was shown in each, byte for byte, and why the rest was left out.",
    "webhooks": "URLs that are notified of compactions.",
    "retention": "Rules for how long data is kept, and erasures of all sessions that match a filter.",
    "keys": "API keys of the tenant, with their scopes and the sessions that they give access to.",
    "operations": "Liveness, readiness and metrics of the server. They need no key.",
}
_KEY: Final = (
    "Secret of an API key. The key's scopes are `ingest` (append and change), `read`, `audit` (search the calls of all "
    "sessions) and `admin`. As long as no key has been created or configured, none is required, and only requests from "
    "the same machine are answered."
)


def add_descriptions(document: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the document with servers, security scheme, tags and descriptions of responses added."""
    document["servers"] = [{"url": "/", "description": "The server that this document comes from."}]
    used = {tag for operations in document["paths"].values() for one in operations.values() for tag in one["tags"]}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    components = document["components"]
    components["securitySchemes"] = {KEY_SCHEME: {"type": "http", "scheme": "bearer", "description": _KEY}}
    reads = {route.operation_id for route in routes if isinstance(route, APIRoute) and _may_be_late(route)}
    for operations in document["paths"].values():
        for operation in operations.values():
            if operation["operationId"] in reads:
                operation["description"] += f"\n\n{past_reads.DESCRIPTION}"
                operation["responses"]["200"]["headers"] = {"Age": past_reads.AGE_HEADER}
            operation.setdefault("security", [])
            for status, response in operation["responses"].items():
                if response["description"] == "Successful Response":
                    response["description"] = _answer(status, response, components["schemas"])
    return document


def _may_be_late(route: APIRoute) -> bool:
    return any(past_reads.is_past_read(call) for call in _calls(route.dependant))


def _calls(dependant: Dependant) -> Iterator[Any]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)


def _answer(status: str, response: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the description of a successful response: the first sentence of its schema's."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return str(schemas[name]["description"]).split(". ")[0].rstrip(".").replace("\n", " ") + "."
    return "Done. The response has no body." if status == "204" else "The response, as the operation describes it."
