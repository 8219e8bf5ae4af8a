"""Access of keys that are limited to a session prefix.

The holder of such a key must learn nothing about its tenant but the sessions with the prefix.
"""

from enum import Enum

from fastapi import Request

from app.core.errors import NotFound, OutsidePrefix
from app.services.tenants import Caller


class PrefixAccess(Enum):
    """The data that an operation concerns.

    SESSION: the session in its path; outside the prefix it is not found, whether it exists or not. WITHIN: several
    sessions; the operation applies the prefix itself. NONE: no session's data. TENANT: all of the tenant's data, which
    cannot be divided by sessions.
    """

    SESSION = "session"
    WITHIN = "within"
    NONE = "none"
    TENANT = "tenant"


def check_prefix(request: Request, who: Caller, access: PrefixAccess) -> None:
    """Raise NotFound or OutsidePrefix for a request outside the caller's prefix."""
    if not who.session_prefix:
        return
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
