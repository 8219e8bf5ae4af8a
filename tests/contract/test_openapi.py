"""The committed OpenAPI document is the one the code gives, and says all that can happen."""

import json
from pathlib import Path

import pytest

from app.api import errors
from app.api.schemas.events import EventIn
from app.core.log.events import INPUT_FIELDS
from app.export import document

COMMITTED = Path(__file__).parent.parent.parent / "openapi" / "palimpsest.json"


def test_the_committed_document_is_current() -> None:
    assert COMMITTED.read_text() == document(), "run `make openapi`"


def test_every_operation_has_a_stable_id_and_names_its_problems() -> None:
    seen = set()
    for path, operations in json.loads(document())["paths"].items():
        for method, operation in operations.items():
            assert "_v1_" not in operation["operationId"], (path, method)
            assert operation["operationId"] not in seen
            seen.add(operation["operationId"])
            if path.startswith("/v1/"):
                assert {"401", "403", "503"} <= set(operation["responses"]), (path, method)


def test_every_problem_is_somewhere_in_the_document() -> None:
    text = document()
    missing = [p.slug for p in errors.ALL if f"/problems/{p.slug}" not in text]
    assert missing == []


def test_the_schema_of_an_event_has_the_fields_the_core_takes() -> None:
    assert set(EventIn.model_fields) == INPUT_FIELDS


@pytest.mark.parametrize("name", ["EventsIn", "MessagesIn", "ContextIn", "SessionIn", "ContextOut", "AppendedOut"])
def test_bodies_have_examples(name: str) -> None:
    assert json.loads(document())["components"]["schemas"][name].get("examples"), name
