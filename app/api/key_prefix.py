"""Access of keys that are limited to a session prefix, for every operation.

The holder of such a key must learn nothing about its tenant but the sessions with the prefix. An operation that is
missing here is refused.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from fastapi import Request
from starlette.types import Scope

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


OPERATIONS: Final[Mapping[str, PrefixAccess]] = {
    "append_events": PrefixAccess.SESSION,
    "append_messages": PrefixAccess.SESSION,
    "audit_calls": PrefixAccess.WITHIN,
    "compact": PrefixAccess.SESSION,
    "compact_tool": PrefixAccess.NONE,
    "create_erasure": PrefixAccess.TENANT,
    "create_key": PrefixAccess.WITHIN,
    "delete_calibrations": PrefixAccess.TENANT,
    "delete_layer": PrefixAccess.SESSION,
    "delete_session": PrefixAccess.SESSION,
    "delete_webhook": PrefixAccess.TENANT,
    "diff_calls": PrefixAccess.SESSION,
    "end_turn": PrefixAccess.SESSION,
    "fork_session": PrefixAccess.SESSION,
    "gateway": PrefixAccess.WITHIN,
    "get_audit_ledger": PrefixAccess.WITHIN,
    "get_call": PrefixAccess.SESSION,
    "get_call_context": PrefixAccess.SESSION,
    "get_compaction": PrefixAccess.SESSION,
    "get_context": PrefixAccess.SESSION,
    "get_coverage": PrefixAccess.SESSION,
    "get_erasure": PrefixAccess.TENANT,
    "get_event": PrefixAccess.SESSION,
    "get_event_history": PrefixAccess.SESSION,
    "get_layers": PrefixAccess.SESSION,
    "get_ledger": PrefixAccess.SESSION,
    "get_policy": PrefixAccess.NONE,
    "get_retention": PrefixAccess.TENANT,
    "get_session": PrefixAccess.SESSION,
    "get_summary": PrefixAccess.SESSION,
    "get_webhook": PrefixAccess.TENANT,
    "list_calibrations": PrefixAccess.TENANT,
    "list_calls": PrefixAccess.SESSION,
    "list_compactions": PrefixAccess.SESSION,
    "list_deliveries": PrefixAccess.TENANT,
    "list_epochs": PrefixAccess.SESSION,
    "list_erased_sessions": PrefixAccess.TENANT,
    "list_erasures": PrefixAccess.TENANT,
    "list_events": PrefixAccess.SESSION,
    "list_keys": PrefixAccess.WITHIN,
    "list_lines": PrefixAccess.SESSION,
    "list_policies": PrefixAccess.NONE,
    "list_sessions": PrefixAccess.WITHIN,
    "list_summaries": PrefixAccess.SESSION,
    "list_turns": PrefixAccess.SESSION,
    "list_webhooks": PrefixAccess.TENANT,
    "mcp": PrefixAccess.WITHIN,
    "patch_visibility": PrefixAccess.SESSION,
    "post_context": PrefixAccess.SESSION,
    "preview_context": PrefixAccess.SESSION,
    "preview_erasure": PrefixAccess.TENANT,
    "preview_retention": PrefixAccess.TENANT,
    "put_layer": PrefixAccess.SESSION,
    "put_policy": PrefixAccess.TENANT,
    "put_retention": PrefixAccess.TENANT,
    "put_session": PrefixAccess.SESSION,
    "put_webhook": PrefixAccess.TENANT,
    "recall": PrefixAccess.SESSION,
    "recall_tool": PrefixAccess.NONE,
    "redact_event": PrefixAccess.SESSION,
    "report_outcome": PrefixAccess.SESSION,
    "retry_compaction": PrefixAccess.SESSION,
    "retry_delivery": PrefixAccess.TENANT,
    "revoke_key": PrefixAccess.WITHIN,
    "rewind_session": PrefixAccess.SESSION,
    "stream_session": PrefixAccess.SESSION,
}


def check_prefix(request: Request, who: Caller) -> None:
    """Raise NotFound or OutOfReach for a request outside the caller's prefix."""
    if not who.session_prefix:
        return
    reach = OPERATIONS.get(operation_of(request.scope), PrefixAccess.TENANT)
    if reach is PrefixAccess.TENANT:
        raise OutsidePrefix(
            f"this key is limited to sessions of {who.session_prefix!r}, but this operation concerns all sessions"
        )
    if reach is PrefixAccess.SESSION:
        check_session(who, str(request.path_params["sid"]))


def check_session(who: Caller, session: str) -> None:
    """Raise NotFound, as for a session that does not exist, if the caller's key has no access to it."""
    if not who.may_access(session):
        raise NotFound(f"there is no session {session!r}", session=session)


def operation_of(scope: Scope) -> str:
    """Return the name of the requested operation: the route's, or the endpoint's if that is an application."""
    found = (getattr(scope.get(place), "operation_id", None) for place in ("route", "endpoint"))
    return next(filter(None, found), "")
