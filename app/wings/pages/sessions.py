"""The list of sessions."""

from collections.abc import Mapping

from app.wings.pages.page import Pages, Visit

pages = Pages()


@pages.page("/ui/", "sessions.html")
async def list_sessions_page(visit: Visit) -> Mapping[str, object]:
    """Show the sessions that the reader's key can access, newest first."""
    found = await visit.api.get("/v1/sessions", limit=50, cursor=visit.query("cursor") or None)
    return {"sessions": found["items"], "next_cursor": found["next_cursor"]}
