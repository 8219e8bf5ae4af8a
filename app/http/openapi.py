"""The parts of the OpenAPI document that routes do not declare: bodies, problems, conventions."""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema

from app.core.log.segments import ADDRESS_PATTERN
from app.http import errors
from app.http.fields import SID_DESCRIPTION
from app.http.problem_schemas import example

KEY_CHARS_MAX: Final = 256
KEY_SCHEME: Final = "ApiKey"
KEY_DESCRIPTION: Final = "Client's own key for the request: repeating the request with it returns the first response."
_ANYWHERE = ("invalid-request", "malformed-http", "too-slow", "head-too-large", "internal")
_EVERYWHERE = (
    "unauthorized",
    "forbidden",
    "not-local",
    "too-many-requests",
    "contents-erased",
    "store-unavailable",
    "overloaded",
    *_ANYWHERE,
)
_WITH_BODY = ("invalid-json", "body-too-large")


def problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that needs a key: these problems, and those common to such operations."""
    return _responses(*slugs, *_EVERYWHERE)


def open_problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that needs no key: these problems, and those common to all operations."""
    return _responses(*slugs, *_ANYWHERE)


def _responses(*slugs: str) -> dict[int | str, dict[str, Any]]:
    by_slug = {problem.slug: problem for problem in errors.ALL}
    responses: dict[int | str, dict[str, Any]] = {}
    for slug in dict.fromkeys(slugs):
        problem = by_slug[slug]
        entry = responses.setdefault(problem.status, {"description": "", "content": _content({})})
        entry["description"] = "; ".join(filter(None, (entry["description"], _described(problem))))
        entry["content"][errors.MEDIA_TYPE]["examples"][slug] = {"value": example(slug)}
    return responses


def _content(examples: dict[str, Any]) -> dict[str, Any]:
    return {errors.MEDIA_TYPE: {"examples": examples}}


def _described(problem: errors.Problem) -> str:
    return f"`{problem.slug}`: {problem.title}"


def with_body_problems(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the problems common to operations with a body."""
    by_slug = {problem.slug: problem for problem in errors.ALL}
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" not in operation:
                continue
            for problem in map(by_slug.__getitem__, _WITH_BODY):
                entry = operation["responses"].setdefault(
                    str(problem.status), {"description": "", "content": _content({})}
                )
                content = entry["content"].setdefault(errors.MEDIA_TYPE, {})
                if problem.slug not in content.setdefault("examples", {}):
                    content["examples"][problem.slug] = {"value": example(problem.slug)}
                    entry["description"] = "; ".join(filter(None, (entry["description"], _described(problem))))
    return document


def parameters_of(query: type[BaseModel]) -> dict[str, Any]:
    """Return the parameters of a reading operation on a session that parses its query itself."""
    parameters = [_sid()]
    for name, schema in query.model_json_schema()["properties"].items():
        described = {"description": schema.pop("description")} if "description" in schema else {}
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema, **described})
    return {"parameters": parameters}


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


def security_of(scope: str) -> list[dict[str, list[str]]]:
    """Return the security requirement of an operation that needs a key with a scope."""
    return [{KEY_SCHEME: [scope]}]


def append_operation(model: type[BaseModel]) -> dict[str, Any]:
    """Return the parameters and the body of an append, whose route parses them itself."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    key = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX}
    described = {"description": KEY_DESCRIPTION}
    header = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": key, **described}
    return {
        "parameters": [_sid(), header],
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
    }


def _sid() -> dict[str, Any]:
    schema = {"type": "string", "pattern": ADDRESS_PATTERN}
    return {"name": "sid", "in": "path", "required": True, "schema": schema, "description": SID_DESCRIPTION}


class _AsDeclared(GenerateJsonSchema):
    """Omits defaults of null, as FastAPI does for operations: client generators treat a field with one as required."""

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
