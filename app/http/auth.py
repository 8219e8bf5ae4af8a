"""Authentication by bearer key, and the sessions that a request concerns and its key may access.

The id of a session means its current line. For an operation on a recorded call it means the line on which the call was
made.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

from fastapi import Request

from app.core.errors import InvalidRequest, NotFound, OutsidePrefix
from app.core.log.segments import ADDRESS_PATTERN
from app.http.errors import Forbidden, Unauthorized
from app.http.middleware import EXCHANGE, Exchange
from app.store.engine import act_for
from app.store.texts import ContentCiphers, seal_with
from app.tenants import Caller, Tenants

SESSION_HEADER: Final = "x-palimpsest-session"


async def authenticate_bearer(request: Request, scope: str) -> Caller:
    """Authenticate by bearer key. The rest of the request acts for the caller's tenant and can decrypt its contents.

    Raises Unauthorized, Forbidden, TooManyRequests or ContentsErased.
    """
    header = request.headers.get("authorization")
    if header is not None and not header.lower().startswith("bearer "):
        raise Unauthorized("the Authorization header must be 'Bearer <key>'")
    secret = None if header is None else header[7:].strip()
    who = await authenticate(request, secret, (scope,), "Authorization: Bearer <key>")
    ciphers: ContentCiphers = request.state.services.ciphers
    seal_with(await ciphers.cipher(who.tenant_id))
    return who


async def authenticate(request: Request, secret: str | None, scopes: Collection[str], how: str) -> Caller:
    """Authenticate the holder of a key with all of these scopes, and make the request act for its tenant.

    This does not check the key's session prefix, and does not enable decryption. `how` tells a caller without a key
    how to send one. Raises Unauthorized, Forbidden or TooManyRequests.
    """
    tenants: Tenants = request.state.services.tenants
    found = await tenants.authenticate(secret)
    if found is None:
        raise Unauthorized("this key is not valid" if secret else f"a key is required: {how}")
    for scope in scopes:
        if not found.has_scope(scope):
            raise Forbidden(f"this key lacks the scope {scope!r}")
    exchange: Exchange = request.scope[EXCHANGE]
    exchange.assign_tenant(found.tenant_id)
    act_for(found.tenant_id)
    return found


class PrefixAccess(Enum):
    """The data that an operation concerns, which decides how a key's session prefix limits it.

    SESSION: the session in its path; outside the prefix it is not found, whether it exists or not. WITHIN: several
    sessions; the operation applies the prefix itself. NONE: no session's data. TENANT: all of the tenant's data, which
    cannot be divided by sessions.
    """

    SESSION = "session"
    WITHIN = "within"
    NONE = "none"
    TENANT = "tenant"


def check_prefix(request: Request, who: Caller, access: PrefixAccess) -> None:
    """Check a request of a key that has a session prefix. Raises NotFound or OutsidePrefix."""
    if access is PrefixAccess.TENANT:
        raise OutsidePrefix(
            f"this key is limited to sessions of {who.session_prefix!r}, but this operation concerns all sessions"
        )
    if access is PrefixAccess.SESSION:
        check_session(who, str(request.path_params["sid"]))


def check_session(who: Caller, session: str) -> None:
    """Raise NotFound, as for a session that does not exist, if the caller's key has no access to it."""
    if not who.may_access(session):
        raise NotFound(f"there is no session {session!r}", session=session)


def session_of_client(headers: Mapping[str, str], sid: str | None, pattern: str = ADDRESS_PATTERN) -> str | None:
    """Return the session that a client is configured for, by the header or else by `sid` in its URL; None if it is not.

    Raises InvalidRequest for an id that does not match the pattern.
    """
    for name, where in ((headers.get(SESSION_HEADER), SESSION_HEADER), (sid, "sid")):
        if name is not None:
            if re.fullmatch(pattern, name) is None:
                raise InvalidRequest(f"{where} must match {pattern}", field=where)
            return name
    return None


async def resolve_line(request: Request, who: Caller) -> None:
    """Replace a session's id in the path by the line it means."""
    path_params: dict[str, Any] = request.path_params
    sid = path_params.get("sid")
    if sid is None:
        return
    lines = request.state.services.lines
    call_id = _uuid(path_params.get("call_id"))
    if call_id is not None:
        path_params["sid"] = await lines.of_call(who.tenant_id, sid, call_id)
    else:
        path_params["sid"] = await lines.current(who.tenant_id, sid)


def _uuid(value: str | None) -> UUID | None:
    try:
        return None if value is None else UUID(value)
    except ValueError:
        return None
