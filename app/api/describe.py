"""What the OpenAPI document says as a whole: keys, servers, groups of operations, and what answers hold."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from app.api import late
from app.api.auth import scope_of
from app.api.documents import KEY_SCHEME, secured

TAGS: Final = {
    "context": "What to send to the model next, within the budget: the one call that an agent makes before each of its "
    "own.",
    "events": "The log of a session: append what happened, as events or as a provider's messages, and read it back.",
    "feedback": "What became of a call: usage and errors, from which the server learns how models count.",
    "sessions": "The log of one agent each, with its settings, its epochs and its forks.",
    "stream": "What happens to a session, as it happens.",
    "layers": "Content shown behind the conversation while an agent works, and never logged.",
    "turns": "The turns of a session: a user's message and everything up to the next one.",
    "recall": "Originals of what contexts left out, and the tool with which a model asks for them.",
    "visibility": "Decisions on what contexts hide, show and pin. The log keeps everything.",
    "summaries": "Summaries, the compactions that write them, and the proof that nothing is lost.",
    "policies": "Rules by which a view is read: what may be left out, when and in which order.",
    "audit": "What the model was shown in each call, byte for byte, and why the rest was not.",
    "webhooks": "URLs that are notified of compactions.",
    "retention": "How long data is kept, and the erasure of all sessions that a filter finds.",
    "keys": "API keys of the tenant, with their scopes and the sessions that they reach.",
    "operations": "Liveness, readiness and metrics of the server. They need no key.",
}
_KEY: Final = (
    "Secret of an API key. Its scopes say what it may do: `ingest` (append and change), `read`, `audit` (search the "
    "calls of all sessions), `admin`. Until a key is created or configured none is needed, and only requests from the "
    "same machine are answered."
)


def described(document: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the document with its servers, its security scheme, its tags, and the answers described."""
    document["servers"] = [{"url": "/", "description": "The server that this document comes from."}]
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    components = document["components"]
    components["securitySchemes"] = {KEY_SCHEME: {"type": "http", "scheme": "bearer", "description": _KEY}}
    scopes = {route.operation_id: scope for route in routes if isinstance(route, APIRoute) for scope in _scopes(route)}
    reads = {route.operation_id for route in routes if isinstance(route, APIRoute) and _may_be_late(route)}
    for operations in document["paths"].values():
        for operation in operations.values():
            if operation["operationId"] in reads:
                operation["description"] += f"\n\n{late.DESCRIPTION}"
                operation["responses"]["200"]["headers"] = {"Age": late.AGE_HEADER}
            scope = scopes.get(operation["operationId"])
            if scope is not None:
                operation["security"] = secured(scope)
            operation.setdefault("security", [])
            for status, response in operation["responses"].items():
                if response["description"] == "Successful Response":
                    response["description"] = _answer(status, response, components["schemas"])
    return document


def _scopes(route: APIRoute) -> Iterator[str]:
    for call in _calls(route.dependant):
        scope = scope_of(call)
        if scope is not None:
            yield scope


def _may_be_late(route: APIRoute) -> bool:
    return any(late.is_late(call) for call in _calls(route.dependant))


def _calls(dependant: Dependant) -> Iterator[Any]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)


def _answer(status: str, response: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return what a successful answer holds, in the words of its schema."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return str(schemas[name]["description"]).split(". ")[0].rstrip(".").replace("\n", " ") + "."
    return "Done. The answer has no body." if status == "204" else "The answer, as the operation describes it."
