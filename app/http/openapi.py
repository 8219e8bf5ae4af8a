"""The parts of the OpenAPI document that routes do not declare: bodies, problems, conventions, and descriptions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema
from starlette.routing import BaseRoute

from app.core.log.segments import ADDRESS_PATTERN
from app.http import errors
from app.http.fields import SID_DESCRIPTION
from app.http.problems import BY_SLUG, example

KEY_CHARS_MAX: Final = 256
KEY_SCHEME: Final = "ApiKey"
KEY_DESCRIPTION: Final = "Client's own key for the request: repeating the request with it returns the first response."
PAST_SERVICES: Final[set[Any]] = set()
"""The dependencies that `operation.past_service` has made."""
_PAST_NOTE: Final = (
    "If the server has a replica, the response may come from it: `Age` then says how many seconds out of date it may "
    "be. With `Cache-Control: no-cache` it comes from the primary."
)
_AGE_HEADER: Final = {
    "description": "Seconds by which the response may be out of date; only if it comes from a replica.",
    "schema": {"type": "integer", "minimum": 0},
}
_ANY_OPERATION = ("invalid-request", "malformed-http", "too-slow", "head-too-large", "internal")
_OPERATION_WITH_KEY = (
    *("unauthorized", "forbidden", "not-local", "too-many-requests", "contents-erased"),
    *("store-unavailable", "overloaded", *_ANY_OPERATION),
)
_WITH_BODY = ("invalid-json", "body-too-large")
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
    "gateway": "The proxy for clients of providers: the addresses that it forwards to, and its newest requests.",
    "webhooks": "URLs that are notified of compactions.",
    "retention": "Rules for how long data is kept, and erasures of the sessions that match a filter.",
    "keys": "API keys of the tenant, with their scopes and the sessions that they give access to.",
    "operations": "Liveness, readiness and metrics of the server. They need no key.",
}
_KEY: Final = (
    "Secret of an API key. The key's scopes are `ingest` (append and change), `read`, `audit` (search the calls of all "
    "sessions) and `admin`. As long as no key has been created or configured, none is required, and only requests from "
    "the same machine are answered."
)


def problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that needs a key: these problems, and those common to such operations."""
    return _responses(*slugs, *_OPERATION_WITH_KEY)


def open_problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that needs no key: these problems, and those common to all operations."""
    return _responses(*slugs, *_ANY_OPERATION)


def _responses(*slugs: str) -> dict[int | str, dict[str, Any]]:
    responses: dict[int | str, dict[str, Any]] = {}
    for slug in slugs:
        _add_problem(responses, BY_SLUG[slug].status, slug)
    return responses


def _add_problem(responses: dict[Any, dict[str, Any]], status: int | str, slug: str) -> None:
    """Add a problem to the responses of an operation, unless they have it."""
    response = responses.setdefault(status, {"description": "", "content": {}})
    examples = response["content"].setdefault(errors.MEDIA_TYPE, {}).setdefault("examples", {})
    if slug not in examples:
        examples[slug] = {"value": example(slug)}
        described = f"`{slug}`: {BY_SLUG[slug].title}"
        response["description"] = "; ".join(filter(None, (response["description"], described)))


def with_body_problems(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the problems common to operations with a body."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                for slug in _WITH_BODY:
                    _add_problem(operation["responses"], str(BY_SLUG[slug].status), slug)
    return document


def parameters_of(query: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI parameters of a session's GET operation, whose route parses its query itself."""
    parameters = [_sid()]
    for name, schema in query.model_json_schema()["properties"].items():
        described = (schema.pop("description"),) if "description" in schema else ()
        parameters.append(parameter(name, "query", schema, *described))
    return {"parameters": parameters}


def parameter(name: str, where: str, schema: Mapping[str, Any], description: str | None = None) -> dict[str, Any]:
    """Return an operation's parameter, which is required if `where` is the path."""
    described = {} if description is None else {"description": description}
    return {"name": name, "in": where, "required": where == "path", "schema": schema, **described}


