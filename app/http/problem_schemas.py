"""The schemas of problems: one for each slug, so that generated clients have a type for each error."""

from collections.abc import Iterable
from typing import Any, Final

from app.http.errors import ALL, MEDIA_TYPE, Problem
from app.http.problem_texts import TEXTS

_BY_SLUG: Final = {problem.slug: problem for problem in ALL}
_REFERENCE: Final = "#/components/schemas/{}"


def schema_name(slug: str) -> str:
    """Return the name of a problem's schema, such as `HeadConflictProblem`."""
    return "".join(part.capitalize() for part in slug.split("-")) + "Problem"


def schemas() -> dict[str, Any]:
    """Return the schemas of all problems by name."""
    return {schema_name(problem.slug): _schema(problem) for problem in sorted(_BY_SLUG.values(), key=lambda p: p.slug)}


def _schema(problem: Problem) -> dict[str, Any]:
    text = TEXTS[problem.slug]
    standing: dict[str, Any] = {
        "type": {
            "const": f"/problems/{problem.slug}",
            "type": "string",
            "description": "Stable identifier of the kind of problem, and the path of a page about it.",
        },
        "title": {"type": "string", "description": f"Short description of the kind of problem: {problem.title}."},
        "status": {"const": problem.status, "type": "integer", "description": "HTTP status code of the response."},
        "detail": {"type": "string", "description": "Human-readable description of this occurrence."},
    }
    return {
        "title": schema_name(problem.slug),
        "description": f"{text.meaning} {text.remedy}",
        "type": "object",
        "properties": {**standing, **{name: dict(field) for name, field in text.fields.items()}},
        "required": [*standing, *(name for name in text.fields if name not in text.sometimes)],
    }


def with_problem_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the schemas of all problems, each referenced by the responses that may have it."""
    document["components"]["schemas"] |= schemas()
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
    body = _BY_SLUG[slug].body("description of this occurrence")
    return body | {name: _EXAMPLES[_kind(field)] for name, field in TEXTS[slug].fields.items()}


_EXAMPLES: Final[dict[str, Any]] = {"string": "…", "integer": 1, "object": {"tools": 1}}


def _kind(field: Any) -> str:
    kind = field["type"]
    return str(kind if isinstance(kind, str) else kind[0])
