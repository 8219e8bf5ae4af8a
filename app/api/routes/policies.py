"""Policies: store a version, read one, list them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response

from app.api import paging
from app.api.body import parse_json
from app.api.key_prefix import PrefixAccess
from app.api.operation import Resource, Who, service
from app.api.schemas.common import Cursor, Limit
from app.api.schemas.policies import PolicyOut, PolicyPage, policy_body
from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.services.policies import NAME_PATTERN, STORED_NAME_PATTERN, VERSION_MAX, Policies
from app.store.policies import PolicyRow

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
    problems=("invalid-policy", "body-too-large"),
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
async def list_policies(
    who: Who,
    policies: Service,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the policies in their newest versions: presets first, then the tenant's own by name."""
    rows = await policies.page(who.tenant_id, limit + 1, _place(cursor))
    return paging.page(rows, limit, lambda row: row.name)


async def _document(request: Request) -> Json:
    return await parse_json(
        await request.body(), request.app.state.json_limits, strict=False
    )  # the core names the knob


def _place(cursor: str | None) -> str | None:
    [name] = paging.decode_names(cursor, 1) or (None,)
    if name is None or re.fullmatch(NAME_PATTERN, name):
        return name
    raise InvalidRequest("the cursor is not valid for this list", field="cursor")
