"""Changes of the API that break callers of the last release are found, and named in the changelog."""

import copy
import json
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.releases import ROOT, is_here, releases

PROMISE = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "promise.py")))
NOTE = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "maxLength": 100},
        "kind": {"enum": ["plain", "loud"], "type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Note"}},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    },
}
DOCUMENT: dict[str, Any] = {
    "paths": {
        "/notes": {
            "post": {
                "operationId": "add",
                "parameters": [{"name": "quiet", "in": "query", "schema": {"type": "string", "pattern": "^[a-z]+$"}}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Note"}}}},
                "responses": {
                    "201": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Added"}}}},
                    "404": {"description": "", "content": {"application/problem+json": {"example": "/problems/gone"}}},
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Note": NOTE,
            "Added": {
                "type": "object",
                "required": ["id", "note"],
                "properties": {
                    "id": {"type": "integer"},
                    "note": {"$ref": "#/components/schemas/Note"},
                    "state": {"enum": ["new"], "type": "string"},
                },
            },
        }
    },
}
Edit = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], object]


def changed(edit: Edit) -> list[tuple[str, str]]:
    """Return names and descriptions of what breaks after an edit of the operation, and of the two schemas."""
    new = copy.deepcopy(DOCUMENT)
    schemas = new["components"]["schemas"]
    edit(new["paths"]["/notes"]["post"], schemas["Note"], schemas["Added"])
    return [(one.name, one.what) for one in PROMISE.breaking(DOCUMENT, new)]


def in_requests(changes: dict[str, Any]) -> Edit:
    return lambda operation, note, added: note["properties"].update(changes)


def in_responses(changes: dict[str, Any]) -> Edit:
    return lambda operation, note, added: added["properties"].update(changes)


def of_parameter(changes: dict[str, Any]) -> Edit:
    return lambda operation, note, added: operation["parameters"][0]["schema"].update(changes)


@pytest.mark.parametrize(
    ("edit", "name", "what"),
    [
        (lambda operation, note, added: operation.update(operationId="put"), "add", "its id is no longer add"),
        (lambda operation, note, added: operation["parameters"].clear(), "quiet", "removed"),
        (lambda operation, note, added: operation["parameters"][0].update(required=True), "quiet", "required"),
        (lambda operation, note, added: operation["requestBody"].update(required=True), "/notes", "a body is required"),
        (lambda operation, note, added: operation["responses"].pop("201"), "/notes", "no response has status 201"),
        (lambda operation, note, added: operation["responses"].pop("404"), "gone", "no operation has this problem any"),
        (of_parameter({"pattern": "^[a-y]+$"}), "quiet", "pattern is"),
        (lambda operation, note, added: note["required"].append("kind"), "kind", "required"),
        (lambda operation, note, added: note.update(additionalProperties=False), "Note in requests", "refuses unknown"),
        (in_requests({"text": {"type": "string", "maxLength": 99}}), "text", "maxLength is 99, and was 100"),
        (in_requests({"kind": {"enum": ["plain"], "type": "string"}}), "kind", "no longer loud"),
        (in_requests({"at": {"type": "string", "format": "date-time"}}), "at", "no longer null"),
        (in_requests({"parts": {"type": "string"}}), "parts", "array became string"),
        (lambda operation, note, added: added["properties"].pop("id"), "id", "removed"),
        (lambda operation, note, added: added["required"].remove("id"), "id", "may be missing"),
        (in_responses({"id": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}), "id", "may be null"),
        (in_responses({"id": {"type": "number"}}), "id", "integer became number"),
    ],
)
def test_a_change_that_breaks_callers_is_found(edit: Edit, name: str, what: str) -> None:
    found = changed(edit)
    assert any(one == name and text.startswith(what) for one, text in found), found


@pytest.mark.parametrize(
    "edit",
    [
        lambda operation, note, added: None,
        lambda operation, note, added: operation["parameters"].append(
            {"name": "more", "in": "query", "schema": {"type": "string"}}
        ),
        of_parameter({"pattern": "^~?[a-z]+$"}),
        lambda operation, note, added: operation["responses"].update({"409": {}}),
        lambda operation, note, added: note["required"].remove("text"),
        in_requests({"text": {"type": "string"}}),
        in_requests({"more": {"type": "string"}}),
        in_requests({"kind": {"enum": ["plain", "loud", "quiet"], "type": "string"}}),
        in_responses({"more": {"type": "string"}}),
        in_responses({"state": {"enum": ["new", "old"], "type": "string"}}),
        in_responses({"note": {"allOf": [{"$ref": "#/components/schemas/Note"}]}}),
    ],
)
def test_a_change_that_callers_do_not_feel_is_no_finding(edit: Edit) -> None:
    # What is optional in requests may be missing in responses of the same schema.
    assert [one for one in changed(edit) if one != ("text", "may be missing")] == []


def test_an_operation_that_is_gone_is_found() -> None:
    new = copy.deepcopy(DOCUMENT) | {"paths": {}}
    assert str(PROMISE.breaking(DOCUMENT, new)[-1]) == "POST /notes: removed"


@pytest.mark.parametrize("section", ["Unreleased", "1.1.0"])
def test_a_change_is_named_in_a_part_on_upgrading_since_the_last_release(section: str) -> None:
    change = PROMISE.Breaking("Note in requests.kind", "removed", "kind")
    text = (
        f"# C\n\n## [{section}]\n\n### Upgrading\n\n* `kind` is gone.\n\n### Fixed\n\n* `id`.\n\n"
        "## [1.0.0] - x\n\n### Upgrading\n\n* `old` is gone.\n"
    )
    assert PROMISE.unnamed([change], PROMISE.upgrading(text, "1.0.0")) == []
    assert PROMISE.unnamed([change], PROMISE.upgrading(text.replace("`kind`", "kind"), "1.0.0")) == [change]
    for name in ("id", "old"):
        other = PROMISE.Breaking("Note in requests", "removed", name)
        assert PROMISE.unnamed([other], PROMISE.upgrading(text, "1.0.0")) == [other]


@pytest.mark.wing("all")
def test_the_changelog_names_all_that_breaks_callers_of_the_last_release() -> None:
    if not is_here(releases()[-1]):
        pytest.skip("the last release is not in this clone's history: git fetch --unshallow")
    version, old = PROMISE.last_release()
    assert version == releases()[-1].version
    changes = PROMISE.breaking(old, json.loads((ROOT / "openapi" / "palimpsest.json").read_text()))
    missing = PROMISE.unnamed(changes, PROMISE.upgrading((ROOT / "CHANGELOG.md").read_text(), version))
    assert [str(change) for change in missing] == []