CONVENTIONS: Final = """\
## Conventions

* **Keys.** Requests carry `Authorization: Bearer <secret>` with the secret of an API key. As long as no key has been
  created or configured, none is required, and only requests from the same machine are answered.
* **Bodies** are JSON, whatever `Content-Type` says. Unknown fields are errors. A body whose fields are all optional may
  be omitted.
* **Queries** may have only the parameters that the operation declares; unknown ones are errors.
* **Seqs** number the events of a session from 1 without gaps. A range `from_seq` to `to_seq` includes both ends.
* **Times** are in ISO 8601. Times in responses are in UTC and end in `Z`, except an event's `occurred_at`, which is
  returned as it was given. A time without an offset in a request is taken as UTC.
* **Tokens** are estimates unless they were reported. A size "by the estimator" is the estimator's own count, which
  never changes for an appended event. A size "in the model's tokens" is that count times a ratio learned from reported
  usage, which approximates the provider's count; until usage is reported the ratio is 1.
* **Lists** come in pages. `next_cursor` of one page is the parameter `cursor` of the next.
"""


def introduction() -> str:
    """Return the description of the whole document: conventions, and all problems of the API."""
    rows = [f"| `/problems/{p.slug}` | {p.status} | {p.title} |" for p in sorted(errors.ALL, key=lambda p: p.slug)]
    about = (
        "Every error is an RFC 9457 problem (`application/problem+json`) of one of these types, each with its own "
        "schema. `type` is also the path of a page that explains the problem and its remedy; `/problems` lists them."
    )
    return "\n".join([CONVENTIONS, "## Problems", "", about, "", "| type | status | title |", "|---|---|---|", *rows])


def examples(*made: Callable[[], BaseModel]) -> ConfigDict:
    """Return the configuration of a schema with examples, which are made with the document and show the set fields."""

    def add_examples(schema: JsonSchemaValue) -> None:
        schema["examples"] = [make().model_dump(mode="json", exclude_unset=True) for make in made]

    return ConfigDict(json_schema_extra=add_examples)


def body_of_model(model: type[BaseModel], *parameters: dict[str, Any], required: bool = True) -> dict[str, Any]:
    """Return the parameters and the body of a session's operation whose endpoint parses them itself.

    `parameters` are those besides the session and the idempotency key.
    """
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    key = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX}
    header = parameter("Idempotency-Key", "header", key, KEY_DESCRIPTION)
    return {
        "parameters": [_sid(), *parameters, header],
        "requestBody": {"required": required, "content": {"application/json": {"schema": reference}}},
    }


def _sid() -> dict[str, Any]:
    return parameter("sid", "path", {"type": "string", "pattern": ADDRESS_PATTERN}, SID_DESCRIPTION)


class _AsDeclared(GenerateJsonSchema):
    """Omits null defaults, as FastAPI does for operations: client generators treat a field with one as required."""

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema of a field with a default."""
        plain = "default" in schema and schema["default"] is None
        return self.generate_inner(schema["schema"]) if plain else super().default_schema(schema)


def with_schemas(document: dict[str, Any], models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Return the document with the schemas of models that no operation declares."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", schema_generator=_AsDeclared)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return document


def add_descriptions(document: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the document with servers, security scheme, tags and descriptions of responses added."""
    document["servers"] = [{"url": "/", "description": "The server that this document comes from."}]
    used = {tag for operations in document["paths"].values() for one in operations.values() for tag in one["tags"]}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    components = document["components"]
    components["securitySchemes"] = {KEY_SCHEME: {"type": "http", "scheme": "bearer", "description": _KEY}}
    declared = [route for route in routes if isinstance(route, APIRoute)]
    reads = {one.operation_id for one in declared if not PAST_SERVICES.isdisjoint(_calls(one.dependant))}
    for operations in document["paths"].values():
        for operation in operations.values():
            if operation["operationId"] in reads:
                operation["description"] += f"\n\n{_PAST_NOTE}"
                operation["responses"]["200"]["headers"] = {"Age": _AGE_HEADER}
            operation.setdefault("security", [])
            for status, response in operation["responses"].items():
                if response["description"] == "Successful Response":
                    response["description"] = _response_description(status, response, components["schemas"])
    return document


def _calls(dependant: Dependant) -> Iterator[Any]:
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)


def _response_description(status: str, response: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the description of a successful response: the first sentence of its schema's description."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return str(schemas[name]["description"]).split(". ")[0].rstrip(".").replace("\n", " ") + "."
    return "Done. The response has no body." if status == "204" else "The response, as the operation describes it."
