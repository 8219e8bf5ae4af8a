"""Access of keys that are limited to a session prefix, for every operation.

The holder of such a key must learn nothing about its tenant but the sessions with the prefix. An operation that is
missing here is refused.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from fastapi import Request
from starlette.types import Scope

from app.core.errors import NotFound, OutOfReach
from app.services.tenants import Caller


class Reach(Enum):
    """The data that an operation concerns.

    SESSION: the session in its path; outside the prefix it is not found, whether it exists or not. WITHIN: several
    sessions; the operation applies the prefix itself. NONE: no session's data. TENANT: all of the tenant's data, which
    cannot be divided by sessions.
    """

    SESSION = "session"
    WITHIN = "within"
    NONE = "none"
    TENANT = "tenant"


OPERATIONS: Final[Mapping[str, Reach]] = {
    "append_events": Reach.SESSION,
    "append_messages": Reach.SESSION,
    "audit_calls": Reach.WITHIN,
    "compact": Reach.SESSION,
    "compact_tool": Reach.NONE,
    "create_erasure": Reach.TENANT,
    "create_key": Reach.WITHIN,
    "delete_calibrations": Reach.TENANT,
    "delete_layer": Reach.SESSION,
    "delete_session": Reach.SESSION,
    "delete_webhook": Reach.TENANT,
    "diff_calls": Reach.SESSION,
    "end_turn": Reach.SESSION,
    "fork_session": Reach.SESSION,
    "gateway": Reach.WITHIN,
    "get_audit_ledger": Reach.WITHIN,
    "get_call": Reach.SESSION,
    "get_call_context": Reach.SESSION,
    "get_compaction": Reach.SESSION,
    "get_context": Reach.SESSION,
    "get_coverage": Reach.SESSION,
    "get_erasure": Reach.TENANT,
    "get_event": Reach.SESSION,
    "get_event_history": Reach.SESSION,
    "get_layers": Reach.SESSION,
    "get_ledger": Reach.SESSION,
    "get_policy": Reach.NONE,
    "get_retention": Reach.TENANT,
    "get_session": Reach.SESSION,
    "get_summary": Reach.SESSION,
    "get_webhook": Reach.TENANT,
    "list_calibrations": Reach.TENANT,
    "list_calls": Reach.SESSION,
    "list_compactions": Reach.SESSION,
    "list_deliveries": Reach.TENANT,
    "list_epochs": Reach.SESSION,
    "list_erased_sessions": Reach.TENANT,
    "list_erasures": Reach.TENANT,
    "list_events": Reach.SESSION,
    "list_keys": Reach.WITHIN,
    "list_lines": Reach.SESSION,
    "list_policies": Reach.NONE,
    "list_sessions": Reach.WITHIN,
    "list_summaries": Reach.SESSION,
    "list_turns": Reach.SESSION,
    "list_webhooks": Reach.TENANT,
    "mcp": Reach.WITHIN,
    "patch_visibility": Reach.SESSION,
    "post_context": Reach.SESSION,
    "preview_context": Reach.SESSION,
    "preview_erasure": Reach.TENANT,
    "preview_retention": Reach.TENANT,
    "put_layer": Reach.SESSION,
    "put_policy": Reach.TENANT,
    "put_retention": Reach.TENANT,
    "put_session": Reach.SESSION,
    "put_webhook": Reach.TENANT,
    "recall": Reach.SESSION,
    "recall_tool": Reach.NONE,
    "redact_event": Reach.SESSION,
    "report_outcome": Reach.SESSION,
    "retry_compaction": Reach.SESSION,
    "retry_delivery": Reach.TENANT,
    "revoke_key": Reach.WITHIN,
    "rewind_session": Reach.SESSION,
    "stream_session": Reach.SESSION,
}


def check(request: Request, who: Caller) -> None:
    """Raise NotFound or OutOfReach for a request outside the caller's prefix."""
    if not who.session_prefix:
        return
    reach = OPERATIONS.get(operation_of(request.scope), Reach.TENANT)
    if reach is Reach.TENANT:
        raise OutOfReach(
            f"this key is limited to sessions of {who.session_prefix!r}, but this operation concerns all sessions"
        )
    if reach is Reach.SESSION:
        check_session(who, str(request.path_params["sid"]))


def check_session(who: Caller, session: str) -> None:
    """Raise NotFound, as for a session that does not exist, if the caller's key has no access to it."""
    if not who.reaches(session):
        raise NotFound(f"there is no session {session!r}", session=session)


def operation_of(scope: Scope) -> str:
    """Return the name of the requested operation: the route's, or the endpoint's if that is an application."""
    found = (getattr(scope.get(place), "operation_id", None) for place in ("route", "endpoint"))
    return next(filter(None, found), "")
