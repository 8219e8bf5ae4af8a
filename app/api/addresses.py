"""Which line of a session a path means: settled at the door, so that whoever answers is given one row.

A session's name in a path becomes the id of its current line if it has moved. Operations on a recorded call go to the
line on which it was made.
"""

import re
from typing import Any, Final
from uuid import UUID

from fastapi import Request

from app.api.reach import operation_of
from app.core.errors import InvalidRequest
from app.core.log.lines import ADDRESS_PATTERN
from app.services.tenants import Caller

AS_NAMED: Final = frozenset(
    {
        *(
            "append_events",
            "append_messages",
            "get_context",
            "mcp",
            "post_context",
            "recall",
        ),  # follow by themselves
        *("delete_session", "list_calls", "list_lines", "rewind_session"),  # concern the session with all of its lines
    }
)
FOLLOWED: Final = "palimpsest.followed"
_ADDRESS: Final = re.compile(ADDRESS_PATTERN)


def address(request: Request) -> str:
    """The session, or the line, in the path. Raises InvalidRequest."""
    sid: str = request.path_params["sid"]
    if _ADDRESS.fullmatch(sid) is None:
        raise InvalidRequest(f"sid must match {ADDRESS_PATTERN}", field="sid")
    return sid


async def follow(request: Request, who: Caller) -> None:
    """Have the path name the line that it means; one that names no session is left to whoever reads it."""
    named: dict[str, Any] = request.path_params
    sid = named.get("sid")
    if sid is None or FOLLOWED in request.scope or operation_of(request.scope) in AS_NAMED:
        return
    if _ADDRESS.fullmatch(sid) is None:
        return
    request.scope[FOLLOWED] = True  # an operation with a body passes the door twice
    lines = request.state.services.lines
    call_id = _uuid(named.get("call_id"))
    if call_id is not None:
        named["sid"] = await lines.of_call(who.tenant_id, sid, call_id)
    else:
        named["sid"] = await lines.current(who.tenant_id, sid)


def _uuid(value: str | None) -> UUID | None:
    try:
        return None if value is None else UUID(value)
    except ValueError:
        return None
