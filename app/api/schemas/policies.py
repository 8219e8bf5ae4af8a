"""Policies: documents, references and stored versions."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.api.schemas.common import NextCursor
from app.core.policy.policy import json_schema

_POLICY_EXAMPLE: dict[str, Any] = {"retention": {"keep_last": 5, "never_evict": ["plan"]}, "trigger": {"ratio": 0.8}}


POLICY_SCHEMA: Final[dict[str, Any]] = json_schema() | {
    "title": "PolicyDocument",
    "description": "Rules for what a view's contexts may leave out, and when. Omitted knobs have their defaults.",
    "examples": [_POLICY_EXAMPLE],
}


# The core validates a policy and names the knob at fault; this type only describes it, once for all of its uses.
PolicyDocument = TypeAliasType("PolicyDocument", Annotated[dict[str, Any], WithJsonSchema(POLICY_SCHEMA)])


PolicyGiven = Annotated[
    str | PolicyDocument | None,
    Field(
        description="Policy to use from now on: a name (its newest version), `name@version`, or a document. Default: "
        "the current one."
    ),
]


class PolicyRef(BaseModel):
    """Reference to an immutable version of a policy."""

    name: str = Field(description="Name of the policy; for a document given in a request, `inline:` and a hash of it.")
    version: int = Field(description="Version of the policy, counted from 1.")


class PolicyOut(BaseModel):
    """A stored version of a policy."""

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

    name: str = Field(description="Name of the policy.")
    version: int = Field(description="Version of the policy, counted from 1; presets have only version 1.")
    preset: bool = Field(description="Whether it comes with the server and cannot be changed.")
    policy: PolicyDocument = Field(
        validation_alias="document", description="Document as it was given; omitted knobs have their defaults."
    )
    created_at: datetime | None = Field(description="Time at which the version was stored; null for presets.")


class PolicyPage(BaseModel):
    """A page of policies."""

    items: list[PolicyOut] = Field(description="Policies in their newest version: presets first, then others by name.")
    next_cursor: NextCursor


def policy_body() -> dict[str, Any]:
    """Return the OpenAPI request body of an operation that parses a policy document itself."""
    schema = {"$ref": "#/components/schemas/PolicyDocument"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
