"""Policies: store a version, read one, list them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field, WithJsonSchema, model_validator
from typing_extensions import TypeAliasType

from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.policy.policy import json_schema
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import Cursor, Limit
from app.http.openapi import examples
from app.http.operation import Resource, Who, service
from app.http.requests import read_json
from app.resources.policies.service import NAME_PATTERN, STORED_NAME_PATTERN, VERSION_MAX, Policies
from app.store.policies import PolicyRow

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

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return dict(zip(cls.model_fields, value, strict=True)) if isinstance(value, tuple) else value

    name: str = Field(description="Name of the policy; for a document given in a request, `inline:` and a hash of it.")
    version: int = Field(description="Version of the policy, counted from 1.")


class PolicyOut(BaseModel):
    """A stored version of a policy."""

    model_config = examples(
        lambda: PolicyOut(
            name="careful",
            version=2,
            preset=False,
            document=_POLICY_EXAMPLE,
            created_at=datetime(2026, 11, 21, 9, 30, tzinfo=UTC),
        )
    )

    name: str = Field(description="Name of the policy.")
    version: int = Field(description="Version of the policy, counted from 1; presets have only version 1.")
    preset: bool = Field(description="Whether it comes with the server and cannot be changed.")
    policy: PolicyDocument = Field(
        validation_alias="document", description="Document as it was given; omitted knobs have their defaults."
    )
    created_at: datetime | None = Field(description="Time at which the version was stored; null for presets.")


PolicyPage = paging.page_of(
    PolicyOut, "A page of policies.", "Policies in their newest version: presets first, then others by name."
)


def policy_body() -> dict[str, Any]:
    """Return the OpenAPI request body of an operation that parses a policy document itself."""
    schema = {"$ref": "#/components/schemas/PolicyDocument"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


router = Resource("policies")

Service = Annotated[Policies, Depends(service(Policies))]


@router.operation(
    "PUT",
    "/v1/policies/{name}",
    scope="admin",
    access=PrefixAccess.TENANT,
    summary="Store a policy",
    returns=PolicyOut,
    also=(201,),
    problems=("invalid-policy",),
    openapi_extra=policy_body(),
)
async def put_policy(
    name: Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the policy, not that of a preset.")],
    request: Request,
    response: Response,
    who: Who,
    policies: Service,
) -> PolicyRow:
    """Store a document as the newest version of a policy (201); 200 if the newest version is the same document.

    Versions never change. A session keeps its version of a policy until a policy is set again.
    """
    row, created = await policies.put(who.tenant_id, name, await _document(request))
    response.status_code = 201 if created else 200
    return row


@router.operation(
    "GET", "/v1/policies/{name}", scope="read", access=PrefixAccess.NONE, returns=PolicyOut, problems=("not-found",)
)
async def get_policy(
    name: Annotated[
        str,
        Path(
            pattern=STORED_NAME_PATTERN,
            description="Name of the policy: a preset, a stored policy, or `inline:` and a hash for a policy that was "
            "given as a document.",
        ),
    ],
    who: Who,
    policies: Service,
    version: Annotated[
        int | None, Query(ge=1, le=VERSION_MAX, description="Version of the policy. Default: the newest.")
    ] = None,
) -> PolicyRow:
    """Get one version of a policy."""
    return await policies.find(who.tenant_id, name, version)


@router.operation("GET", "/v1/policies", scope="read", access=PrefixAccess.NONE, returns=PolicyPage)
async def list_policies(who: Who, policies: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the policies in their newest versions: presets first, then the tenant's own by name."""
    rows = await policies.page(who.tenant_id, limit + 1, _place(cursor))
    return paging.page(rows, limit, lambda row: row.name)


async def _document(request: Request) -> Json:
    document, _ = await read_json(request, strict=False)  # the core names the knob
    return document


def _place(cursor: str | None) -> str | None:
    [name] = paging.decode_names(cursor, 1) or (None,)
    if name is None or re.fullmatch(NAME_PATTERN, name):
        return name
    raise InvalidRequest("the cursor is not valid for this list", field="cursor")
