"""Policies, as the API describes them."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.core.policy.policy import json_schema

_POLICY_EXAMPLE: dict[str, Any] = {"retention": {"keep_last": 5, "never_evict": ["plan"]}, "trigger": {"ratio": 0.8}}


POLICY_SCHEMA: Final[dict[str, Any]] = json_schema() | {
    "title": "PolicyDocument",
    "description": "All knobs of a view; those left out have their defaults.",
    "examples": [_POLICY_EXAMPLE],
}


# The core checks a policy and names the knob at fault; here it is only described, once for every place it may stand.
PolicyDocument = TypeAliasType("PolicyDocument", Annotated[dict[str, Any], WithJsonSchema(POLICY_SCHEMA)])


PolicyGiven = Annotated[
    str | PolicyDocument | None,
    Field(description="A policy's name (its newest version), `name@version`, or a document."),
]


class PolicyRef(BaseModel):
    """An immutable policy."""

    name: str
    version: int


class PolicyOut(BaseModel):
    """A version of a policy, as it was given; presets come with the server and have no date."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "careful",
                    "version": 2,
                    "preset": False,
                    "policy": _POLICY_EXAMPLE,
                    "created_at": "2026-11-21T09:30:00Z",
                }
            ]
        }
    )

    name: str
    version: int
    preset: bool
    policy: PolicyDocument
    created_at: datetime | None


class PolicyPage(BaseModel):
    """Presets first, then by name."""

    items: list[PolicyOut]
    next_cursor: str | None


def policy_body() -> dict[str, Any]:
    """The body of an operation that takes a policy's document and reads it itself."""
    schema = {"$ref": "#/components/schemas/PolicyDocument"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
